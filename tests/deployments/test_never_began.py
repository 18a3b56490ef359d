"""Starts that end before they have a place: each is a run, in every record; what only waits is none."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from deployments import failures, failures_export, failures_read, remedies, services
from deployments.codes import CODES
from deployments.failures_read import Filters
from deployments.models import Deployment, Failure, Run, Transition
from deployments.pages.failed import title_of
from deployments.planner.search import PASSING
from deployments.reconcile import reconcile
from models_catalog.models import Copy
from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.audit.models import Event
from panel.fleet.models import Host, Job, Reservation
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy(db: None) -> Copy:
    return builders.make_copy(builders.make_host())


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_user(username="mina", role="operator"))
    return client


def wanted(copy: Copy, name: str = "team-chat", **spec: Any) -> Deployment:
    row = builders.make_deployment(copy, name, desired="running", wanted_by="maria", wanted_by_id=7)
    row.revision.spec = {**row.revision.spec, **spec}
    row.revision.save()
    return row


def looked_at(row: Deployment) -> Deployment:
    reconcile(row.pk)
    return Deployment.objects.select_related("run__revision", "run__runtime", "revision").get(pk=row.pk)


def no_engine(copy: Copy) -> dict[str, Any]:
    copy.host.runtimes.all().delete()
    return {}


def no_model(copy: Copy) -> dict[str, Any]:
    return {"artifact_id": 999_999}


def bad_option(copy: Copy) -> dict[str, Any]:
    return {"options": {"max_modl_len": 5}}


def no_secret(copy: Copy) -> dict[str, Any]:
    return {"env_secrets": {"HF_TOKEN": "gone"}}


def in_no_time(copy: Copy) -> dict[str, Any]:
    return {}


# what is wrong: (done, the reason's code, the class, whether host and engine were known)
ENDS: dict[str, tuple[Any, str, str, bool]] = {
    "no-engine": (no_engine, "place.none", "runtime.none", False),
    "no-model": (no_model, "artifact.gone", "artifact.gone", False),
    "bad-option": (bad_option, "flag.unknown", "flag.unknown", True),
    "no-secret": (no_secret, "secret.missing_team", "secret.missing_team", False),
    "in-no-time": (in_no_time, "placing.deadline", "placing.deadline", False),
}


def ended(copy: Copy, what: str, name: str = "team-chat") -> Deployment:
    row = wanted(copy, name, **ENDS[what][0](copy))
    if what == "in-no-time":
        now = timezone.now()
        Deployment.objects.filter(pk=row.pk).update(state="placing", deadline_at=now, looked_at=now)
    return looked_at(row)


@pytest.mark.parametrize("what", ENDS)
def test_it_is_a_run_that_ended_with_its_reason(copy: Copy, what: str) -> None:
    _act, code, kind, known = ENDS[what]
    row = ended(copy, what)
    run, failure = Run.objects.get(), Failure.objects.get()
    assert (row.state, row.run_id, row.reason["code"], row.next_attempt_at) == ("failed", run.pk, code, None)
    assert (run.number, run.outcome, run.reason, run.started_by) == (1, "failed", row.reason, "maria")
    assert run.revision_id == row.revision_id and run.started_by_id == 7 and run.cause == "person"
    assert run.ended_at is not None and run.job_id is None and run.command == [] and not run.ready_at
    assert (failure.run_id, failure.code, failure.model_name) == (run.pk, kind, run.model_name)
    assert (run.host_name, run.engine_version, failure.engine) == (
        ("quay", "0.32.0", "vllm") if known else ("", "", "")
    )
    if what != "no-model":
        assert run.model_name.startswith("Tiny-1B-Instruct")
    assert not Reservation.objects.exists() and not Job.objects.exists()
    assert Transition.objects.filter(new="failed").get().run_id == run.pk
    said = Event.objects.get(verb="run.failed")
    assert (said.target_id, said.story, said.facts["reason"]) == (str(run.pk), f"deployment:{row.pk}", code)


def test_what_only_waits_makes_none_however_often_it_looks(copy: Copy) -> None:
    Host.objects.update(facts={**copy.host.facts, "ram_available_mib": 10})
    row = wanted(copy)
    for _ in range(3):
        Deployment.objects.update(next_attempt_at=None)
        assert looked_at(row).state == "queued"
    assert not Run.objects.exists() and not Failure.objects.exists()
    services.stop(row, actor=None)
    assert looked_at(row).state == "stopped" and not Run.objects.exists(), "who waits and is stopped has not failed"


def test_what_waits_for_long_tells_its_story_once_and_without_a_gap(copy: Copy) -> None:
    row = wanted(copy)

    def story() -> list[tuple[str, str]]:
        return list(Transition.objects.filter(deployment=row).order_by("pk").values_list("old", "new"))

    def look(**host: Any) -> None:
        Host.objects.update(**host)
        Deployment.objects.update(next_attempt_at=None)
        looked_at(row)

    for _ in range(5):
        look(lost_at=timezone.now())
    waits = [("stopped", "queued"), ("queued", "placing"), ("placing", "queued")]
    assert story() == waits
    look(lost_at=None, facts={**copy.host.facts, "ram_available_mib": 10})
    assert story() == [*waits, *waits[1:]], "another reason is told"
    look(facts=copy.host.facts)
    told = story()
    assert told[5:8] == [("queued", "placing"), ("placing", "preparing"), ("preparing", "starting")]
    assert all(before[1] == after[0] for before, after in pairwise(told))


def test_each_start_is_one_and_the_next_one_is_its_child(copy: Copy) -> None:
    executable = copy.host.runtimes.get()
    row = ended(copy, "no-engine")
    services.start(row, actor=None)
    row = looked_at(row)
    assert row.state == "failed" and row.runs.count() == 2 and row.run.parent.number == 1
    executable.pk = None
    executable.save()
    services.start(row, actor=None)
    row = looked_at(row)
    assert (row.state, row.run.number, row.run.parent.number) == ("starting", 3, 2)
    failures.mended(row.run_id)
    assert Failure.objects.get(run__number=2).mended_change == failures.SAME, "no other host and engine: it had none"
    row.refresh_from_db()
    assert row.restart_asked == row.restart_done


def test_a_wish_for_detail_is_used_up(copy: Copy) -> None:
    row = wanted(copy, options={"max_modl_len": 5})
    Deployment.objects.filter(pk=row.pk).update(state="failed")
    services.start_in_detail(row, actor=None)
    row = looked_at(row)
    assert (row.state, row.run.detail, row.detail_asked) == ("failed", True, 0)


def test_two_workers_make_one(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that slept through its lease writes nothing."""
    from deployments import placing

    no_engine(copy)
    row = wanted(copy)
    kept = placing.failures.keep

    def slow(*args: Any, **more: Any) -> Any:
        Deployment.objects.filter(pk=row.pk).update(claim_token=uuid.uuid4())
        return kept(*args, **more)

    monkeypatch.setattr(placing.failures, "keep", slow)
    row = looked_at(row)
    assert row.state == "placing" and not Run.objects.exists() and not Failure.objects.exists()


# --- the class --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "code"),
    [
        (["copy.none", "gpu.too_small"], "gpu.too_small"),
        (["copy.none", "runtime.none", "copy.none"], "runtime.none"),
        (["host.paused", "copy.none"], "copy.none"),
        (["runtime.none", "host.ram_too_small"], "host.ram_too_small"),
        (["gguf.no_cpu_kernels", "gpu.too_small"], "gguf.no_cpu_kernels"),
        (["option.not_a_choice", "flag.unknown"], "option.not_a_choice"),
        ([], "place.none"),
    ],
    ids=["gpu", "engine", "copy", "ram", "first", "settings", "none"],
)
def test_the_place_that_came_farthest_is_counted(candidates: list[str], code: str) -> None:
    reason = {"code": "place.none", "params": {"candidates": [{"name": "quay", "code": c} for c in candidates]}}
    assert failures.class_of(reason) == code


OF_PLACES = ("host.", "copy.", "runtime.", "cpu.", "gpu.", "gguf.", "model.", "parallel.", "option.", "flag.", "args.",
             "env.", "secret.", "placing.", "artifact.", "start.", "path_", "code_")  # fmt: skip


def test_every_class_has_a_title_that_needs_no_numbers() -> None:
    no_end = (*PASSING, "start.stalled", "start.silent", "start.hung_usual", "gpu.used_by", "gpu.mixed", "gpu.slow")
    codes = [code for code in CODES if code.startswith(OF_PLACES) and not code.startswith(no_end)]
    assert len(codes) > 60
    poor = {code: title_of(code) for code in codes if "—" in title_of(code)}
    assert not poor


# --- pages ------------------------------------------------------------------------------------------------------------


def page(client: Client, name: str, *args: Any, **query: str) -> str:
    answer = client.get(reverse(name, args=args), query)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("what", ENDS)
def test_pages_show_it_well(operator: Client, copy: Copy, what: str) -> None:
    row = ended(copy, what)
    title = title_of(ENDS[what][2])
    record = page(operator, "run", row.run_id)
    assert "Nothing was started" in record and "data-log" not in record and "Exact command" not in record
    assert "How far it came" in record and "Placed" not in record.split("How far it came")[-1]
    assert "GPU " not in record.split("<main")[1].split("What happened, in order")[0].replace("GPU memory", "")
    failed = page(operator, "deployment", row.pk)
    assert f'href="{reverse("run", args=[row.run_id])}"' in failed and "Look at the whole record" in failed
    assert "It ended at step" not in failed and "Every start" in failed and "No. 1" in failed
    listed = page(operator, "failures")
    assert title.rstrip(".") in listed and "team-chat, start 1" in listed
    assert page(operator, "failures", **{"class": ENDS[what][2]}).count("team-chat, start 1") == 1
    (exported,), _more = failures_export.part_of(failures_read.matching(Filters()), None)
    assert (exported["run"], exported["class"], exported["error"]) == (str(row.run_id), ENDS[what][2], [])
    assert failures_export.as_csv([exported], first=True) and failures_export.as_json([exported], first=True)


def test_the_record_of_the_newest_start_is_the_one_that_is_opened(operator: Client, copy: Copy) -> None:
    row = wanted(copy)
    old = builders.failed(row, copy)
    Deployment.objects.filter(pk=row.pk).update(state="failed")
    no_engine(copy)
    services.start(row, actor=None)
    row = looked_at(row)
    assert row.run_id != old.pk and row.run.parent_id == old.pk
    shown = page(operator, "deployment", row.pk)
    assert "The attempts so far" in shown and "No engine that fits" in shown
    assert [fix.code for fix in remedies.of(row)], "something can be done about it"


def test_what_worked_before_is_offered_again(operator: Client, copy: Copy) -> None:
    row = wanted(copy)
    good = builders.make_run(row, copy, job_state="ended", outcome="stopped", ended_at=timezone.now())
    builders.ready(row, good)
    services.edit(row, spec=services.parse_spec({**row.revision.spec, "options": {"max_modl_len": 5, "max_num_seqs": 4}}),
                  actor=None)  # fmt: skip
    row = looked_at(row)
    assert (row.state, row.reason["code"]) == ("failed", "flag.unknown")
    shown = page(operator, "deployment", row.pk)
    assert "Changed since" in shown and "fix.back_to" in [fix.code for fix in remedies.of(row)]
    assert "Host" not in shown.split("Changed since")[1].split("</dl>")[0]


def test_the_api_shows_it(copy: Copy) -> None:
    row = ended(copy, "no-engine")
    user = User.objects.create_user(username="ada", role="admin")
    _token, secret = create_token(user, "t", actor=user, scope="api:read")
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    (item,) = client.get(f"/api/v1/deployments/{row.pk}/runs").json()["items"]
    assert (item["outcome"], item["host"], item["gpus"], item["command"], item["log_size"]) == ("failed", "", [], [], 0)
    assert item["reason"]["code"] == "place.none" and item["engine"] == ""
    assert client.get(f"/api/v1/runs/{row.run_id}").json()["id"] == str(row.run_id)
    assert client.get(f"/api/v1/runs/{row.run_id}/log").status_code == 404
    (failed,) = client.get("/api/v1/failures/runs").json()["items"]
    assert (failed["class"], failed["host"], failed["engine"]) == ("runtime.none", "", "")
    assert client.get(f"/api/v1/deployments/{row.pk}").json()["host"] is None
