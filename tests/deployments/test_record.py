"""What was foreseen, measured and answered: kept by the loop, learned from, compared on pages and in the API."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from deployments import acts, golden, measured_runs, placing, preflight, revisions, services
from deployments.models import Deployment, Run
from deployments.reconcile import load
from deployments.spec import DeploymentSpec
from models_catalog.models import Copy
from panel.accounts.models import User
from tests.api.conftest import program
from tests.deployments import builders
from tests.deployments.pure.test_measured import facts

pytestmark = pytest.mark.django_db

LOG = (
    b"INFO 11-30 14:02:10 [worker.py:1] Available KV cache memory: 20.40 GiB\n"
    b"INFO 11-30 14:02:10 [kv.py:1] GPU KV cache size: 244,304 tokens, Maximum concurrency for 4,096 tokens per request: 59.6x\n"
)  # fmt: skip
FORESEEN = {
    "weights_gib": 14.2, "kv_gib": 20.0, "kv_tokens": 240_000, "concurrency": 58.6, "source": "kv.left", "tp": 1,
    "pp": 1, "dp": 1, "gpu": "NVIDIA L40S", "shift_gib": 0.0, "launches": 0, "context": 4096, "start_s": 40.0,
    "ranges": {"kv_gib": [19.5, 20.5], "kv_tokens": [230_000, 250_000], "concurrency": [56, 61], "weights_gib": [14, 14.4]},
}  # fmt: skip
MEASURED = {"weights_gib": 14.25, "kv_gib": 20.4, "kv_tokens": 244_304, "concurrency": 59.6, "context": 4096}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy() -> Copy:
    made = builders.make_copy(builders.make_host(gpus=1), "Qwen2.5-7B-Instruct")
    made.artifact.facts = {**facts().to_dict(), "tasks": ["generate"], "tokenizer": "tokenizer.json"}
    made.artifact.save()
    return made


@pytest.fixture
def row(copy: Copy) -> Deployment:
    return builders.make_deployment(copy, state="ready")


def start(row: Deployment, copy: Copy, *, residual: float | None = 0.4, **values: Any) -> Run:
    """A start that got ready and was measured."""
    now = timezone.now()
    known = {
        "family": "qwen2", "foreseen": FORESEEN, "measured": MEASURED, "residual_gib": residual, "ready_at": now,
        "answer": {"question": "?", "answer": "Paris.", "latency_ms": 84, "at": now.timestamp()},
        "ended_at": now, "outcome": "stopped",
    }  # fmt: skip
    return builders.make_run(row, copy, job_state="ended", **{**known, **values})


def as_role(role: str) -> Client:
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    client.force_login(User.objects.get_or_create(username=f"a {role}", defaults={"role": role})[0])
    return client


def page(client: Client, name: str, *args: Any, query: str = "") -> str:
    answer = client.get(reverse(name, args=args) + query)
    assert answer.status_code == 200
    return answer.content.decode().replace("\u00a0", " ")


# --- kept and learned -----------------------------------------------------------------------------------------------


def test_the_log_is_kept_beside_what_was_foreseen(row: Deployment, copy: Copy) -> None:
    run = builders.make_run(row, copy, log=b"", foreseen=FORESEEN, family="qwen2")
    run.job.log.size, run.job.log.tail = len(LOG), LOG
    run.job.log.save()
    loaded = load(row.pk)
    assert loaded is not None
    acts.read_log(loaded)
    run.refresh_from_db()
    assert run.measured == {"kv_gib": 20.4, "kv_tokens": 244_304, "concurrency": 59.6, "context": 4096}
    assert run.residual_gib == 0.4


def test_a_plan_is_corrected_by_the_starts_on_its_host(row: Deployment, copy: Copy) -> None:
    spec = DeploymentSpec(artifact_id=copy.artifact_id, options={"max_model_len": 4096})
    plain = preflight.check(spec, name="x").placement
    assert plain is not None and plain.plan is not None
    for _ in range(2):
        start(row, copy, engine_version="0.32.0")
    again = preflight.check(spec, name="x").placement
    assert again is not None and again.plan is not None and again.plan.ranks[0].kv == plain.plan.ranks[0].kv  # few
    start(row, copy, engine_version="0.32.0")
    taught = preflight.check(spec, name="x").placement
    assert taught is not None and taught.plan is not None
    kv, before = taught.plan.ranks[0].kv, plain.plan.ranks[0].kv
    assert kv.value == pytest.approx((before.value or 0) + 0.4)
    assert (kv.high or 0) - (kv.low or 0) < (before.high or 0) - (before.low or 0)
    assert kv.reason.params["launches"] == 3


@pytest.mark.parametrize(
    "change",
    [{"engine_version": "0.31.0"}, {"family": "llama"}, {"ready_at": None}, {"residual_gib": None},
     {"foreseen": {**FORESEEN, "tp": 2}}, {"foreseen": {**FORESEEN, "gpu": "NVIDIA H100"}}, {"host": None}],
    ids=["version", "family", "not-ready", "unmeasured", "gpus", "gpu", "host"],
)  # fmt: skip
def test_other_kinds_of_starts_teach_nothing_here(row: Deployment, copy: Copy, change: dict[str, Any]) -> None:
    for _ in range(4):
        start(row, copy)
    here = (copy.host_id, "0.32.0", "NVIDIA L40S", 1)
    assert measured_runs.lessons_for(copy.artifact.facts)[here].launches == 4
    Run.objects.update(**change)
    assert here not in measured_runs.lessons_for(copy.artifact.facts)


def test_what_is_learned_costs_one_query_however_many_starts(row: Deployment, copy: Copy) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            measured_runs.lessons_for(copy.artifact.facts)
            measured_runs.accuracy()
        return len(seen)

    start(row, copy)
    once = queries()
    for _ in range(5):
        start(row, copy)
    assert queries() == once == 2


def test_lessons_have_an_index_of_their_own(row: Deployment, copy: Copy) -> None:
    start(row, copy)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # a small table would be read whole
    rows = Run.objects.filter(family="qwen2", residual_gib__isnull=False).order_by("-created_at")
    assert "run_taught" in rows.explain()


def test_a_new_run_keeps_its_estimate(row: Deployment, copy: Copy) -> None:
    start(row, copy)
    check = preflight.check(DeploymentSpec(artifact_id=copy.artifact_id), name=row.name)
    run = placing._begun(row, check, ask=False)
    assert run.family == "qwen2"
    assert run.foreseen["tp"] == 1
    assert run.foreseen["gpu"] == "NVIDIA L40S"
    assert run.foreseen["kv_gib"] > 0
    assert run.foreseen["start_s"] > 0


def test_the_plan_says_who_corrected_it(row: Deployment, copy: Copy) -> None:
    for _ in range(3):
        start(row, copy)
    client = program(User.objects.create_user(username="op", role="operator"))
    asked_for = json.dumps({"spec": {"artifact_id": copy.artifact_id}})
    assert (
        client.post("/api/v1/deployments/plan", asked_for, content_type="application/json").json()["corrected_by"] == 3
    )
    form = {
        "artifact": copy.artifact_id,
        "name": "x",
        "device": "auto",
        "gpu_count": 1,
        "task": "generate",
        "restart": "never",
    }
    text = as_role("operator").post(reverse("deployment-plan"), form).content.decode()
    assert "corrected by 3 starts on this host" in text


# --- pages ----------------------------------------------------------------------------------------------------------


def second(row: Deployment, **options: Any) -> None:
    spec = DeploymentSpec.model_validate(row.revision.spec)
    services.edit(row, spec=spec.model_copy(update={"options": options}), actor=None)
    row.refresh_from_db()


def asked(run: Run, *said: str) -> None:
    given = [
        {"question": question, "answer": answer, "error": "", "latency_ms": 9}
        for question, answer in zip(golden.USUAL, said, strict=False)
    ]
    Run.objects.filter(pk=run.pk).update(golden={"asked_at": 1.0, "answers": given})


def test_the_record_shows_estimated_and_measured(row: Deployment, copy: Copy) -> None:
    run = start(row, copy, foreseen={**FORESEEN, "launches": 12})
    asked(run, "42")
    text = page(as_role("viewer"), "run", run.pk)
    assert "≈ 20.0 GiB" in text and "20.4 GiB" in text and "-1.96 %" in text
    assert "corrected by 12 starts on this host" in text
    assert golden.USUAL[0] in text and ">42<" in text


def test_another_length_is_shown_and_not_compared(row: Deployment, copy: Copy) -> None:
    run = start(row, copy, measured={**MEASURED, "context": 32_768, "concurrency": 7.4})
    text = page(as_role("viewer"), "run", run.pk)
    assert "Conversations at once (32,768)" in text and "of 4,096 tokens each" in text and "691" not in text


def test_settings_as_a_table_with_what_came_of_each(row: Deployment, copy: Copy) -> None:
    start(row, copy)
    second(row, max_model_len=2048)
    text = page(as_role("operator"), "deployment", row.pk)
    assert "59.6" in text and "≈ 58.6" in text and "84 ms" in text
    assert "Several changes at once" not in text
    second(row, max_model_len=1024, dtype="float16")
    text = page(as_role("operator"), "deployment", row.pk)
    assert "Several changes at once" in text
    assert f"{reverse('deployment-compare', args=[row.pk])}?a=2&amp;b=3" in text


def test_two_settings_side_by_side(row: Deployment, copy: Copy) -> None:
    asked(start(row, copy), "42", "Mercury", "RED GREEN BLUE")
    second(row, max_model_len=2048, dtype="float16")
    asked(start(row, copy, revision=row.revision, measured={**MEASURED, "kv_gib": 22.1}), "42", "Venus")
    text = page(as_role("viewer"), "deployment-compare", row.pk, query="?a=2&b=1")
    assert "Settings 1 and 2" in text and "Settings 1 and 2" in page(as_role("viewer"), "deployment-compare", row.pk)
    assert "20.4 GiB" in text and "22.1 GiB" in text and "More than one setting differs" in text
    assert text.count("differs</span>") == 1 and "Mercury" in text and "not asked" in text
    assert "Go back to these" not in text
    assert "Go back to these" in page(as_role("operator"), "deployment-compare", row.pk)


FAILED = {
    "ready_at": None, "answer": None, "measured": {}, "outcome": "failed",
    "reason": {"code": "start.exited", "params": {}},
}  # fmt: skip


def test_settings_that_never_got_ready_tell_what_was_foreseen_and_how_they_failed(row: Deployment, copy: Copy) -> None:
    start(row, copy)
    second(row, max_model_len=2048)
    second(row, max_model_len=1024)
    told = {**FORESEEN, "concurrency": 117.2}
    run = start(row, copy, revision=row.revisions.get(number=2), foreseen=told, **FAILED)
    text = page(as_role("operator"), "deployment", row.pk)
    had = text[text.index('id="rv-h"') :]
    assert "≈ 117" in had and "Failed" in had and reverse("run", args=[run.pk]) in had and "never started" in had
    text = page(as_role("operator"), "deployment-compare", row.pk, query="?a=1&b=2")
    assert "≈ 117" in text and "Failed" in text
    client = program(User.objects.create_user(username="op", role="operator"))
    came = client.get(f"/api/v1/deployments/{row.pk}/revisions").json()["items"][1]["came"]
    assert (came["ready_s"], came["outcome"], came["reason"]) == (None, "failed", "start.exited")
    assert came["foreseen"]["concurrency"] == 117.2
    # One that got ready tells more than a failure after it.
    start(row, copy, revision=row.revisions.get(number=1), **FAILED)
    assert revisions.best_starts(row.revisions.all())[row.revisions.get(number=1).pk].ready_at is not None


def test_older_settings_are_a_click_away(row: Deployment, copy: Copy) -> None:
    start(row, copy)
    for number in range(12):
        second(row, max_model_len=1000 + number)
    client = as_role("operator")
    text = page(client, "deployment", row.pk)
    assert ">No. 13<" in text and ">No. 4<" in text and ">No. 3<" not in text and "?before=4#rv-h" in text
    text = page(client, "deployment", row.pk, query="?before=4")
    assert ">No. 3<" in text and ">No. 1<" in text and ">No. 4<" not in text
    assert "Older settings" not in text and "Newest settings" in text and "the first" in text
    for odd in ("?before=1", "?before=0", "?before=x", "?before=99999999999"):
        assert client.get(reverse("deployment", args=[row.pk]) + odd).status_code == 200


def test_answers_that_differ_are_told_where_people_look(row: Deployment, copy: Copy) -> None:
    asked(start(row, copy), "42", "Mercury", "RED GREEN BLUE")
    client = as_role("viewer")
    second(row, max_model_len=2048)
    run = start(row, copy, revision=row.revision)
    builders.ready(row, run)
    asked(run, "42", "Venus", "RED GREEN BLUE")
    text = page(client, "deployment", row.pk)
    assert text.count("1 of 3 golden answers differs from settings 1") == 2
    assert text.count(f"{reverse('deployment-compare', args=[row.pk])}?a=1&amp;b=2") == 3  # and what changed
    asked(run, "42", "Mercury", "RED GREEN BLUE")
    assert "golden answers diff" not in page(client, "deployment", row.pk)


def test_the_same_settings_on_another_engine_are_compared_too(row: Deployment, copy: Copy) -> None:
    asked(start(row, copy, engine_version="0.31.0"), "42", "Mercury")
    asked(start(row, copy, engine_version="0.32.0"), "41", "Venus", "RED")
    assert revisions.differing(row, [1]) == {1: revisions.Differing(2, 2, 1, "0.31.0")}
    assert revisions.differing(row, [2]) == {}


@pytest.mark.parametrize("query", ["?a=9&b=1", "?a=1&b=1", "?a=99999999999999999999"])
def test_settings_that_are_not_there(row: Deployment, query: str) -> None:
    second(row, max_model_len=2048)
    answer = as_role("viewer").get(reverse("deployment-compare", args=[row.pk]) + query)
    assert answer.status_code in (200, 404)
    assert (answer.status_code == 200) == ("9999" in query)


def test_answers_stand_apart_by_settings_version_and_size(row: Deployment, copy: Copy) -> None:
    for version, tp, said in (("0.31.0", 1, "41"), ("0.32.0", 1, "42"), ("0.32.0", 2, "42"), ("0.32.0", 2, "42")):
        asked(start(row, copy, engine_version=version, foreseen={**FORESEEN, "tp": tp}), said)
    table = revisions.answers(row)
    assert [(c.revision, c.version, c.tp) for c in table.columns] == [
        (1, "0.32.0", 2),
        (1, "0.32.0", 1),
        (1, "0.31.0", 1),
    ]
    assert [cell.differs for cell in table.rows[0][1]] == [False, False, True]
    assert table.differing == 1
    assert "1 question was answered differently" in page(as_role("viewer"), "deployment-answers", row.pk)


def test_one_start_alone_is_like_nothing_yet(row: Deployment, copy: Copy) -> None:
    asked(start(row, copy, engine_version="0.32.0"), "42")
    text = page(as_role("viewer"), "deployment-answers", row.pk)
    assert "nothing to compare yet" in text and "every answer is the same" not in text
    assert "vLLM 0.32.0 ·" in text
    asked(start(row, copy, engine_version="0.33.0"), "42")
    assert "every answer is the same" in page(as_role("viewer"), "deployment-answers", row.pk)


def test_a_start_on_a_cpu_is_measured_without_gpus(row: Deployment, copy: Copy) -> None:
    run = start(row, copy)
    Run.objects.filter(pk=run.pk).update(placement={**run.placement, "gpus": [0]})
    assert ">Of each GPU<" in page(as_role("viewer"), "run", run.pk)
    Run.objects.filter(pk=run.pk).update(placement={**run.placement, "gpus": []})
    text = page(as_role("viewer"), "run", run.pk)
    assert "Of each GPU" not in text and ">Value<" in text


def test_who_may_change_the_questions(row: Deployment) -> None:
    url = reverse("deployment-questions", args=[row.pk])
    assert as_role("viewer").post(url, {"question": ["One?"]}).status_code == 403
    assert Client().post(url, {"question": ["One?"]}).status_code in (302, 401, 403)
    row.refresh_from_db()
    assert row.questions is None
    assert 'name="question"' not in page(as_role("viewer"), "deployment-answers", row.pk)
    assert as_role("operator").post(url, {"question": ["One?", "", "Two?"]}).status_code == 302
    row.refresh_from_db()
    assert row.questions == ["One?", "Two?"]
    answer = as_role("operator").post(url, {"question": ["x" * 501, "kept"]})
    assert answer.status_code == 422 and "kept" in answer.content.decode()
    assert as_role("operator").post(url, {"question": ["One?"], "usual": "1"}).status_code == 302
    row.refresh_from_db()
    assert row.questions is None


def test_how_close_the_estimates_are(row: Deployment, copy: Copy) -> None:
    assert "No start has been measured yet" in page(as_role("viewer"), "accuracy")
    for _ in range(3):
        start(row, copy)
    start(row, copy, foreseen={**FORESEEN, "kv_gib": 10.2, "launches": 3})
    text = page(as_role("viewer"), "accuracy")
    assert "qwen2" in text and "1.96 %" in text and "50.00 %" in text and "1 corrected" in text


def test_pages_cost_the_same_however_many_starts_and_settings(row: Deployment, copy: Copy) -> None:
    client = as_role("operator")

    def queries() -> list[int]:
        counts = []
        for name, args in (
            ("deployment", [row.pk]),
            ("deployment-compare", [row.pk]),
            ("deployment-answers", [row.pk]),
            ("accuracy", []),
        ):
            with CaptureQueriesContext(connection) as seen:
                assert client.get(reverse(name, args=args)).status_code == 200
            counts.append(len(seen))
        return counts

    asked(start(row, copy), "42")
    second(row, max_model_len=2048)
    asked(start(row, copy, revision=row.revision), "42")
    queries()  # the session's own
    once = queries()
    for number in range(4):
        second(row, max_model_len=1000 + number)
        asked(start(row, copy, revision=row.revision), "42")
    assert queries() == once


# --- API ------------------------------------------------------------------------------------------------------------


def test_the_api_tells_the_same(row: Deployment, copy: Copy) -> None:
    asked(start(row, copy), "42")
    second(row, max_model_len=2048)
    Run.objects.update(created_at=timezone.now() - timedelta(seconds=40))
    client = program(User.objects.create_user(username="op", role="operator"))
    where = f"/api/v1/deployments/{row.pk}"
    newest, first = client.get(f"{where}/revisions").json()["items"]
    assert (newest["number"], newest["current"], newest["came"]) == (2, True, None)
    assert (first["came"]["ready_s"] is not None, first["came"]["outcome"], first["came"]["reason"]) == (
        True, "stopped", "",
    )  # fmt: skip
    assert newest["changes"] == {"options.max_model_len": [None, 2048]}
    assert (first["changes"], first["came"]["measured"]) == ({}, MEASURED)
    assert first["came"]["first_answer_ms"] == 84
    last = client.get(f"{where}/runs").json()["items"][0]
    assert (last["foreseen"]["kv_gib"], last["measured"], last["golden"][0]["answer"]) == (20.0, MEASURED, "42")
    [accurate] = client.get("/api/v1/accuracy").json()["items"]
    assert (accurate["family"], accurate["runs"]) == ("qwen2", 1)
    told = client.put(f"{where}/golden", json.dumps({"questions": ["One?"]}), content_type="application/json").json()
    assert (told["questions"], told["usual"]) == (["One?"], False)
    assert told["starts"][0]["answers"][0]["answer"] == "42"
    many = client.put(f"{where}/golden", json.dumps({"questions": list("abcd")}), content_type="application/json")
    assert many.status_code == 422
