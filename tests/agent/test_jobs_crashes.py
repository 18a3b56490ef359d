"""Crashes at any point: agent, shim or disk fail, and still there is exactly one engine or none, as ordered."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from panel.fleet import wire
from panel.fleet.agent import procs
from panel.fleet.agent.gpus import Reading
from panel.fleet.agent.journal import Record, read_json, write_json
from panel.fleet.agent.orders import Order
from tests.agent.conftest import ROOT, Host, Table, marked
from tests.agent.test_jobs import FAMILY, SLEEP, log_text, new_id
from tests.waiting import until


def test_a_killed_shim_leaves_the_engine_and_its_log(host: Host, table: Table) -> None:
    job_id = new_id()
    code = "print('before', flush=True)\nwhile not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.01)\n"
    table.order(job_id, host.task(host.engine(code + "print('after', flush=True); sys.exit(5)")))
    table.until(job_id, "running")
    until(lambda: "before" in log_text(host, job_id))
    shim = table.job(job_id).shim
    assert shim is not None
    os.kill(shim.pid, signal.SIGKILL)
    until(lambda: not shim.alive())
    table.jobs.tick()
    status = table.status(job_id)
    assert status is not None and status.state == "running" and until(lambda: marked(job_id)) == [status.pid]
    (host.model / "go").write_text("")
    ended = table.until(job_id, "ended")
    assert log_text(host, job_id) == "before\nafter\n"
    assert (ended.exit_code, ended.signal, ended.refusal) == (None, None, wire.Refusal(code="exit_unknown"))


def test_a_stop_works_without_the_shim(host: Host, table: Table) -> None:
    job_id = new_id()
    table.order(job_id, host.task(host.engine(FAMILY + SLEEP)))
    until(lambda: table.jobs.tick() and "family" in log_text(host, job_id))
    table.jobs.statuses(Reading())
    shim = table.job(job_id).shim
    assert shim is not None
    os.kill(shim.pid, signal.SIGKILL)
    family = {ident.pid for ident in table.job(job_id).known}
    table.stop(job_id, grace_s=0.2)
    assert table.until(job_id, "ended").killed
    assert not [s.pid for s in procs.snapshot().values() if s.pid in family and s.alive]


def test_a_restarted_agent_adopts_and_gets_the_true_exit_code(host: Host, table: Table) -> None:
    job_id = new_id()
    code = "while not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.01)\nsys.exit(7)"
    table.order(job_id, host.task(host.engine(code)))
    pid = table.until(job_id, "running").pid
    table.die()
    again = host.table()
    assert again.until(job_id, "running").pid == pid
    (host.model / "go").write_text("")
    assert again.until(job_id, "ended").exit_code == 7
    again.die()
    # The end itself is remembered too.
    third = host.table()
    assert third.until(job_id, "ended").exit_code == 7
    third.die()


def test_a_reused_pid_is_never_taken_for_ours(host: Host, table: Table) -> None:
    """The journal names a process that runs, but with another start time: a stranger, which must survive the stop."""
    job_id = new_id()
    table.order(job_id, host.task(host.engine(SLEEP)))
    table.until(job_id, "running")
    for pid in until(lambda: marked(job_id)):
        os.kill(pid, signal.SIGKILL)
    table.until(job_id, "ended")
    table.die()
    stranger = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        folder = host.job_folder(job_id)
        ident = procs.Ident.of(stranger.pid)
        assert ident is not None
        record = read_json(folder / "job.json")
        other = [stranger.pid, ident.start - 1, ident.boot]
        write_json(folder / "job.json", {**record, "final": None, "shim": other, "stop_asked_at": None})
        write_json(folder / "run.json", {"engine": other, "started_at": 1.0})
        (folder / "exit.json").unlink()
        again = host.table()
        again.jobs.stop_all(0.0)
        assert again.until(job_id, "ended").refusal == wire.Refusal(code="exit_unknown")
        again.die()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_killed_between_journal_and_shim_starts_once_with_the_next_order(host: Host, table: Table) -> None:
    job_id = new_id()
    task = host.task(host.engine(SLEEP))
    table.orders[job_id] = Order(job_id, "run", 5.0, "engine", task=task)

    class Killed(BaseException):
        pass

    def killed(*_args: object) -> None:
        raise Killed

    table.jobs.spawner.launch = killed  # type: ignore[assignment] # the agent dies right before the fork
    with pytest.raises(Killed):
        table.converge()
    assert (host.job_folder(job_id) / "job.json").exists()
    table.die()
    again = host.table()
    assert again.status(job_id) is None and not marked(job_id)
    again.order(job_id, task)
    again.until(job_id, "running")
    assert len(until(lambda: marked(job_id))) == 1
    again.die()


def test_killed_right_after_the_shim_was_born_adopts_it(host: Host, table: Table) -> None:
    """The record has no shim yet, the folder's lock tells that one lives: no second engine."""
    job_id = new_id()
    task = host.task(host.engine(SLEEP))
    save, saved = table.journal.save, []

    def save_once(record: object, **more: bool) -> None:
        if saved:
            raise KeyboardInterrupt
        saved.append(record)
        save(record, **more)  # type: ignore[arg-type]

    table.journal.save = save_once  # type: ignore[method-assign,assignment]
    table.orders[job_id] = Order(job_id, "run", 5.0, "engine", task=task)
    with pytest.raises(KeyboardInterrupt):
        table.converge()
    table.die()
    again = host.table()
    again.order(job_id, task)
    again.until(job_id, "running")
    assert len(until(lambda: marked(job_id))) == 1
    again.stop(job_id)
    assert again.until(job_id, "ended").signal == signal.SIGTERM
    again.die()


def test_a_shim_killed_before_its_engine_ran_is_replaced(host: Host, table: Table) -> None:
    job_id = new_id()
    launch, count = table.jobs.spawner.launch, []

    def kill_first(record: object, command: object) -> object:
        child = launch(record, command)  # type: ignore[arg-type]
        count.append(1)
        if len(count) == 1 and child is not None:
            child.process.kill()
            child.process.wait()
        return child

    table.jobs.spawner.launch = kill_first  # type: ignore[method-assign,assignment]
    table.order(job_id, host.task(host.engine(SLEEP)))
    table.until(job_id, "running")
    assert len(until(lambda: marked(job_id))) == 1 and len(count) in (1, 2)  # 1: it had been quicker than the kill


def test_a_stop_asked_while_the_shim_is_frozen_before_the_engine(host: Host, table: Table) -> None:
    job_id = new_id()
    launch = table.jobs.spawner.launch

    def freeze(record: object, command: object) -> object:
        child = launch(record, command)  # type: ignore[arg-type]
        assert child is not None
        os.kill(child.process.pid, signal.SIGSTOP)
        return child

    table.jobs.spawner.launch = freeze  # type: ignore[method-assign,assignment]
    table.order(job_id, host.task(host.engine(SLEEP)), grace_s=0.2)
    table.stop(job_id, grace_s=0.2)
    ended = table.until(job_id, "ended")
    assert ended.stop_asked and not marked(job_id)


def test_a_full_disk_keeps_nothing_from_being_stopped(
    host: Host, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = new_id()
    table.order(job_id, host.task(host.engine(SLEEP)))
    table.until(job_id, "running")

    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        for name in ("save", "_append", "save_rev"):
            patch.setattr(table.journal, name, full)
        table.rev += 1
        table.orders[job_id] = Order(job_id, "stop", 5.0, "engine", task=table.orders[job_id].task)
        assert table.jobs.converge(table.rev, list(table.orders.values()))
        assert table.until(job_id, "ended").signal == signal.SIGTERM
    table.converge()
    table.jobs.tick()
    table.die()
    again = host.table()
    assert again.until(job_id, "ended").signal == signal.SIGTERM and again.journal.buried(job_id)
    again.die()


@pytest.mark.parametrize("first", ["forget", "work"])
def test_a_start_that_a_full_disk_refused_leaves_no_folder(
    host: Host, table: Table, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whether the panel's word that it may be forgotten comes first, or the work in which it is no more."""
    job_id = new_id()

    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(table.journal, "save", full)
        table.order(job_id, host.task(host.engine(SLEEP)))
        status = table.status(job_id)
    assert status is not None and status.refusal is not None and status.refusal.code == "spawn_failed"
    assert host.job_folder(job_id).exists()
    if first == "work":
        del table.orders[job_id]
        table.converge()
    table.jobs.forget([job_id])
    assert not host.job_folder(job_id).exists()


def test_an_engine_that_started_on_a_disk_that_is_full_by_now_is_still_ours(
    host: Host, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, save = new_id(), table.journal.save
    calls: list[int] = []

    def full_after_the_first(record: Record, *, durable: bool = False) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        save(record, durable=durable)

    with monkeypatch.context() as patch:
        patch.setattr(table.journal, "save", full_after_the_first)
        table.order(job_id, host.task(host.engine(SLEEP)))
        assert table.until(job_id, "running").refusal is None and len(calls) > 1
    table.jobs.tick()
    table.die()
    again = host.table()
    assert again.until(job_id, "running").pid in marked(job_id)
    again.die()


def test_a_copy_of_the_folder_leaves_the_jobs_of_the_original_alone(host: Host, tmp_path: Path) -> None:
    table = host.table()
    job_id = "11111111-2222-4333-8444-555555555555"
    table.order(job_id, host.task(host.engine("time.sleep(600)")))
    table.until(job_id, "running")
    copy = tmp_path / "copy"
    shutil.copytree(host.dir, copy, symlinks=True)
    stop = [sys.executable, "-m", "panel.fleet.agent", "--dir", str(copy), "--stop-all", "--grace", "1"]
    done = subprocess.run(stop, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "left alone" in done.stderr, done.stderr
    assert marked(job_id)
    table.die()
    again = host.table()
    assert [job.record.id for job in again.jobs.living()] == [job_id], "the original still knows it"
    again.die()


def test_a_job_with_a_limit_takes_no_notice_of_a_clock_that_steps(
    host: Host, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, wall, runs = new_id(), [0.0], [0.0]
    table.order(job_id, host.task(host.engine(SLEEP)))
    table.until(job_id, "running")
    job = table.job(job_id)
    job.record.deadline_at = job.record.accepted_at + 600.0  # as a scan has one
    clock = SimpleNamespace(time=lambda: time.time() + wall[0], monotonic=lambda: time.monotonic() + runs[0])
    monkeypatch.setattr("panel.fleet.agent.job.time", clock)
    for wall[0] in (0.0, 3600.0, -3600.0):
        table.jobs.tick()
        assert not job.record.stop_reason and 0 < job._deadline() - time.monotonic() <= 600.0
    runs[0] = 601.0
    table.jobs.tick()
    assert job.record.stop_reason == "timed_out"
