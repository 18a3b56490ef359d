"""What agents say: facts, job states, results; and what they may not do."""

import json
import threading
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from panel.fleet import log_secrets, logstore, reports, samples, services, signals, wire
from panel.fleet.models import Gpu, Host, Job, Reservation

pytestmark = pytest.mark.django_db

FACTS: dict[str, Any] = {
    "hostname": "h", "os": "Linux", "kernel": "6", "machine": "x86_64", "cpu_count": 2, "ram_total_mib": 10_000,
    "ram_available_mib": 9000, "python": "3.11", "boot_time": 1.0, "agent_started": 2.0,
}  # fmt: skip
GPU = {"index": 0, "uuid": "GPU-1", "name": "Test", "total_mib": 24_000, "used_mib": 100}


@pytest.fixture
def host() -> Host:
    return Host.objects.create(name="h", token_hash=services.digest("secret"))


def engine_task() -> wire.EngineTask:
    return wire.EngineTask(argv=["/bin/vllm"], model_path="/m", secret_env={"VLLM_API_KEY": "k3y"})


def report(rev: int = 1, facts: dict | None = None, **job: Any) -> wire.Report:
    jobs = [{"kind": "engine", **job}] if job else []
    values = {"agent_version": "1", "sent_at": 1.0, "rev": rev, "facts": facts, "jobs": jobs}
    return wire.Report.model_validate(values)


def test_facts_become_rows_and_a_missing_gpu_is_marked(host: Host) -> None:
    reports.take_report(host, report(facts={**FACTS, "gpus": [GPU]}))
    host.refresh_from_db()
    assert host.ram_total_mib == 10_000
    assert Gpu.objects.get().present
    reports.take_report(host, report(facts={**FACTS, "gpu_error": "nvml.busy"}))
    assert Gpu.objects.get().present, "an unreadable driver says nothing about GPUs"
    reports.take_report(host, report(facts=FACTS))
    assert not Gpu.objects.get().present


def test_an_end_is_final(host: Host) -> None:
    job = services.order_job(host=host, task=engine_task())
    reports.take_report(host, report(id=str(job.pk), state="running", pid=7))
    reports.take_report(host, report(id=str(job.pk), state="ended", exit_code=3))
    reports.take_report(host, report(id=str(job.pk), state="running", pid=7))
    job.refresh_from_db()
    assert (job.state, job.status["exit_code"]) == ("ended", 3)


def test_a_job_is_closed_only_when_its_whole_log_is_here(host: Host) -> None:
    job = services.order_job(host=host, task=engine_task())
    over = report(id=str(job.pk), state="ended", exit_code=0, log_size=5)
    assert reports.take_report(host, over).forget == []
    reports.take_log(host, job.pk, 0, b"hello", 0)
    assert reports.take_report(host, over).forget == [str(job.pk)]
    job.refresh_from_db()
    assert not job.open and job.secrets is None, "nothing needs its secrets any more"
    host.refresh_from_db()
    assert services.work_of(host).jobs == []


def test_a_log_keeps_no_secret_of_its_job_and_all_its_offsets(host: Host) -> None:
    token, key = "hf_Zq8fW2kLmN4pR7tV0xYb", "engine-key-of-this-run"
    secret = {"VLLM_API_KEY": key, "HF_TOKEN": token, "SHORT": "on"}
    job = services.order_job(host=host, task=wire.EngineTask(argv=["/v"], model_path="/m", secret_env=secret))
    text = f"on: env HF_TOKEN={token} and {key}, on\n".encode()
    cut = text.index(b"hf_") + 12
    for offset, part in ((0, text[:cut]), (cut, text[cut:])):  # the token lies across two chunks
        reports.take_log(host, job.pk, offset, part, 0)
    kept = logstore.read(job.pk, 0).data
    assert kept == f"on: env HF_TOKEN={'*' * len(token)} and {'*' * len(key)}, on\n".encode()
    assert log_secrets.without(b"abc", [b""]) == b"abc"


def test_a_host_cannot_speak_of_another_hosts_job(host: Host) -> None:
    other = Host.objects.create(name="o", token_hash="o")
    job = services.order_job(host=other, task=engine_task())
    reply = reports.take_report(host, report(id=str(job.pk), state="ended", exit_code=0))
    job.refresh_from_db()
    assert job.state == "ordered"
    assert reply.forget == [str(job.pk)]
    with pytest.raises(Job.DoesNotExist):
        reports.take_log(host, job.pk, 0, b"x", 0)
    with pytest.raises(Job.DoesNotExist):
        reports.take_result(host, job.pk, wire.JobResult())


def test_news_is_told_once_and_mere_measurements_are_not_news(host: Host) -> None:
    job = services.order_job(host=host, task=engine_task())
    heard: list[str] = []

    def hear(sender: Any, state: str, **_: Any) -> None:
        heard.append(state)

    signals.job_changed.connect(hear)
    try:
        reports.take_report(host, report(id=str(job.pk), state="running", pid=7))
        reports.take_report(host, report(id=str(job.pk), state="running", pid=7, rss_mib=500))
        reports.take_report(host, report(id=str(job.pk), state="running", pid=7, listening=True))
    finally:
        signals.job_changed.disconnect(hear)
    assert heard == ["running", "running"]


def test_still_since_moves_only_with_signs_of_life(host: Host, django_capture_on_commit_callbacks: Any) -> None:
    job = services.order_job(host=host, task=engine_task())
    seen = []
    for size in (10, 10, 20):
        host.refresh_from_db()
        with django_capture_on_commit_callbacks(execute=True):
            reports.take_report(host, report(id=str(job.pk), state="running", pid=7, log_size=size))
        job.refresh_from_db()
        samples.freshen(job)
        seen.append(job.status["still_since"])
    assert seen[0] == seen[1] < seen[2]


def test_a_repeated_order_is_one_job_and_secrets_travel_only_in_the_work(host: Host) -> None:
    wanted = uuid.uuid4()
    first = services.order_job(host=host, task=engine_task(), job_id=wanted)
    rev = Host.objects.get().work_rev
    assert services.order_job(host=host, task=engine_task(), job_id=wanted).pk == first.pk
    assert Host.objects.get().work_rev == rev
    assert "k3y" not in json.dumps(Job.objects.get().order)
    host.refresh_from_db()
    (order,) = services.work_of(host).jobs
    assert order.task.secret_env == {"VLLM_API_KEY": "k3y"}


def test_a_stop_is_asked_once(host: Host) -> None:
    job = services.order_job(host=host, task=engine_task())
    assert services.stop_job(job.pk, grace_s=5)
    rev = Host.objects.get().work_rev
    assert not services.stop_job(job.pk)
    assert Host.objects.get().work_rev == rev


# --- reservations ----------------------------------------------------------------------------------------------------


def test_reservations_never_overcommit_and_are_all_or_nothing(host: Host) -> None:
    reports.take_report(host, report(facts={**FACTS, "gpus": [GPU, {**GPU, "index": 1, "uuid": "GPU-2"}]}))
    host.refresh_from_db()
    services.reserve("a", host, [services.Share("GPU-1", 20_000)])
    with pytest.raises(services.NoRoom) as caught:
        services.reserve("b", host, [services.Share("GPU-2", 1_000), services.Share("GPU-1", 5_000)])
    assert "GPU 0" in caught.value.text
    assert list(Gpu.objects.values_list("reserved_mib", flat=True)) == [20_000, 0]
    services.reserve("a", host, [services.Share("GPU-1", 20_000)])  # again: nothing new
    services.release("a")
    services.release("a")
    assert list(Gpu.objects.values_list("reserved_mib", flat=True)) == [0, 0]
    assert not Reservation.objects.exists()


def test_ram_is_reserved_too(host: Host) -> None:
    reports.take_report(host, report(facts=FACTS))
    host.refresh_from_db()
    services.reserve("a", host, [services.Share(None, 9_000)])
    with pytest.raises(services.NoRoom):
        services.reserve("b", host, [services.Share(None, 2_000)])
    services.release("a")
    services.reserve("b", host, [services.Share(None, 2_000)])


# --- contact ---------------------------------------------------------------------------------------------------------


def test_a_silent_host_is_lost_once_and_back_with_its_next_report(host: Host, settings) -> None:
    Host.objects.filter(pk=host.pk).update(last_seen_at=timezone.now() - timedelta(seconds=100))
    assert services.mark_lost_hosts() == [host.pk]
    assert services.mark_lost_hosts() == []
    host.refresh_from_db()
    heard: list[int] = []

    def hear(sender: Any, host_id: int, **_: Any) -> None:
        heard.append(host_id)

    signals.host_back.connect(hear)
    try:
        reports.take_report(host, report())
    finally:
        signals.host_back.disconnect(hear)
    host.refresh_from_db()
    assert host.lost_at is None
    assert heard == [host.pk]


def test_an_agent_ahead_of_a_restored_database_is_overtaken(host: Host) -> None:
    reply = reports.take_report(host, report(rev=500))
    host.refresh_from_db()
    assert host.work_rev == 501 == reply.rev


# --- the line itself --------------------------------------------------------------------------------------------------


def call(client: Client, path: str, body: bytes = b"", token: str = "secret", **query: Any):
    return client.post(
        f"/agent/v1/{path}",
        data=body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
        query_params=query,
    )


@pytest.mark.parametrize("token", ["", "wrong", "secret "])
def test_a_stranger_is_refused_on_every_call(client: Client, host: Host, token: str) -> None:
    job = services.order_job(host=host, task=engine_task())
    for path in ("report", f"jobs/{job.pk}/log", f"jobs/{job.pk}/result"):
        answer = call(client, path, report().model_dump_json().encode(), token)
        assert answer.status_code == 401, path
        assert answer.json()["code"] == "link.token"
    assert client.get("/agent/v1/work", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_work_report_log_and_result_over_http(client: Client, host: Host) -> None:
    job = services.order_job(host=host, task=wire.ScanTask(roots=[]))
    answer = client.get("/agent/v1/work", {"rev": 0}, headers={"Authorization": "Bearer secret"})
    work = wire.Work.model_validate_json(answer.content)
    assert [order.id for order in work.jobs] == [str(job.pk)]
    assert (
        client.get("/agent/v1/work", {"rev": work.rev}, headers={"Authorization": "Bearer secret"}).status_code == 204
    )
    assert call(client, "report", report().model_dump_json().encode()).status_code == 200
    assert call(client, f"jobs/{job.pk}/log", b"abc", offset=0).json() == {"size": 3}
    assert call(client, f"jobs/{job.pk}/result", b'{"items": []}').status_code == 204
    assert call(client, f"jobs/{uuid.uuid4()}/log", b"abc", offset=0).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "query", "status"),
    [
        ("report", b"{}", {}, 422),
        ("report", b"\xff\x00", {}, 422),
        ("log", b"x", {"offset": "many"}, 422),
        ("log", b"x", {"offset": -1}, 422),
        ("log", b"x" * (wire.MAX_LOG_CHUNK + 1), {"offset": 0}, 413),
        ("result", b"[]", {}, 422),
    ],
)
def test_bad_messages_are_refused_with_a_code(client: Client, host: Host, path, body, query, status) -> None:
    job = services.order_job(host=host, task=engine_task())
    where = path if path == "report" else f"jobs/{job.pk}/{path}"
    answer = call(client, where, body, **query)
    assert answer.status_code == status
    assert set(answer.json()) == {"code", "message", "hint"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", ["stop", "report"])
def test_the_hosts_row_is_locked_before_its_jobs(host: Host, act: str) -> None:
    """A report, a stop and a release at once: in two orders they would deadlock."""
    job = services.order_job(host=host, task=engine_task())
    acts = {
        "stop": lambda: services.stop_job(job.pk),
        "report": lambda: reports.take_report(host, report(id=str(job.pk), state="running", pid=7)),
    }

    def run() -> None:
        acts[act]()
        connection.close()

    with transaction.atomic():
        services.lock_host(host.pk)
        other = threading.Thread(target=run)
        other.start()
        wait_until_blocked()
        assert Job.objects.select_for_update(nowait=True).get(pk=job.pk), "nobody holds the job who waits for the host"
    other.join(10)
    job.refresh_from_db()
    assert (job.desired, job.state) in (("stop", "ordered"), ("run", "running"))


def wait_until_blocked() -> None:
    """Until another connection waits for a lock of this one."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[0]:
                return
        time.sleep(0.02)
    pytest.fail("nobody waits")


def test_the_local_hosts_settings_carry_added_folders_and_keep_the_rest(db: None, tmp_path, settings) -> None:
    settings.BERTH_DATA = tmp_path
    folder = tmp_path / "agent"
    host = services.ensure_local_host(folder)
    (folder / "agent.json").write_text(json.dumps({**json.loads((folder / "agent.json").read_text()), "report_s": 3}))
    host.model_roots = ["/data/models"]
    services.share_folders(host)
    known = json.loads((folder / "agent.json").read_text())
    assert (known["added_roots"], known["report_s"]) == (["/data/models"], 3)
    assert (folder / "token").stat().st_mode & 0o777 == 0o600 == (folder / "agent.json").stat().st_mode & 0o777
    assert services.ensure_local_host(folder).pk == host.pk
    (folder / "token").write_text("another")
    again = services.ensure_local_host(folder)
    assert again.pk == host.pk
    assert Host.objects.get().token_hash == services.digest((folder / "token").read_text())


def test_this_machine_is_searched_again_when_it_starts_without_an_engine(db: None, tmp_path) -> None:
    host = services.ensure_local_host(tmp_path / "agent")
    asked = host.jobs.filter(kind__in=("runtimes", "scan"))
    assert asked.count() == 2, "a new host is looked at"
    assert services.look_here() and asked.count() == 2, "that look goes on"
    asked.update(open=False, state="ended")
    services.ensure_local_host(tmp_path / "agent")
    assert asked.count() == 4
    asked.update(open=False, state="ended")
    host.runtimes.create(engine="vllm", executable="/opt/vllm/bin/vllm", version="0.32.0")
    services.ensure_local_host(tmp_path / "agent")
    assert asked.count() == 4, "it has an engine"
    assert services.look_here() and asked.count() == 6, "someone asked"


def test_a_panel_without_engines_of_its_own_has_nothing_to_look_at(db: None) -> None:
    assert services.look_here() is False
