"""The deployments' pages: who may see and do what, every state's page, forms, hostile names, flat queries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from deployments import queries, services
from deployments.diagnosis.failure import explain
from deployments.models import Deployment, Run
from panel.accounts.models import User
from panel.audit.models import Event
from tests.deployments import builders

pytestmark = pytest.mark.django_db
CORPUS = Path(__file__).parents[1] / "data" / "diagnosis" / "corpus"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here: what would be sent is tested on a whole Berth."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def as_(db: None) -> Callable[[str], Client]:
    def make(role: str) -> Client:
        client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
        if role != "stranger":
            user, _made = User.objects.get_or_create(username=f"{role}-1", defaults={"role": role})
            client.force_login(user)
        return client

    return make


@pytest.fixture
def copy(db: None) -> Any:
    return builders.make_copy(builders.make_host())


async def gathered(answer: Any) -> bytes:
    return b"".join([part async for part in answer])


def text(answer: Any) -> str:
    return answer.content.decode()


# --- who may ----------------------------------------------------------------------------------------------------------

PAGES = ["deployments", "deployment-new"]
ACTS = ["deployment-start", "deployment-stop", "deployment-restart", "deployment-delete"]


@pytest.mark.parametrize("act", ACTS)
def test_only_operators_act_and_refusals_are_recorded(as_, copy, act: str) -> None:
    row = builders.make_deployment(copy)
    where = reverse(act, args=[row.pk])
    assert as_("stranger").post(where).status_code == 302
    assert as_("viewer").post(where).status_code == 403
    row.refresh_from_db()
    assert (row.desired, row.deleted_at) == ("stopped", None)
    assert Event.objects.filter(outcome="denied", actor="viewer-1").exists()
    assert as_("operator").post(where).status_code == 302
    assert as_("operator").get(where).status_code == 405


def test_strangers_see_nothing_and_viewers_see_but_cannot_change(as_, copy) -> None:
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy)
    builders.ready(row, run)
    addresses = [
        reverse("deployments"),
        reverse("deployment", args=[row.pk]),
        reverse("run", args=[run.pk]),
        reverse("run-log", args=[run.pk]),
        reverse("run-log-file", args=[run.pk]),
        reverse("deployment-live", args=[row.pk]),
        reverse("deployments-live"),
    ]
    for address in addresses:
        assert as_("stranger").get(address).status_code == 302, address
    for address in addresses[:5]:
        assert as_("viewer").get(address).status_code == 200, address
    page = text(as_("viewer").get(addresses[1]))
    assert reverse("deployment-stop", args=[row.pk]) not in page
    assert as_("viewer").get(reverse("deployment-new")).status_code == 403
    assert as_("viewer").get(reverse("deployment-edit", args=[row.pk])).status_code == 403


def test_what_is_not_there_is_404(as_) -> None:
    import uuid

    assert as_("admin").get(reverse("deployment", args=[99])).status_code == 404
    assert as_("admin").get(reverse("run", args=[uuid.uuid4()])).status_code == 404
    assert as_("admin").post(reverse("deployment-start", args=[99])).status_code == 404


# --- every state has a page that says what is and what next -----------------------------------------------------------

MOVING = ["queued", "placing", "preparing", "starting", "stopping", "lost"]


@pytest.mark.parametrize("state", MOVING)
def test_a_moving_deployment_shows_its_steps_or_its_reason(as_, copy, state: str) -> None:
    reason = {"code": "lost.no_contact", "params": {}} if state == "lost" else {}
    row = builders.make_deployment(copy, state=state, reason=reason)
    if state not in ("queued", "placing"):
        builders.make_run(row, copy)
    page = text(as_("operator").get(reverse("deployment", args=[row.pk])))
    assert "team-chat" in page
    if state in ("starting", "lost"):
        assert "Loading weights 50\u00a0%" in page and "1 / 2" in page
    if state == "lost":
        assert "silent" in page


def test_the_table_of_starts_says_nothing_that_stops_being_true(as_, copy) -> None:
    row = builders.make_deployment(copy, state="starting")
    run = builders.make_run(row, copy)
    run.refresh_from_db()
    page = text(as_("viewer").get(reverse("deployment", args=[row.pk])))
    starts = page.split('aria-labelledby="hi-h"')[1].split("</section>")[0]
    assert f'<time datetime="{run.created_at:%Y-%m-%dT%H:%M}' in starts and " ago<" not in starts, starts
    Run.objects.filter(pk=run.pk).update(ended_at=timezone.now(), outcome="stopped")
    page = text(as_("viewer").get(reverse("deployment", args=[row.pk])))
    assert " ago<" in page.split('aria-labelledby="hi-h"')[1].split("</section>")[0]


def test_a_waiting_one_tells_why_for_every_place(as_, copy) -> None:
    params = {
        "candidates": [{"name": "quay", "code": "host.ram_used", "params": {"need_mib": 9216, "available_mib": 512}}]
    }
    row = builders.make_deployment(copy, state="queued", reason={"code": "place.none", "params": params})
    page = text(as_("viewer").get(reverse("deployment", args=[row.pk])))
    assert "9.0\u00a0GiB" in page and "0.5\u00a0GiB" in page


def test_ready_shows_address_answer_and_examples(as_, copy, settings) -> None:
    row = builders.make_deployment(copy, state="ready")
    builders.ready(row, builders.make_run(row, copy))
    page = text(as_("operator").get(reverse("deployment", args=[row.pk])))
    assert f"{settings.BERTH_PUBLIC_URL}/v1" in page
    assert "What is the capital of France?" in page and "Paris." in page
    assert "$BERTH_API_KEY" in page
    assert "118,784" in page


def test_everyone_who_sees_a_ready_model_may_ask_it(as_, copy) -> None:
    row = builders.make_deployment(copy, state="ready")
    builders.ready(row, builders.make_run(row, copy))
    page = text(as_("viewer").get(reverse("deployment", args=[row.pk])))
    assert reverse("deployment-ask", args=[row.pk]) in page
    assert reverse("deployment-stop", args=[row.pk]) not in page


def test_a_smaller_share_is_named_where_one_would_fit(as_, copy) -> None:
    place = {
        "name": "quay",
        "code": "gpu.busy",
        "params": {"need_mib": 72_000, "free_mib": 40_000, "total_mib": 80_000},
    }
    row = builders.make_deployment(
        copy, state="queued", reason={"code": "place.none", "params": {"candidates": [place]}}
    )
    assert "With a share of" not in text(as_("viewer").get(reverse("deployment", args=[row.pk])))
    place["params"]["fits_utilisation"] = 0.5
    Deployment.objects.filter(pk=row.pk).update(reason={"code": "place.none", "params": {"candidates": [place]}})
    page = text(as_("viewer").get(reverse("deployment", args=[row.pk])))
    assert "It starts when enough is free. With a share of 0.5 it would fit now." in page


def test_a_start_of_berths_own_says_which_attempt_it_is(as_, copy) -> None:
    row = builders.make_deployment(copy, state="starting", attempts=2)
    builders.make_run(row, copy)
    page = text(as_("viewer").get(reverse("deployment", args=[row.pk])))
    assert "Started again by itself after a failure: attempt 2 of 5." in page
    Deployment.objects.filter(pk=row.pk).update(attempts=0)
    assert "Started again by itself" not in text(as_("viewer").get(reverse("deployment", args=[row.pk])))


def test_the_address_without_a_number_leads_to_the_list(as_) -> None:
    assert as_("viewer").get("/deployments/")["Location"] == reverse("deployments")


def test_failed_shows_exit_first_error_and_ways_out(as_, copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    builders.failed(row, copy)
    page = text(as_("operator").get(reverse("deployment", args=[row.pk])))
    assert "exit code 1" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<script>alert(1)" not in page
    assert reverse("deployment-edit", args=[row.pk]) in page
    assert "4 / 8 · Loading weights" in page, "it says how far it got"


def test_a_failure_that_was_recognised_says_why_and_what_helps(as_, copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    builders.failed(row, copy)
    log = (CORPUS / "007.log").read_bytes()
    reason = explain(log=log, exit_code=1).reason
    Deployment.objects.filter(pk=row.pk).update(reason=reason)
    page = text(as_("operator").get(reverse("deployment", args=[row.pk])))
    assert ">The context asked for is longer than the model was made for</h2>" in page
    assert "The engine ended with exit code 1." in page
    assert "<h3>Change max_model_len from 204800 to 4096.</h3>" in page
    assert page.index("Change max_model_len") < page.index("<h3>Start again unchanged</h3>")
    in_chinese = as_("operator").get(reverse("deployment", args=[row.pk]), headers={"Accept-Language": "zh-hans"})
    assert "The context asked for" not in text(in_chinese) and "204800" in text(in_chinese)


def test_a_failure_that_someone_put_to_rest_needs_nobody(as_, copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    builders.failed(row, copy)
    page, home = reverse("deployment", args=[row.pk]), reverse("deployments")
    assert "Leave it stopped" in text(as_("operator").get(page))
    assert "Leave it stopped" not in text(as_("viewer").get(page))
    assert queries.counts()["attention"] == 1 and f"{row.name} failed" in text(as_("viewer").get(home))
    as_("operator").post(reverse("deployment-stop", args=[row.pk]))
    assert (queries.counts()["attention"], queries.counts()["stopped"]) == (0, 1)
    assert f"{row.name} failed" not in text(as_("viewer").get(home))
    assert row.name in text(as_("viewer").get(home, {"state": "stopped"}))
    assert "Leave it stopped" not in text(as_("operator").get(page))


def test_a_start_on_a_cpu_says_nothing_of_gpus(as_, copy) -> None:
    row = builders.make_deployment(copy, state="starting", wanted_by="system")
    begun = timezone.now().timestamp() - 40
    builders.make_run(row, copy, phases=[
        {"code": "start", "start": begun, "end": begun + 2, "done": None, "total": None},
        {"code": "load", "start": begun + 2, "end": None, "done": 1, "total": 2},
    ])  # fmt: skip
    page = text(as_("viewer").get(reverse("deployment", args=[row.pk])))
    assert "The model is being loaded" in page
    assert "CUDA graphs" not in page and "GPU at 0" not in page
    assert "started by Berth" in page


def test_a_stall_is_shown_and_nothing_is_ended(as_, copy, settings) -> None:
    row = builders.make_deployment(copy, state="starting")
    long_ago = timezone.now().timestamp() - settings.BERTH_STALL_S - 61
    builders.make_run(row, copy, status={"still_since": long_ago})
    page = text(as_("operator").get(reverse("deployment", args=[row.pk])))
    assert "Nothing has moved for 11 min" in page


def test_a_part_for_another_state_loads_the_page_anew(as_, copy) -> None:
    row = builders.make_deployment(copy, state="ready")
    builders.ready(row, builders.make_run(row, copy))
    address = reverse("deployment", args=[row.pk])
    answer = as_("viewer").get(address, {"part": "live", "look": "moving"}, headers={"HX-Request": "true"})
    assert (answer.status_code, answer["HX-Redirect"]) == (204, address)
    same = as_("viewer").get(address, {"part": "live", "look": "ready"}, headers={"HX-Request": "true"})
    assert same.status_code == 200 and "<html" not in text(same)


def test_a_page_opened_before_the_job_gets_the_log_when_there_is_one(as_, copy) -> None:
    row = builders.make_deployment(copy, state="queued")
    address = reverse("deployment", args=[row.pk])
    before = as_("viewer").get(address)
    asks = {"part": "live", "look": before.context["look"]}
    assert 'data-log="' not in text(before)
    assert as_("viewer").get(address, asks, headers={"HX-Request": "true"}).status_code == 200
    builders.make_run(row, copy)
    Deployment.objects.filter(pk=row.pk).update(state="starting")
    answer = as_("viewer").get(address, asks, headers={"HX-Request": "true"})
    assert (answer.status_code, answer["HX-Redirect"]) == (204, address)
    after = as_("viewer").get(address)
    assert 'data-log="' in text(after)
    again = as_("viewer").get(address, {"part": "live", "look": after.context["look"]}, headers={"HX-Request": "true"})
    assert "<title>team-chat · Starting" in text(again), "the tab says the state too"


def test_the_form_lists_what_cannot_be_deployed_last_and_closed(as_, copy) -> None:
    coded = builders.make_copy(copy.host, "A-first-by-name")
    coded.artifact.facts = {**coded.artifact.facts, "needs_remote_code": True}  # nobody allowed that
    coded.artifact.save()
    page = text(as_("operator").get(reverse("deployment-new")))
    open_one, closed = page.index(copy.artifact.model.name), page.index("A-first-by-name")
    assert open_one < closed
    assert "disabled required" in page[open_one:closed] and "its own program code" in page[closed:]


def test_the_record_of_a_deleted_deployment_stays(as_, copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    run = builders.failed(row, copy)
    services.delete(row, actor=None)
    assert as_("viewer").get(reverse("deployment", args=[row.pk])).status_code == 404
    page = text(as_("viewer").get(reverse("run", args=[run.pk])))
    assert "was deleted" in page and "VLLM_TARGET_DEVICE=cpu" in page


# --- logs -------------------------------------------------------------------------------------------------------------


def test_logs_by_offset_and_as_a_file(as_, copy) -> None:
    row = builders.make_deployment(copy, state="starting")
    run = builders.make_run(row, copy)
    client, where = as_("viewer"), reverse("run-log", args=[run.pk])
    part = client.get(where, {"offset": 10})
    assert part.content == builders.LOG[10:]
    assert (part["X-Log-Start"], part["X-Log-Size"]) == ("10", str(len(builders.LOG)))
    assert part["Content-Type"].startswith("text/plain") and part["X-Content-Type-Options"] == "nosniff"
    assert client.get(where, {"offset": -5}).content == builders.LOG[-5:]
    assert client.get(where, {"offset": "x"}).status_code == 422
    whole = client.get(reverse("run-log-file", args=[run.pk]))
    assert whole.is_async, "sent part by part: a plain iterator would first be collected in memory, whole"
    assert async_to_sync(gathered)(whole) == builders.LOG
    assert "attachment" in whole["Content-Disposition"]


# --- forms ------------------------------------------------------------------------------------------------------------


def form(copy: Any, **values: Any) -> dict[str, Any]:
    return {
        "artifact": copy.artifact_id, "name": "my-model", "device": "cpu", "task": "generate", "kv_cache_gib": 1,
        "restart": "on_failure", **values,
    }  # fmt: skip


def test_deploying_writes_intent_and_one_audit_row(as_, copy) -> None:
    answer = as_("operator").post(reverse("deployment-new"), form(copy, max_model_len=1024, extra_args="--seed 7"))
    row = Deployment.objects.get(name="my-model")
    assert answer["Location"] == reverse("deployment", args=[row.pk])
    assert row.desired == "running"
    assert row.revision.spec["options"] == {"max_model_len": 1024}
    assert row.revision.spec["extra_args"] == ["--seed", "7"]
    event = Event.objects.get(verb="deployment.created")
    assert (event.actor, event.target) == ("operator-1", "my-model")


def test_saving_without_starting_starts_nothing(as_, copy) -> None:
    as_("operator").post(reverse("deployment-new"), form(copy, act="save"))
    assert Deployment.objects.get().desired == "stopped"


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""}, {"name": "Big Name"}, {"name": "a" * 64}, {"name": "../../etc"}, {"name": "x;rm -rf /"},
        {"name": "<script>alert(1)</script>"}, {"name": "a' OR 1=1--"}, {"name": "模型"}, {"artifact": 999_999},
        {"artifact": "1; DROP TABLE"}, {"max_model_len": "-5"}, {"max_model_len": "$(id)"}, {"kv_cache_gib": "1e99"},
        {"gpu_memory_utilization": "nan"}, {"device": "toaster"}, {"gpus": ["GPU-of-another"]},
        {"extra_args": "--x 'open"}, {"extra_args": "x" * 9000}, {"extra_args": "a\x00b"}, {"restart": "always"},
    ],
)  # fmt: skip
def test_a_bad_form_comes_back_with_422_and_changes_nothing(as_, copy, bad: dict[str, Any]) -> None:
    answer = as_("operator").post(reverse("deployment-new"), form(copy, **bad))
    assert answer.status_code == 422
    assert not Deployment.objects.exists()
    assert "<script>alert" not in text(answer)


def test_a_taken_name_is_said_at_its_field_and_free_again_after_deletion(as_, copy) -> None:
    row = builders.make_deployment(copy, "my-model")
    answer = as_("operator").post(reverse("deployment-new"), form(copy))
    assert answer.status_code == 422 and "already" in text(answer)
    services.delete(row, actor=None)
    assert as_("operator").post(reverse("deployment-new"), form(copy)).status_code == 302


def test_a_secret_flag_is_hidden_in_the_form_and_kept_by_it(as_, copy) -> None:
    row = builders.make_deployment(copy, "hidden")
    spec = {**row.revision.spec, "extra_args": ["--hf-token", "very-secret", "--seed", "1"]}
    type(row.revision).objects.filter(pk=row.revision_id).update(spec=spec)
    where = reverse("deployment-edit", args=[row.pk])
    page = as_("operator").get(where)
    assert "very-secret" not in text(page) and "--hf-token" in text(page)
    form = page.context["form"]
    sent = {name: form.initial.get(name) or "" for name in form.fields if name != "gpus"}
    sent["extra_args"] = sent["extra_args"].replace("--seed 1", "--seed 2")
    assert as_("operator").post(where, sent).status_code == 302
    row.refresh_from_db()
    assert row.revision.spec["extra_args"] == ["--hf-token", "very-secret", "--seed", "2"]


def test_an_edit_is_a_new_revision_and_a_stale_one_is_refused(as_, copy) -> None:
    row = builders.make_deployment(copy)
    where = reverse("deployment-edit", args=[row.pk])
    assert "settings 1" in text(as_("operator").get(where))
    said = {key: value for key, value in form(copy, revision=1, max_model_len=512).items() if key != "name"}
    as_("operator").post(where, said)  # as the page does, which has no field for the name
    row.refresh_from_db()
    assert (row.revision.number, row.name) == (2, "team-chat")
    event = Event.objects.get(verb="deployment.edited")
    assert event.after["options.max_model_len"] == 512
    stale = as_("admin").post(where, form(copy, revision=1, max_model_len=999))
    assert stale.status_code == 409
    row.refresh_from_db()
    assert row.revision.number == 2


def test_the_plan_shows_place_memory_and_the_exact_command(as_, copy) -> None:
    answer = as_("operator").post(reverse("deployment-plan"), form(copy), headers={"HX-Request": "true"})
    page = text(answer)
    assert "quay, CPU" in page
    assert "/opt/quay/bin/vllm serve /models/Tiny-1B-Instruct" in page
    assert "VLLM_API_KEY=&quot;$VLLM_API_KEY&quot;" in page
    assert not Deployment.objects.exists()


def test_the_plan_says_why_not_for_every_place(as_, copy) -> None:
    page = text(as_("operator").post(reverse("deployment-plan"), form(copy, kv_cache_gib=4000)))
    assert "the whole host has" in page
    refused = text(
        as_("operator").post(reverse("deployment-plan"), form(copy, extra_args="--api-key x --middleware y"))
    )
    assert "--api-key would show a secret" in refused and "--middleware would load program code" in refused
    assert as_("viewer").post(reverse("deployment-plan"), form(copy)).status_code == 403


# --- scale ------------------------------------------------------------------------------------------------------------


def _queries(client: Client, address: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as caught:
        assert client.get(address).status_code == 200
    return len(caught)


def test_lists_ask_the_same_number_of_queries_for_twice_the_rows(as_, copy) -> None:
    client = as_("operator")

    def add(count: int, start: int) -> None:
        for n in range(start, start + count):
            row = builders.make_deployment(copy, f"d-{n}", state="ready")
            builders.ready(row, builders.make_run(row, copy))

    add(5, 0)
    few = _queries(client, reverse("deployments"))
    add(5, 5)
    assert _queries(client, reverse("deployments")) == few
    row = Deployment.objects.get(name="d-1")
    one = _queries(client, reverse("deployment", args=[row.pk]))
    for _ in range(5):
        builders.make_run(
            row, copy, job_state="ended", ended_at=timezone.now(), outcome="stopped", ready_at=timezone.now()
        )
    assert _queries(client, reverse("deployment", args=[row.pk])) <= one


def test_the_list_filters_and_searches(as_, copy) -> None:
    builders.make_deployment(copy, "alpha", state="failed")
    builders.make_deployment(copy, "beta", state="stopped")
    client = as_("viewer")
    assert "beta" not in text(client.get(reverse("deployments"), {"state": "attention"}))
    found = text(client.get(reverse("deployments"), {"q": "bet"}))
    assert "beta" in found and ">alpha<" not in found
    assert "Nothing matches" in text(client.get(reverse("deployments"), {"q": "' OR 1=1 --"}))


def test_an_empty_panel_leads_to_the_first_step(as_) -> None:
    assert "Three steps" in text(as_("admin").get(reverse("deployments")))
