"""The agent with an engine that behaves and misbehaves like vLLM: found, asked, started, stopped without a trace."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from panel.fleet import wire
from panel.fleet.agent import procs
from panel.fleet.agent.gpus import Reading
from tests.agent.conftest import Host, Table, marked
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.fakes.panel import FakePanel
from tests.waiting import until

pytestmark = pytest.mark.slow


def start(host: Host, table: Table, **fake: Any) -> str:
    job_id = str(uuid.uuid4())
    executable = make_fake_engine(host.folder / "engines" / "vllm-fake" / "bin")
    table.jobs.registry.config.__dict__["engine_cache"] = host.folder / "engines"
    model = make_fake_model(host.models / "fake", **fake)
    argv = [str(executable), "serve", str(model), "--host", "127.0.0.1", "--port", wire.PORT_PLACE]
    task = wire.EngineTask(argv=argv, model_path=str(model), secret_env={"VLLM_API_KEY": "key"})
    table.order(job_id, task)
    return job_id


def all_of(table: Table, job_id: str) -> set[int]:
    table.jobs.statuses(Reading())
    return {ident.pid for ident in table.job(job_id).known}


def alive(pids: set[int]) -> list[int]:
    return [stat.pid for stat in procs.snapshot().values() if stat.pid in pids and stat.alive]


def wait_listening(table: Table, job_id: str) -> wire.JobStatus:
    table.until(job_id, "running")
    until(lambda: table.jobs.tick() and table.job(job_id).listening, 60)
    status = table.status(job_id)
    assert status is not None and status.listening
    return status


@pytest.mark.parametrize("mode", ["ok", "forks", "ignores_term"])
@pytest.mark.parametrize("kill_shim", [False, True], ids=["", "no-shim"])
def test_no_process_is_left_whatever_it_forks_and_renames(host: Host, table: Table, mode: str, kill_shim: bool) -> None:
    job_id = start(host, table, mode=mode, **({} if mode == "ok" else {"stop_s": 0.0}))
    wait_listening(table, job_id)
    family = until(lambda: len(all_of(table, job_id)) >= (1 if mode == "ok" else 3) and all_of(table, job_id))
    names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in family}
    assert mode == "ok" or any(name.startswith("VLLM::") for name in names)
    shim = table.job(job_id).shim
    if kill_shim and shim is not None:
        os.kill(shim.pid, signal.SIGKILL)
    table.stop(job_id, grace_s=0.5)
    ended = table.until(job_id, "ended")
    assert alive(family) == [] and marked(job_id) == []
    assert ended.killed == (mode != "ok") and ended.stop_asked
    if kill_shim:
        assert ended.refusal == wire.Refusal(code="exit_unknown")
    else:
        assert ended.refusal is None and (ended.exit_code is not None or ended.signal is not None)


@pytest.mark.parametrize(
    ("mode", "exit_code", "number"),
    [("exit_at_once", 1, None), ("sigill", None, signal.SIGILL), ("exits_zero", 0, None), ("killed", None, 9)],
)
def test_how_it_ended_is_kept(host: Host, table: Table, mode: str, exit_code: int | None, number: int | None) -> None:
    job_id = start(host, table, mode=mode)
    ended = table.until(job_id, "ended", timeout_s=60)
    assert (ended.exit_code, ended.signal, ended.stop_asked) == (exit_code, number, False)


def test_found_asked_and_run_over_the_wire(
    host: Host, fake_panel: FakePanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = make_fake_engine(tmp_path / "elsewhere" / "bin")
    model = make_fake_model(host.models / "fake")
    host.configure(fake_panel, runtimes=[])
    host.start_agent(PATH="/usr/bin:/bin")
    argv = [str(executable), "serve", str(model), "--host", "127.0.0.1", "--port", wire.PORT_PLACE]
    task = wire.EngineTask(argv=argv, model_path=str(model))
    early = fake_panel.wait_state(fake_panel.order(task), "refused")
    assert early.refusal is not None and early.refusal.code == "runtime_unknown"
    # Once an admin named it and a discovery found that it works, it may run.
    discovery = fake_panel.order(wire.RuntimesTask(executables=[str(executable)]))
    fake_panel.wait(lambda: discovery in fake_panel.results, 90)
    (found,) = [item for item in fake_panel.results[discovery].items if item["executable"] == str(executable)]
    assert found["engine"] == "vllm" and found["origin"] == "named" and found["refusal"] is None
    assert found["version"] and found["flags"]
    job_id = fake_panel.order(task)
    fake_panel.wait(lambda: job_id in fake_panel.statuses and fake_panel.statuses[job_id].listening, 60)
    fake_panel.stop(job_id)
    ended = fake_panel.wait_state(job_id, "ended")
    log = host.job_folder(job_id) / "log"
    fake_panel.wait(lambda: fake_panel.log(job_id) == log.read_bytes())
    assert ended.log_size == len(fake_panel.log(job_id)) > 0 and not marked(job_id)
