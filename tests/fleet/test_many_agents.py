"""Heartbeats: what writes rows and what does not, who is silent when the broker forgot, and a fleet at once."""

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from benchmarks import fleet
from panel.core import sse
from panel.fleet import heartbeat, queries, reports, samples, services, signals, wire
from panel.fleet.models import Gpu, Host, Job
from tests.servers import Servers
from tests.web import web_process

FACTS: dict[str, Any] = {
    "hostname": "h", "os": "Linux", "kernel": "6", "machine": "x86_64", "cpu_count": 2, "ram_total_mib": 64_000,
    "ram_available_mib": 50_000, "python": "3.11", "boot_time": 1.0, "agent_started": 2.0,
    "disks": [{"path": "/m", "total_mib": 100_000, "free_mib": 60_000}],
}  # fmt: skip
GPU = {"index": 0, "uuid": "GPU-1", "name": "Test", "total_mib": 24_000, "used_mib": 10_000}
WRITES = ("UPDATE", "INSERT", "DELETE")


@pytest.fixture
def host(transactional_db: None, broker: Any) -> Host:
    return Host.objects.create(name="h", token_hash=services.digest("secret"))


def say(host: Host, *jobs: dict[str, Any], facts: dict[str, Any] | None = None, **values: Any) -> wire.ReportReply:
    """A report as it comes over the line: the host's row is read anew."""
    host.refresh_from_db()
    message = {"agent_version": "1", "sent_at": time.time(), "rev": host.work_rev, "facts": facts, **values}
    return reports.take_report(host, wire.Report.model_validate({**message, "jobs": list(jobs)}))


def running(job: Job, **more: Any) -> dict[str, Any]:
    return {"id": str(job.pk), "kind": "engine", "state": "running", "pid": 7, "argv": ["/bin/vllm"], **more}


def engine(host: Host) -> Job:
    return services.order_job(host=host, task=wire.EngineTask(argv=["/bin/vllm"], model_path="/m"))


def written(queries_: CaptureQueriesContext) -> list[str]:
    return [q["sql"] for q in queries_.captured_queries if q["sql"].startswith(WRITES) or "FOR NO KEY" in q["sql"]]


@pytest.fixture
def sql(host: Host) -> CaptureQueriesContext:
    from django.db import connection

    return CaptureQueriesContext(connection)


# --- what writes ------------------------------------------------------------------------------------------------------


def test_figures_that_move_write_no_row_and_are_seen_all_the_same(host: Host, sql: CaptureQueriesContext) -> None:
    job = engine(host)
    say(host, running(job, rss_mib=100), facts={**FACTS, "gpus": [GPU]})
    moved = {**FACTS, "ram_available_mib": 49_990, "gpus": [{**GPU, "used_mib": 10_050, "temperature_c": 61}]}
    with sql:
        say(host, running(job, rss_mib=140, read_bytes=5, log_size=9), facts=moved)
    assert written(sql) == []
    [view] = queries.hosts()
    assert view.host.facts["ram_available_mib"] == 49_990
    assert (view.gpus[0].gpu.used_mib, view.gpus[0].measured["temperature_c"]) == (10_050, 61)
    assert [run.ram_mib for run in view.runs] == [140]
    job.refresh_from_db()
    assert job.status["rss_mib"] == 100
    samples.freshen(job)
    assert (job.status["rss_mib"], job.status["log_size"], job.state) == (140, 9, "running")


def fetching(job: Job, **progress: Any) -> dict[str, Any]:
    told = {"phase": "downloading", "total": 1000, "note": "a.safetensors", "passed": ["checking"], **progress}
    return {"id": str(job.pk), "kind": "download", "state": "running", "pid": 7, "progress": told}


def test_how_far_a_download_is_lies_in_memory_and_what_happens_in_it_in_rows(
    host: Host, sql: CaptureQueriesContext
) -> None:
    job = engine(host)
    say(host, fetching(job, done=100))
    before = Host.objects.values_list("told", flat=True).get()
    with sql:
        for done in range(101, 150, 4):
            say(host, fetching(job, done=done, rate=4.0 * done, silent_s=done / 10))
    assert written(sql) == [] and Host.objects.values_list("told", flat=True).get() == before
    seen = Job.objects.get()
    assert seen.status["progress"]["done"] == 100
    samples.freshen(seen, None, Job())
    assert {key: seen.status["progress"][key] for key in ("done", "rate", "silent_s", "phase")} == {
        "done": 149, "rate": 596.0, "silent_s": 14.9, "phase": "downloading",
    }  # fmt: skip
    news: list[dict[str, Any]] = [
        {"done": 150},  # a twentieth more
        {"done": 151, "note": "b.safetensors"},
        {"done": 151, "note": "b.safetensors", "trouble": "connection_lost"},
        {"done": 1, "note": "b.safetensors", "phase": "verifying"},
    ]
    for change in news:
        say(host, fetching(job, **change))
        told = Job.objects.get().status["progress"]
        assert {key: told[key] for key in change} == change
    sample = samples.read(host.pk)
    assert sample is not None and sample["jobs"][str(job.pk)]["progress"]["phase"] == "verifying"


def test_an_older_figure_is_not_laid_over_a_row_that_was_written_just_now(host: Host) -> None:
    job = engine(host)
    say(host, fetching(job, done=100))
    say(host, fetching(job, done=110))
    Job.objects.filter(pk=job.pk).update(
        status={**job.status, "progress": {"phase": "placing"}}, status_at=timezone.now(), state="running"
    )
    job.refresh_from_db()
    samples.freshen(job)
    assert job.status["progress"] == {"phase": "placing"}


@pytest.mark.parametrize(
    "change",
    [
        {"facts": {**FACTS, "ram_available_mib": 30_000}},
        {"facts": {**FACTS, "gpus": [{**GPU, "used_mib": 20_000}]}},
        {"facts": {**FACTS, "kernel": "7"}},
        {"facts": {**FACTS, "disks": [{"path": "/m", "total_mib": 100_000, "free_mib": 10_000}]}},
        {"agent_version": "2"},
        {"sent_at": 1.0},
    ],
    ids=["memory", "gpu", "kernel", "disk", "agent", "clock"],
)
def test_what_is_new_is_written(host: Host, sql: CaptureQueriesContext, change: dict[str, Any]) -> None:
    job = engine(host)
    say(host, running(job), facts={**FACTS, "gpus": [GPU]})
    say(host, running(job), facts={**FACTS, "gpus": [GPU]})
    with sql:
        say(host, running(job), **change)
    assert written(sql)


def test_a_changed_job_alone_is_written_and_only_that_one(host: Host, sql: CaptureQueriesContext) -> None:
    first, second = engine(host), engine(host)
    say(host, running(first), running(second))
    with sql:
        say(host, running(first), running(second, listening=True, port=8000))
    jobs = [q for q in written(sql) if q.startswith('UPDATE "fleet_job"')]
    assert len(jobs) == 1 and str(second.pk) in jobs[0].replace("-", "") + jobs[0]


def test_an_end_is_repeated_until_the_host_may_forget_it(host: Host) -> None:
    job = engine(host)
    over = {**running(job), "state": "ended", "exit_code": 0, "log_size": 5}
    assert say(host, over).forget == []
    assert say(host, over).forget == []
    reports.take_log(host, job.pk, 0, b"hello", 0)
    assert say(host, over).forget == [str(job.pk)]
    assert say(host, over).forget == [str(job.pk)], "the answer may have been lost"


def test_a_restored_database_does_not_take_old_news_for_known(host: Host) -> None:
    job = engine(host)
    say(host, running(job), facts=FACTS)
    before = Host.objects.values("told").get(pk=host.pk), Job.objects.values("status", "state").get(pk=job.pk)
    say(host, running(job, listening=True, port=8000), facts=FACTS)
    Host.objects.filter(pk=host.pk).update(**before[0])
    Job.objects.filter(pk=job.pk).update(**before[1])
    say(host, running(job, listening=True, port=8000), facts=FACTS)
    job.refresh_from_db()
    assert job.status["port"] == 8000


def test_gpus_are_kept_with_what_is_reserved_of_them(host: Host) -> None:
    say(host, facts={**FACTS, "gpus": [GPU]})
    Gpu.objects.update(reserved_mib=500, schedulable=False)
    say(host, facts={**FACTS, "gpus": [{**GPU, "used_mib": 20_000}, {**GPU, "uuid": "GPU-2", "index": 1}]})
    found = Gpu.objects.order_by("index").values_list("uuid", "used_mib", "reserved_mib", "schedulable")
    assert list(found) == [("GPU-1", 20_000, 500, False), ("GPU-2", 10_000, 0, True)]


def test_the_digest_knows_every_field_of_a_status() -> None:
    """A field that is added later counts as news unless somebody says that it only moves."""
    fields = set(wire.JobStatus.model_fields)
    assert set(heartbeat.MOVING) < fields
    base = wire.JobStatus(id="1", kind="engine", state="running")
    report = wire.Report(agent_version="1", sent_at=1, rev=1, jobs=[base])
    other = {"id": "2", "kind": "scan", "state": "ended", "argv": ["x"], "refusal": wire.Refusal(code="x"),
             "leftover_pids": [1], "progress": wire.Progress(phase="checking"), "stop_asked": True, "killed": True,
             "listening": True}  # fmt: skip
    for name in fields - set(heartbeat.MOVING):
        changed = base.model_copy(update={name: other.get(name, 5)})
        assert heartbeat.told(report.model_copy(update={"jobs": [changed]})) != heartbeat.told(report), name


# --- who is silent ----------------------------------------------------------------------------------------------------


def test_a_host_that_calls_is_not_lost_though_its_row_is_old(host: Host) -> None:
    say(host)
    say(host)
    old = timezone.now() - timedelta(seconds=100)
    Host.objects.filter(pk=host.pk).update(last_seen_at=old)
    assert services.mark_lost_hosts() == []
    assert not queries.hosts()[0].silent
    samples.drop(host.pk)
    assert services.mark_lost_hosts() == [host.pk]


def test_a_lost_host_keeps_when_it_called_last_and_comes_back(host: Host, settings: Any) -> None:
    settings.BERTH_HOST_LOST_S = 0.5
    say(host)
    called = samples.called([Host.objects.get()])[host.pk]
    time.sleep(0.7)
    assert services.mark_lost_hosts() == [host.pk]
    host.refresh_from_db()
    assert abs(host.last_seen_at - called) < timedelta(milliseconds=1)
    heard: list[int] = []

    def hear(sender: Any, host_id: int, **_: Any) -> None:
        heard.append(host_id)

    signals.host_back.connect(hear)
    try:
        say(host)
    finally:
        signals.host_back.disconnect(hear)
    host.refresh_from_db()
    assert (host.lost_at, heard) == (None, [host.pk])


def test_an_emptied_broker_makes_nobody_lost_at_once(host: Host, broker: Any, settings: Any) -> None:
    say(host)
    Host.objects.filter(pk=host.pk).update(last_seen_at=timezone.now() - timedelta(seconds=100))
    broker.flushall()
    assert services.mark_lost_hosts() == []
    settings.BERTH_HOST_LOST_S = 0.3
    time.sleep(0.5)
    assert services.mark_lost_hosts() == [host.pk], "who does not call again after that is silent"


def test_without_the_broker_every_report_is_rows(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    job = engine(host)
    say(host, running(job, rss_mib=1))
    monkeypatch.setattr(sse, "broker_away", lambda: True)
    Host.objects.filter(pk=host.pk).update(last_seen_at=timezone.now() - timedelta(seconds=20))
    say(host, running(job, rss_mib=2))
    host.refresh_from_db()
    job.refresh_from_db()
    assert timezone.now() - host.last_seen_at < timedelta(seconds=5)
    assert job.status["rss_mib"] == 2
    assert queries.hosts()[0].runs[0].ram_mib == 2
    monkeypatch.undo()
    say(host, running(job, rss_mib=3))
    assert queries.hosts()[0].runs[0].ram_mib == 3


# --- the line ---------------------------------------------------------------------------------------------------------


async def _raw(port: int, head: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    status, _, rest = answer.partition(b"\r\n\r\n")
    return int(status.split(b" ")[1]), json.loads(rest) if rest else {}


@pytest.mark.slow
def test_a_fleet_at_once_and_what_the_line_refuses(transactional_db: None, servers: Servers, tmp_path: Path) -> None:
    """Thirty agents that report every second are as much as three hundred that report every ten."""
    with web_process(servers, tmp_path) as web:
        port = int(web.url.rsplit(":", 1)[1])
        pace = fleet.Pace(warm=4, rest=3, busy=6, pause=0.05, report=1.0)
        hosts = fleet.make_hosts(30)
        found = asyncio.run(fleet.simulate(port, web.process.pid, psutil.Process(web.process.pid), hosts, pace))
        assert found.errors == [], found.lines()
        assert fleet.percentile(found.changes, 0.99) <= fleet.LIMITS["change"], found.lines()
        assert found.beats > 30
        # A row for every report would be three and more; on a busy machine clocks seem to move, which is news.
        assert sum(found.beat_updates.values()) <= 0.5 * found.beats, found.lines()

        token = hosts[0][1]
        known = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nBerth-Instance: seat0.1"
        nobody = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer wrong"
        ask = [
            (f"GET /agent/v1/hello HTTP/1.1\r\n{known}", 204, None),
            (f"GET /agent/v1/hello HTTP/1.1\r\n{nobody}", 401, "link.token"),
            (f"GET /agent/v1/nothing HTTP/1.1\r\n{known}", 404, "not_found"),
            (f"POST /agent/v1/work HTTP/1.1\r\n{known}", 405, None),
            (f"POST /agent/v1/report HTTP/1.1\r\n{known}", 422, "link.message"),
            ("GET /agent/v1/hello HTTP/1.1\r\nHost: evil.example", 400, "host.unknown"),
        ]
        for head, status, code in ask:
            answer = asyncio.run(_raw(port, head))
            assert (answer[0], answer[1].get("code")) == (status, code), head
