"""What failed: kept at the end of a run, told apart, mended by the next start, judged by people, saved as files."""

import csv
import importlib
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from deployments import acts, failures, failures_read, run_log
from deployments.diagnosis.failure import explain
from deployments.models import Deployment, Failure, Revision, Run
from deployments.pages import failed
from deployments.reconcile import reconcile
from deployments.wording import label_of
from models_catalog.models import Copy
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Conflict
from panel.fleet import logstore
from panel.fleet.models import JobLog
from tests.api.conftest import person, program
from tests.deployments import builders

pytestmark = pytest.mark.django_db

CRASH = (
    b"INFO 11-30 14:02:09 [api_server.py:1894] vLLM API server version 0.32.0\n"
    b"Traceback (most recent call last):\n"
    b'  File "/opt/x.py", line 3, in main\n'
    b"ZeroWidgetError: 17 widgets at 0x7f are none\n"
)
LENGTH = (
    b"INFO 11-30 14:02:09 [api_server.py:1894] vLLM API server version 0.32.0\n"
    b"ValueError: User-specified max_model_len (204800) is greater than the derived max_model_len "
    b"(max_position_embeddings=4096 or model_max_length=None in model's config.json).\n"
    b"RuntimeError: Engine core initialization failed. See root cause above.\n"
)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy() -> Copy:
    return builders.make_copy(builders.make_host())


def fail(row: Deployment, copy: Copy, log: bytes = CRASH, **values: Any) -> Run:
    """A start that ended with this log, as the loop writes it."""
    ending = explain(log=log, exit_code=1)
    now = timezone.now()
    run = builders.make_run(
        row, copy, job_state="ended", log=log, outcome="failed", exit_code=1, ended_at=now, reason=ending.reason,
        error_block=ending.error_block, diagnosis=ending.diagnosis, **values,
    )  # fmt: skip
    failures.keep(run, ending.reason, ending.error_block)
    row.reason = ending.reason
    row.save()
    return run


def work(row: Deployment, copy: Copy, **values: Any) -> Run:
    """A start that got ready."""
    run = builders.make_run(row, copy, job_state="ended", outcome="stopped", ended_at=timezone.now(), **values)
    Run.objects.filter(pk=run.pk).update(ready_at=timezone.now())
    failures.mended(run.pk)
    return run


def revise(row: Deployment, **changes: Any) -> None:
    number = row.revision.number + 1
    spec = {**row.revision.spec, **changes}
    row.revision = Revision.objects.create(deployment=row, number=number, spec=spec, created_by="maria")
    row.save()


def as_role(role: str) -> Client:
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    client.force_login(User.objects.get_or_create(username=f"a {role}", defaults={"role": role})[0])
    return client


def text(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode().replace("\u00a0", " ")


# --- kept at the end --------------------------------------------------------------------------------------------------


def test_the_loop_keeps_what_failed(copy: Copy) -> None:
    row = builders.make_deployment(copy, desired="running", wanted_by="maria")
    reconcile(row.pk)
    row.refresh_from_db()
    run = row.run
    JobLog.objects.update_or_create(job=run.job, defaults={"size": len(LENGTH), "tail": LENGTH})
    run.job.state, run.job.ended_at = "ended", timezone.now()
    run.job.status = {"state": "ended", "exit_code": 1, "log_size": len(LENGTH)}
    run.job.save()
    reconcile(row.pk)
    run.refresh_from_db()
    kept = Failure.objects.get()
    assert (kept.run_id, kept.code, kept.engine, kept.engine_version) == (
        run.pk, "config.len_gt_derived", "vllm", "0.32.0",
    )  # fmt: skip
    assert kept.host_name == "quay" and kept.model_name == run.model_name and kept.phase == "config"
    assert run.error_block["root_at"] == LENGTH.index(b"ValueError")
    assert {"class": "run.startup_wrapper", "line": 3} in run.diagnosis["ruled_out"]


def test_the_loop_reads_the_whole_log(copy: Copy, monkeypatch: Any) -> None:
    """The cause stands above 20 MB of other lines; of a log beyond the bound its beginning and its end are read."""
    for most, lines in ((64 << 20, 440_000), (1 << 20, 80_000)):
        monkeypatch.setattr("deployments.run_log.MOST", most)
        row = builders.make_deployment(copy, name=f"d{most}", desired="running", wanted_by="maria")
        reconcile(row.pk)
        row.refresh_from_db()
        run = row.run
        text = b"INFO 01-01 10:00:00 [x.py:1] a line\n" * 9 + LENGTH
        flood = b"".join(b"INFO 01-01 10:00:00 [x.py:1] Received request %d\n" % n for n in range(lines))
        name = storages["logs"].save(f"jobs/{run.job_id}/0", ContentFile(text + flood))
        size = len(text + flood)
        JobLog.objects.update_or_create(
            job=run.job, defaults={"size": size, "tail": b"", "segments": [[0, size, name]]}
        )
        run.job.state, run.job.ended_at = "ended", timezone.now()
        run.job.status = {"state": "ended", "exit_code": 1, "log_size": size}
        run.job.save()
        reconcile(row.pk)
        run.refresh_from_db()
        assert run.reason["params"]["cause"] == "config.len_gt_derived"
        assert run.error_block["root_at"] == text.index(b"ValueError")
        assert run.error_block["root_line"] == text[: text.index(b"ValueError")].count(b"\n") + 1


def test_lines_of_a_log_that_lost_its_middle_are_those_of_the_download(copy: Copy, monkeypatch: Any) -> None:
    monkeypatch.setattr("deployments.run_log.NEAR_BYTES", 200)
    monkeypatch.setattr("deployments.run_log.BEGIN_BYTES", 400)
    run = builders.make_run(builders.make_deployment(copy), copy, log=b"")
    head, tail = b"head line\n" * 100, b"tail line\n" * 5000 + CRASH
    name = storages["logs"].save(f"jobs/{run.job_id}/0", ContentFile(head))
    gone = 1 << 20
    size = len(head) + gone + len(tail)
    segments = [[0, len(head), name], [len(head), len(head) + gone, ""]]
    JobLog.objects.filter(pk=run.job_id).update(size=size, tail=tail, segments=segments)
    read = run_log.through(run.job_id)
    ending = explain(log=read.reader, exit_code=1)
    run_log.place(ending.error_block, read)
    line, at = ending.error_block["root_line"], ending.error_block["root_at"]
    parts = logstore.read_all(run.job_id)
    from panel.fleet.log_answers import removed

    download = b"".join((removed(part.gap) if part.gap else b"") + part.data for part in parts)
    assert download.split(b"\n")[line - 1].startswith(b"ZeroWidgetError")
    assert logstore.read(run.job_id, at, 15).data == b"ZeroWidgetError"
    shown = run_log.window(run.job_id, line, at)
    assert at - 200 <= shown.offset < at
    between = logstore.read(run.job_id, shown.offset, at - shown.offset).data
    assert between.count(b"\n") == line - shown.number and between.endswith(b"\n")
    assert run_log.window(run.job_id, 3, 100) == run_log.Window(0, 1)


def test_a_start_that_never_had_a_process_is_kept_too(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="preparing")
    run = builders.make_run(row, copy)
    failures.keep(run, {"code": "sidecar.failed", "params": {}})
    failures.keep(run, {"code": "another", "params": {}})
    assert Failure.objects.get().code == "sidecar.failed", "kept once"


def test_what_failed_before_there_were_rows_gets_its_own(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    one, two = fail(row, copy, LENGTH), fail(row, copy)
    good = work(row, copy)
    Failure.objects.all().delete()
    migration = importlib.import_module("deployments.migrations.0011_failures_of_before")
    with connection.cursor() as cursor:
        cursor.execute(migration.FILL)
        cursor.execute(migration.FILL)
    first, second = Failure.objects.order_by("id")
    assert (first.run_id, first.code, first.engine, first.mended_by_id) == (
        one.pk,
        "config.len_gt_derived",
        "vllm",
        None,
    )
    assert (second.run_id, second.code, second.mended_by_id, second.mended_change) == (two.pk, "", good.pk, "same")
    assert second.at == two.ended_at and second.host_name == "quay" and second.model_name == two.model_name


# --- mended -------------------------------------------------------------------------------------------------------------


def test_the_next_start_mends_by_what_it_changed(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    fail(row, copy)
    revise(row, options={"max_model_len": 4096})
    second = fail(row, copy)
    revise(row, options={"max_model_len": 2048, "dtype": "half"})
    good = work(row, copy)
    first_row, second_row = Failure.objects.order_by("id")
    assert first_row.mended_by is None, "its next start failed as well"
    assert (second_row.run_id, second_row.mended_by_id) == (second.pk, good.pk)
    assert second_row.mended_change == "dtype,max_model_len"
    fail(row, copy)
    work(row, copy)
    assert Failure.objects.latest("id").mended_change == "same"


def test_another_engine_and_host_are_named(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    fail(row, copy)
    other = builders.make_copy(builders.make_host("atlas"))
    work(row, other, engine_version="0.33.0")
    assert Failure.objects.get().mended_change == "engine,host"


def test_ready_in_the_loop_mends(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    row = builders.make_deployment(copy, state="failed", desired="running", restart_asked=1)
    fail(row, copy)
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting"
    Run.objects.filter(pk=row.run_id).update(answer={"question": "?", "answer": "Paris.", "at": 1.0, "latency_ms": 1})
    row.run.job.state = "running"
    row.run.job.status = {"state": "running", "listening": True, "port": 1}
    row.run.job.save()
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "ready" and Failure.objects.get().mended_by_id == row.run_id


# --- was this right? ----------------------------------------------------------------------------------------------------


def test_an_answer_is_kept_changed_and_taken_back(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    run = fail(row, copy, LENGTH)
    operator, where = as_role("operator"), reverse("run-verdict", args=[run.pk])
    assert "Was this right?" in text(operator, reverse("deployment", args=[row.pk]))
    answer = operator.post(where, {"right": "yes", "note": ""}, headers={"HX-Request": "true"})
    assert answer.status_code == 200 and b"a operator says that it was right." in answer.content
    operator.post(where, {"right": "no", "note": "the disk\nwas full"})
    kept = Failure.objects.get()
    assert (kept.right, kept.note, kept.judged_by) == (False, "the disk was full", "a operator")
    assert "the disk was full" in text(as_role("viewer"), reverse("run", args=[run.pk]))
    operator.post(where, {"right": "no", "note": "the disk was full"})
    acts_ = list(Event.objects.filter(verb="run.judged").order_by("id"))
    assert [event.after["right"] for event in acts_] == [True, False], "the same again is no act"
    assert acts_[0].story == f"deployment:{row.pk}" and acts_[1].before == {"right": True, "note": ""}
    operator.post(where, {"right": "", "note": "gone with it"})
    kept.refresh_from_db()
    assert (kept.right, kept.note, kept.judged_by, kept.judged_at) == (None, "", "", None)


def test_who_may_only_look_cannot_answer(copy: Copy) -> None:
    run = fail(builders.make_deployment(copy, state="failed"), copy, LENGTH)
    viewer = as_role("viewer")
    assert "Was this right?" not in text(viewer, reverse("run", args=[run.pk]))
    assert viewer.post(reverse("run-verdict", args=[run.pk]), {"right": "yes"}).status_code == 403
    assert Client().post(reverse("run-verdict", args=[run.pk]), {"right": "yes"}).status_code in (302, 401, 403)
    assert Failure.objects.get().right is None


def test_only_failures_are_judged_and_old_ones_get_their_row(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    run = fail(row, copy)
    Failure.objects.all().delete()  # it ended before there were such rows
    assert "Not recognised" in text(as_role("viewer"), reverse("run", args=[run.pk]))
    failures.judge(run, right=False, note="x", actor=None)
    assert Failure.objects.get().alike
    with pytest.raises(Conflict):
        failures.judge(work(row, copy), right=True, note="", actor=None)


# --- the failed page ------------------------------------------------------------------------------------------------------


def test_the_page_says_proof_certainty_and_what_it_was_not(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    fail(row, copy, LENGTH)
    page = text(as_role("operator"), reverse("deployment", args=[row.pk]))
    assert '<a class="push sm" href="#log-L2">Line 2 of the log</a>' in page
    assert "Certain" in page and "<code>config.len_gt_derived</code>" in page
    assert "What it was not" in page and "The engine&#x27;s core did not start" in page and 'href="#log-L3"' in page
    assert 'data-root="2"' in page and 'data-follows="3"' in page


def test_what_changed_since_it_worked(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    good = work(row, copy)
    run = fail(row, copy)
    where = reverse("deployment", args=[row.pk])
    assert "Nothing in the settings has changed since" in text(as_role("viewer"), where)
    revise(row, options={"gpu_memory_utilization": 0.98})
    run.revision = row.revision
    run.engine_version = "0.33.0"
    run.save()
    page = text(as_role("viewer"), where)
    assert "Changed since" in page and reverse("run", args=[good.pk]) in page
    assert "not set → 0.98" in page and "0.32.0 → 0.33.0" in page


def test_what_was_measured_rules_out_too(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    run = fail(row, copy, LENGTH)
    where = reverse("deployment", args=[row.pk])
    assert "Other programs on the GPU" not in text(as_role("viewer"), where)
    gpu = {"index": 0, "total_mib": 24 * 1024, "free_mib": 22 * 1024, "others": []}
    run.diagnosis = {"memory": {"before": {"gpus": [gpu]}}, "oom_kills": 0}
    run.save()
    page = text(as_role("viewer"), where)
    assert "22.0 GiB of 24.0 GiB were free before the start." in page and "ended no process for lack of memory" in page
    gpu["others"] = [{"pid": 1, "name": "python3"}]
    run.diagnosis = {"memory": {"before": {"gpus": [gpu]}}, "oom_kills": 1}
    run.save()
    assert "What it was not" not in text(as_role("viewer"), where)


def test_not_recognised_shows_others_with_the_same_error(copy: Copy) -> None:
    other = builders.make_deployment(copy, "other", state="failed")
    fail(other, copy, CRASH.replace(b"17", b"4"))
    revise(other, options={"dtype": "half"})
    work(other, copy)
    failures.judge(Run.objects.get(deployment=other, number=1), right=False, note="a widget was loose", actor=None)
    row = builders.make_deployment(copy, state="failed")
    fail(row, copy)
    page = text(as_role("operator"), reverse("deployment", args=[row.pk]))
    assert "Not recognised" in page and "ZeroWidgetError: 17 widgets" in page
    assert "The same error elsewhere" in page and "other, start 1" in page and "a widget was loose" in page
    assert "Start 2 worked: Number format" in page


def test_a_page_of_a_failure_asks_a_fixed_number_of_questions(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    run = fail(row, copy)

    def asked() -> int:
        with CaptureQueriesContext(connection) as found:
            failed.diagnosis(Run.objects.get(pk=run.pk), may_judge=True)
        return len(found)

    few = asked()
    for n in range(8):
        other = builders.make_deployment(copy, f"other-{n}", state="failed")
        fail(other, copy)
        work(other, copy)
    assert asked() == few


# --- the history ----------------------------------------------------------------------------------------------------------


def history(copy: Copy) -> dict[str, Run]:
    one = builders.make_deployment(copy, "one", state="failed")
    two = builders.make_deployment(copy, "two", state="failed")
    made = {"length": fail(one, copy, LENGTH)}
    revise(one, options={"max_model_len": 4096})
    made["good"] = work(one, copy)
    made["crash"] = fail(one, copy)
    made["other"] = fail(two, copy, LENGTH, engine_version="0.31.0", host_name="atlas")
    Failure.objects.filter(run=made["other"]).update(at=timezone.now() - timedelta(days=40))
    return made


def test_what_helped_is_called_as_the_fixes_call_it() -> None:
    told = failed.change_word("max_num_batched_tokens,restart.never_heard_of,engine")
    assert told == f"{label_of('max_num_batched_tokens')}, never_heard_of, another engine"
    assert "max_num_batched_tokens" not in told


def test_the_history_counts_by_class_and_says_what_helped(copy: Copy) -> None:
    runs = history(copy)
    failures.judge(runs["length"], right=True, note="", actor=None)
    page = text(as_role("viewer"), reverse("failures"))
    assert "3 failures" in page and "1 mended by the next start" in page
    assert "1 of 2" in page and "Longest conversation (1)" in page and "right 1 time" in page
    assert page.index("config.len_gt_derived") < page.index("Not recognised</a>")
    assert reverse("run", args=[runs["other"].pk]) in page


@pytest.mark.parametrize(
    ("query", "starts"),
    [
        ("days=30", {"length", "crash"}),
        ("class=config.len_gt_derived", {"length", "other"}),
        ("class=not_recognised", {"crash"}),
        ("host=atlas", {"other"}),
        ("engine=vllm 0.31.0", {"other"}),
        ("q=two", {"other"}),
        ("model={model}", {"length", "crash", "other"}),
        ("days=nonsense", {"length", "crash", "other"}),
        ("host=nowhere", set()),
    ],
)  # fmt: skip
def test_filters(copy: Copy, query: str, starts: set[str]) -> None:
    runs = history(copy)
    page = text(as_role("viewer"), f"{reverse('failures')}?{query.format(model=copy.artifact)}")
    table = page.partition('id="failures"')[2]
    assert {name for name in ("length", "crash", "other") if reverse("run", args=[runs[name].pk]) in table} == starts
    assert ("Nothing matches." in page) == (not starts)


def test_of_one_deployment_and_in_htmx(copy: Copy) -> None:
    runs = history(copy)
    client = as_role("viewer")
    where = f"{reverse('failures')}?deployment={runs['other'].deployment_id}&part=rows"
    part = client.get(where, headers={"HX-Request": "true"}).content.decode()
    assert "<h1" not in part and reverse("run", args=[runs["other"].pk]) in part
    assert reverse("run", args=[runs["length"].pk]) not in part


def test_a_long_history_costs_as_many_queries_as_a_short_one(copy: Copy) -> None:
    history(copy)
    browser, machine = as_role("viewer"), program(person("viewer"))
    lists = [
        (browser, reverse("failures")),
        (machine, "/api/v1/failures?limit=200"),
        (machine, "/api/v1/failures/runs?limit=200"),
    ]

    def asked() -> list[int]:
        counts = []
        for client, where in lists:
            with CaptureQueriesContext(connection) as found:
                assert client.get(where).status_code == 200
            counts.append(len(found))
        return counts

    asked()  # what is asked once in a process is asked before
    few = asked()
    row = builders.make_deployment(copy, "many", state="failed")
    run = fail(row, copy)
    runs = Run.objects.bulk_create(
        Run(deployment=row, revision=row.revision, number=n, outcome="failed", started_by="ada") for n in range(2, 500)
    )
    Failure.objects.bulk_create(
        Failure(run=each, deployment=row, at=timezone.now(), code=f"class.{n % 60}", engine="vllm", alike="x",
                host_name=f"host-{n % 9}", model_name=f"model-{n % 70}", mended_change="", engine_version=f"0.{n % 30}")
        for n, each in enumerate(runs)
    )  # fmt: skip
    assert asked() == few and run.pk


# --- files and programs -----------------------------------------------------------------------------------------------------


def body(client: Client, address: str) -> bytes:
    answer = client.get(address)
    assert answer.status_code == 200 and answer.streaming
    from asgiref.sync import async_to_sync

    async def whole() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return async_to_sync(whole)()


def test_saved_as_json_and_csv_with_the_first_error(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.failures_export.CHUNK", 2)
    runs = history(copy)
    Run.objects.filter(pk=runs["crash"].pk).update(
        error_block={
            "lines": ["=HYPERLINK(1)", "Authorization: Bearer abcdefghijklmnop"],
            "root_line": 2,
            "numbers": [1, 2],
        }
    )
    failures.judge(runs["length"], right=True, note="=1+1", actor=None)
    client = as_role("viewer")
    rows = json.loads(body(client, reverse("failures-export", args=["json"])))
    assert [row["class"] for row in rows] == ["config.len_gt_derived", None, "config.len_gt_derived"]
    assert rows[2]["right"] is True and rows[2]["mended_by"] == 2 and rows[2]["error"][-1].startswith("ValueError")
    assert (rows[2]["phase"], rows[2]["engine_version"], rows[2]["root_line"]) == ("config", "0.32.0", 2)
    assert "abcdefghijklmnop" not in str(rows)
    sheet = body(client, reverse("failures-export", args=["csv"]) + "?class=not_recognised").decode("utf-8-sig")
    (one,) = list(csv.DictReader(io.StringIO(sheet)))
    assert one["error"].startswith("'=HYPERLINK") and one["deployment"] == "one"
    assert client.get(reverse("failures-export", args=["xml"])).status_code == 404
    assert json.loads(body(client, reverse("failures-export", args=["json"]) + "?host=nowhere")) == []


def test_the_shell_saves_the_same(copy: Copy) -> None:
    history(copy)
    out = io.StringIO()
    call_command("failures", "--json", "--class", "config.len_gt_derived", stdout=out)
    assert [row["deployment"] for row in json.loads(out.getvalue())] == ["two", "one"]
    out = io.StringIO()
    call_command("failures", stdout=out)
    assert len(list(csv.DictReader(io.StringIO(out.getvalue().lstrip("\ufeff"))))) == 3


def test_programs_read_and_judge(copy: Copy) -> None:
    runs = history(copy)
    client = program(person("operator"))
    found = client.get("/api/v1/failures").json()["items"]
    assert found[0]["class"] == "config.len_gt_derived" and found[0]["count"] == 2 and found[0]["mended"] == 1
    assert found[0]["mended_by"] == {"max_model_len": 1} and found[1]["class"] is None
    assert len(client.get("/api/v1/failures?class=not_recognised&days=30").json()["items"]) == 1
    part = client.get("/api/v1/failures/runs?limit=2").json()
    assert [item["deployment"] for item in part["items"]] == ["two", "one"] and part["next"]
    rest = client.get(f"/api/v1/failures/runs?limit=2&cursor={part['next']}").json()
    assert [item["class"] for item in rest["items"]] == ["config.len_gt_derived"] and rest["next"] is None
    where = f"/api/v1/runs/{runs['crash'].pk}/verdict"
    answer = client.put(where, {"right": False, "note": "a widget"}, content_type="application/json")
    assert answer.status_code == 200 and (answer.json()["right"], answer.json()["note"]) == (False, "a widget")
    assert client.put(where, {"right": None}, content_type="application/json").json()["right"] is None
    good = f"/api/v1/runs/{runs['good'].pk}/verdict"
    assert client.put(good, {"right": True}, content_type="application/json").status_code == 409
    assert client.put(where, {"right": True, "note": "x" * 501}, content_type="application/json").status_code == 422
    mine = program(person("operator"), deployment_ids=[runs["other"].deployment_id])
    assert [item["deployment"] for item in mine.get("/api/v1/failures/runs").json()["items"]] == ["two"]
    assert mine.get("/api/v1/failures").json()["items"][0]["count"] == 1
    assert mine.put(where, {"right": True}, content_type="application/json").status_code == 404


# --- starts that stand still ------------------------------------------------------------------------------------------------


def test_a_start_that_stood_still_until_its_time_was_over_hung(copy: Copy, settings: Any) -> None:
    row = builders.make_deployment(copy, state="starting", wanted_by="maria")
    earlier = builders.make_run(row, copy, job_state="ended", ended_at=timezone.now(), outcome="stopped")
    begun = earlier.created_at.timestamp()
    earlier.phases = [
        {"code": code, "start": begun + at, "end": begun + at + took, "done": None, "total": None}
        for code, at, took in (("start", 0, 4), ("config", 4, 5), ("load", 9, 41), ("serving", 50, 1))
    ]
    earlier.ready_at = timezone.now()
    earlier.save()
    now = timezone.now().timestamp()
    builders.make_run(row, copy, status={"still_since": now - 1500, "last_output_at": now - 1500})
    Deployment.objects.filter(pk=row.pk).update(
        deadline_at=timezone.now() - timedelta(seconds=1), looked_at=timezone.now(), state_since=timezone.now()
    )
    page = text(as_role("viewer"), reverse("deployment", args=[row.pk]))
    assert "Nothing has moved for 25 min at “Loading weights”" in page
    assert "This step usually takes 41 s on quay." in page
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.reason["code"], row.reason["params"]["minutes"]) == ("start.hung", 25)
    page = text(as_role("viewer"), reverse("deployment", args=[row.pk]))
    assert "It hung: no line of log for 25 min at “Loading weights”, which usually takes 41 s here." in page


def test_a_start_that_is_only_slow_did_not_hang(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="starting")
    now = timezone.now().timestamp()
    run = builders.make_run(row, copy, status={"still_since": now, "last_output_at": now - 3})
    deadline = {"code": "start.deadline", "params": {}}
    assert acts.stalls.hung(run, deadline) == deadline
    answer = {"code": "answer.failed", "params": {}}
    assert acts.stalls.hung(run, answer) == answer and acts.stalls.hung(run, None) is None


def test_one_that_writes_nothing_but_works_is_told_apart(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="starting")
    now = timezone.now().timestamp()
    builders.make_run(row, copy, status={"still_since": now - 2, "last_output_at": now - 900})
    page = text(as_role("viewer"), reverse("deployment", args=[row.pk]))
    assert "No line of log for 15 min" in page and "Nothing has moved" not in page


def test_numbers_by_class_are_added_up() -> None:
    assert failures.class_of({"code": "exit.code", "params": {}}) == ""
    assert failures.class_of({"code": "exit.code", "params": {"cause": "mem.kv_none"}}) == "mem.kv_none"
    assert failures.class_of({"code": "start.hung", "params": {}}) == "start.hung"
    assert failures.root_of({"lines": ["a", "b"], "numbers": [4, 7], "root_line": 4}) == "a"
    assert failures.root_of({"lines": ["a", "b"]}) == "b" and failures.root_of({}) == ""
    assert failures_read.classes(Failure.objects.all()) == []
