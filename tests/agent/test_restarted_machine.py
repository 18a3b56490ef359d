"""After a restart of the machine: the journal is of another boot, and no process of it lives."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from panel.fleet import wire
from panel.fleet.agent import procs
from panel.fleet.agent.orders import Order
from tests.agent.conftest import Host, Table, marked
from tests.waiting import until

SLEEP = "print('up', flush=True); time.sleep(600)"
EARLIER = "11111111-2222-3333-4444-555555555555"


def power_cut(table: Table, job_ids: list[str]) -> None:
    """End the agent, the shims and the engines at once, and make the journal one of an earlier boot."""
    table.die()
    for job_id in job_ids:
        folder = table.host.job_folder(job_id)
        pids = {int(ident[0]) for ident in idents(folder)} | set(marked(job_id))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda pids=pids: not any((s := procs.read_stat(pid)) and s.alive for pid in pids), why="all are gone")
        (folder / "exit.json").unlink(missing_ok=True)
        for name in ("run.json", "job.json"):
            if (folder / name).exists():
                raw = json.loads((folder / name).read_text())
                (folder / name).write_text(json.dumps(of_earlier_boot(raw)))


def idents(folder: Path) -> list[list[Any]]:
    run = json.loads((folder / "run.json").read_text())
    return [value for value in run.values() if isinstance(value, list) and len(value) == 3]


def of_earlier_boot(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [*value[:2], EARLIER]
        if isinstance(value, list) and len(value) == 3 and value[2] == procs.boot_id()
        else value
        for key, value in raw.items()
    }


def test_what_the_restart_ended_is_told_from_a_crash(host: Host) -> None:
    table, job_id = host.table(), str(uuid.uuid4())
    table.order(job_id, host.task(host.engine(SLEEP)))
    table.until(job_id, "running")
    power_cut(table, [job_id])
    again = host.table()
    try:
        ended = again.until(job_id, "ended")
        assert ended.refusal == wire.Refusal(code="host_restarted")
        assert (ended.exit_code, ended.signal, ended.stop_asked) == (None, None, False)
        again.order(job_id, host.task(host.engine(SLEEP)))
        assert again.status(job_id).state == "ended", "the same id never runs twice; the panel makes a new one"
        assert not marked(job_id)
    finally:
        again.die()


def test_an_exit_that_was_written_down_before_the_restart_counts(host: Host) -> None:
    table, job_id = host.table(), str(uuid.uuid4())
    table.order(job_id, host.task(host.engine("sys.exit(3)")))
    until(lambda: (host.job_folder(job_id) / "exit.json").exists(), why="the shim wrote the exit")
    table.die()
    for name in ("run.json", "job.json"):
        path = host.job_folder(job_id) / name
        path.write_text(json.dumps(of_earlier_boot(json.loads(path.read_text()))))
    again = host.table()
    try:
        ended = again.until(job_id, "ended")
        assert (ended.exit_code, ended.refusal) == (3, None)
    finally:
        again.die()


def test_a_stop_that_was_under_way_is_over_and_stays_a_stop(host: Host) -> None:
    table, job_id = host.table(), str(uuid.uuid4())
    table.order(job_id, host.task(host.engine("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP)))
    table.until(job_id, "running")
    until(lambda: b"up" in (host.job_folder(job_id) / "log").read_bytes(), why="it ignores TERM by now")
    table.stop(job_id, grace_s=60.0)
    table.until(job_id, "stopping")
    power_cut(table, [job_id])
    again = host.table()
    try:
        assert again.until(job_id, "ended").stop_asked
    finally:
        again.die()


def test_a_pid_that_another_program_has_now_is_not_taken_for_ours(host: Host) -> None:
    """After the restart the engine's old pid may be anybody's: here this test's own."""
    table, job_id = host.table(), str(uuid.uuid4())
    table.order(job_id, host.task(host.engine(SLEEP)))
    table.until(job_id, "running")
    power_cut(table, [job_id])
    path = host.job_folder(job_id) / "run.json"
    run = json.loads(path.read_text())
    me = procs.Ident.of(os.getpid())
    assert me is not None
    run["engine"] = [me.pid, me.start, EARLIER]
    path.write_text(json.dumps(run))
    again = host.table()
    try:
        assert again.until(job_id, "ended").refusal == wire.Refusal(code="host_restarted")
    finally:
        again.die()


def test_what_had_not_begun_is_started_by_the_next_work(host: Host) -> None:
    """The record was written, the power went before anything ran: the order still stands, and runs once."""
    table, job_id = host.table(), str(uuid.uuid4())
    task = host.task(host.engine(SLEEP))
    table.order(job_id, task)
    table.until(job_id, "running")
    power_cut(table, [job_id])
    (host.job_folder(job_id) / "run.json").unlink()
    again = host.table()
    try:
        again.order(job_id, task)
        again.until(job_id, "running")
        assert len(until(lambda: marked(job_id))) == 1
    finally:
        again.die()


def test_what_the_panel_saw_running_is_not_started_again_by_a_disk_that_never_heard_of_it(host: Host) -> None:
    """A snapshot of an earlier day was put back: the panel has the run's log and end of life, this disk has nothing."""
    table, job_id = host.table(), str(uuid.uuid4())
    task = host.task(host.engine(SLEEP))
    try:
        assert table.jobs.converge(7, [Order(job_id, "run", 5.0, "engine", task=task, begun=True)])
        status = table.status(job_id)
        assert status is not None and (status.state, status.refusal) == ("ended", wire.Refusal(code="host_restarted"))
        assert not marked(job_id)
        assert table.jobs.converge(8, [Order(job_id, "stop", 5.0, "engine", task=task, begun=True)])
        assert table.status(job_id).state == "ended"
        table.jobs.forget([job_id])
        assert table.status(job_id) is None
    finally:
        table.die()


def test_a_torn_record_of_something_that_ran_is_an_end_not_a_new_start(host: Host) -> None:
    table, job_id = host.table(), str(uuid.uuid4())
    task = host.task(host.engine(SLEEP))
    table.order(job_id, task)
    table.until(job_id, "running")
    power_cut(table, [job_id])
    (host.job_folder(job_id) / "job.json").write_text('{"id": "')
    again = host.table()
    try:
        assert again.until(job_id, "ended").refusal == wire.Refusal(code="host_restarted")
        again.order(job_id, task)
        assert not marked(job_id)
    finally:
        again.die()


def test_the_start_of_a_container_is_a_boot_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its restart ends the engines while the kernel goes on; on a plain machine only the kernel's boot counts."""
    first = procs.read_stat(1)
    assert first is not None
    for name in ("boot_id", "kernel_boot"):
        getattr(procs, name).cache_clear()
    try:
        monkeypatch.setattr(procs, "in_container", lambda: False)
        assert procs.boot_id() == procs.kernel_boot()
        procs.boot_id.cache_clear()
        monkeypatch.setattr(procs, "in_container", lambda: True)
        before = procs.boot_id()
        assert before == f"{procs.kernel_boot()}.{first.start}"
        procs.boot_id.cache_clear()
        monkeypatch.setattr(procs, "read_stat", lambda pid: first._replace(start=first.start + 7))
        assert procs.boot_id() != before
    finally:
        procs.boot_id.cache_clear()
