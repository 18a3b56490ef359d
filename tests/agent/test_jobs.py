"""Jobs with real child processes: at most one engine per id, stops that are proven, crashes at any point."""

from __future__ import annotations

import signal
import socket
import uuid
from pathlib import Path

import pytest

from panel.fleet import wire
from panel.fleet.agent import procs
from panel.fleet.agent.gpus import Reading
from tests.agent.conftest import Host, Table, marked
from tests.waiting import until

SLEEP = "time.sleep(600)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
SERVE = """
import socket
port = int(sys.argv[sys.argv.index("--port") + 1])
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port)); s.listen(); print("up", flush=True)
while True: s.accept()[0].close()
"""


def new_id() -> str:
    return str(uuid.uuid4())


def log_text(host: Host, job_id: str) -> str:
    path = host.job_folder(job_id) / "log"
    return path.read_text() if path.exists() else ""


def test_an_engine_runs_and_is_seen_to_listen(host: Host, table: Table) -> None:
    job_id = new_id()
    table.order(job_id, host.task(host.engine(SERVE)))
    status = table.until(job_id, "running")
    until(lambda: table.jobs.tick() and table.job(job_id).listening)
    status = table.status(job_id)
    assert status is not None and status.listening and status.processes == 1
    assert status.own_mib is not None and 0 < status.own_mib <= status.rss_mib
    assert status.port is not None and str(status.port) in status.argv and wire.PORT_PLACE not in status.argv
    assert status.log_size == len("up\n") and status.last_output_at is not None and status.read_bytes > 0
    assert Path(f"/proc/{status.pid}/environ").read_bytes().count(job_id.encode()) == 1
    table.stop(job_id)
    ended = table.until(job_id, "ended")
    assert (ended.exit_code, ended.signal, ended.stop_asked, ended.killed) == (None, signal.SIGTERM, True, False)
    assert not marked(job_id) and not ended.listening


@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [("sys.exit(0)", 0, None), ("sys.exit(3)", 3, None), ("os.kill(os.getpid(), 11)", None, 11), ("1/0", 1, None)],
)
def test_exit_codes_and_signals_are_kept(
    host: Host, table: Table, code: str, exit_code: int | None, number: int | None
) -> None:
    job_id = new_id()
    table.order(job_id, host.task(host.engine(code)))
    ended = table.until(job_id, "ended")
    assert (ended.exit_code, ended.signal, ended.stop_asked, ended.refusal) == (exit_code, number, False, None)
    assert ended.ended_at is not None and ended.started_at is not None and ended.ended_at >= ended.started_at


def test_another_program_at_the_port_is_not_taken_for_the_engine(host: Host, table: Table) -> None:
    job_id = new_id()
    table.order(job_id, host.task(host.engine(SLEEP)))
    port = table.until(job_id, "running").port
    assert port is not None
    with socket.create_server(("127.0.0.1", port)):
        table.jobs.tick()
        status = table.status(job_id)
        assert status is not None and not status.listening


def test_starting_is_idempotent_by_id(host: Host, table: Table) -> None:
    job_id = new_id()
    executable = host.engine("print(os.getpid(), flush=True); " + SLEEP)
    for _ in range(5):
        table.order(job_id, host.task(executable))
    table.until(job_id, "running")
    until(lambda: log_text(host, job_id))
    table.converge()
    assert len(until(lambda: marked(job_id))) == 1 and log_text(host, job_id).count("\n") == 1


def test_a_stop_leaves_a_tombstone_that_refuses_a_late_start(host: Host, table: Table) -> None:
    late, never = new_id(), new_id()
    task = host.task(host.engine(SLEEP))
    table.order(late, task)
    table.until(late, "running")
    table.stop(late)
    table.until(late, "ended")
    table.jobs.forget([late])
    assert not host.job_folder(late).exists()
    table.order(late, task)
    status = table.until(late, "refused")
    assert status.refusal is not None and status.refusal.code == "tombstone"
    # A stop that comes before its start: the end is told, the start refused, also by the next agent.
    table.order(never, task, "stop")
    ended = table.until(never, "ended")
    assert ended.stop_asked and ended.pid is None
    del table.orders[never]
    table.converge()
    table.die()
    again = host.table()
    again.order(never, task)
    assert again.until(never, "refused").refusal == wire.Refusal(code="tombstone")
    again.die()
    assert not marked(late) and not marked(never)


def test_an_older_revision_is_ignored_also_after_a_restart(host: Host, table: Table) -> None:
    job_id = new_id()
    table.order(job_id, host.task(host.engine(SLEEP)))
    table.until(job_id, "running")
    assert not table.jobs.converge(table.rev - 1, [])
    table.jobs.tick()
    status = table.status(job_id)
    assert status is not None and status.state == "running"
    table.die()
    again = host.table()
    assert not again.jobs.converge(table.rev - 1, [])
    assert again.until(job_id, "running").pid == status.pid
    again.die()


def test_what_is_absent_from_the_newest_work_is_stopped(host: Host, table: Table) -> None:
    keep, drop = new_id(), new_id()
    task = host.task(host.engine(SLEEP))
    table.order(keep, task)
    table.order(drop, task)
    table.until(drop, "running")
    del table.orders[drop]
    table.converge()
    assert table.until(drop, "ended").stop_asked
    assert table.until(keep, "running") and table.journal.buried(drop) and not table.journal.buried(keep)


def test_an_engine_deaf_to_term_is_killed_after_the_grace(host: Host, table: Table) -> None:
    job_id = new_id()
    table.order(job_id, host.task(host.engine(STUBBORN)))
    until(lambda: table.jobs.tick() and "deaf" in log_text(host, job_id))
    table.stop(job_id, grace_s=0.4)
    table.jobs.tick()
    stopping = table.status(job_id)
    assert stopping is not None and stopping.state == "stopping" and stopping.leftover_pids == marked(job_id)
    ended = table.until(job_id, "ended")
    assert ended.killed and ended.signal == signal.SIGKILL and not marked(job_id)


FAMILY = """
import subprocess
def child(setsid, env=None):
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    return subprocess.Popen([sys.executable, "-IS", "-c", code], start_new_session=setsid, env=env)
child(False); child(True); child(True, {})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # an orphan of its own session without the marker: only its parentage tells
        os.execve(sys.executable, [sys.executable, "-IS", "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
os.wait()
time.sleep(0.2)
print("family", flush=True)
"""


@pytest.mark.parametrize("main", ["time.sleep(600)", "sys.exit(0)"])
def test_forked_daemonised_and_scrubbed_children_end_with_the_job(host: Host, table: Table, main: str) -> None:
    """By session, parentage and marker; also those that outlive a main process that left by itself."""
    job_id = new_id()
    table.order(
        job_id,
        host.task(
            host.engine(FAMILY + main),
        ),
        grace_s=0.3,
    )
    table.until(job_id, "running", "stopping")
    until(lambda: table.jobs.tick() and "family" in log_text(host, job_id))
    job = table.job(job_id)
    table.jobs.statuses(Reading())
    family = {ident.pid for ident in job.known}
    if "sleep" in main:
        assert len(family) == 5
        table.stop(job_id, grace_s=0.3)
    ended = table.until(job_id, "ended")
    assert ended.killed and ended.stop_asked == ("sleep" in main)
    assert ended.exit_code == (None if "sleep" in main else 0)
    assert not [pid for pid in family if procs.Ident.of(pid) and Path(f"/proc/{pid}/exe").exists()]


def test_what_cannot_be_executed_is_refused(host: Host, table: Table) -> None:
    broken = host.folder / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    host.runtimes.append(broken)
    job_id = new_id()
    table.order(job_id, host.task(str(broken)))
    status = table.until(job_id, "refused")
    assert status.refusal == wire.Refusal(code="cannot_execute", params={"path": [str(broken)], "errno": "ENOENT"})


def test_refusals_are_remembered(host: Host, table: Table) -> None:
    job_id = new_id()
    table.order(job_id, host.task("/bin/sh"))
    status = table.until(job_id, "refused")
    assert status.refusal is not None and status.refusal.code == "runtime_unknown"
    table.die()
    again = host.table()
    again.order(job_id, host.task("/bin/sh"))
    assert again.until(job_id, "refused").refusal == status.refusal
    again.die()


def test_too_many_jobs(host: Host, table: Table) -> None:
    table.jobs.registry.config.__dict__["max_jobs"] = 1
    first, second = new_id(), new_id()
    task = host.task(host.engine(SLEEP))
    table.order(first, task)
    table.order(second, task)
    status = table.until(second, "refused")
    assert status.refusal == wire.Refusal(code="too_many_jobs", params={"limit": 1})


def test_secrets_touch_no_disk(host: Host, table: Table) -> None:
    job_id = new_id()
    secret = "hf_very_secret_value"
    table.order(job_id, host.task(host.engine(SLEEP), secret_env={"HF_TOKEN": secret}))
    pid = table.until(job_id, "running").pid
    assert secret.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    found = [path for path in host.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert found == [] and table.job(job_id).order is None
    for path in host.job_folder(job_id).iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_two_engines_get_two_ports(host: Host, table: Table) -> None:
    ids = [new_id() for _ in range(3)]
    executable = host.engine(SLEEP)
    for job_id in ids:
        table.order(job_id, host.task(executable))
    assert len({table.until(job_id, "running").port for job_id in ids}) == 3


def test_what_gone_processes_read_still_counts(host: Host, table: Table) -> None:
    code = """
import subprocess
subprocess.run([sys.executable, "-IS", "-c", "import time; open('/proc/self/maps').read(); time.sleep(0.3)"])
print("gone", flush=True)
time.sleep(600)
"""
    job_id = new_id()
    table.order(job_id, host.task(host.engine(code)))
    table.until(job_id, "running")
    seen: list[int] = []
    while "gone" not in log_text(host, job_id):
        status = table.status(job_id)
        assert status is not None
        seen.append(status.read_bytes)
    status = table.status(job_id)
    assert status is not None and [*seen, status.read_bytes] == sorted([*seen, status.read_bytes])
