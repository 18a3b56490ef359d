"""A small host for the agent's tests: a folder, models, engines that are tiny scripts, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from panel.fleet import wire
from panel.fleet.agent import procs
from panel.fleet.agent.config import Config
from panel.fleet.agent.files import Registry
from panel.fleet.agent.gpus import Reading
from panel.fleet.agent.install_host import TOOL
from panel.fleet.agent.install_host import pip_tool as pip_tool_of
from panel.fleet.agent.install_pip import Teller
from panel.fleet.agent.job import Job
from panel.fleet.agent.jobs import Jobs
from panel.fleet.agent.journal import Journal
from panel.fleet.agent.orders import Order
from panel.fleet.agent.provision import clean_env
from tests.fakes.panel import TOKEN, FakePanel
from tests.fakes.wheels import Index
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]


def marked(job_id: str) -> list[int]:
    """Living processes that carry the job's marker."""
    return [s.pid for s in procs.snapshot().values() if s.alive and procs.marker_of(s.pid) == job_id]


class Host:
    """A folder that plays a GPU host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dir = folder / "agent"
        self.dir.mkdir(mode=0o700)
        self.models = folder / "models"
        self.model = self.models / "small"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text("{}")
        self.runtimes: list[Path] = []  # shared with the settings of every agent of this host
        self.agents: list[subprocess.Popen[bytes]] = []

    def engine(self, code: str, name: str = "engine.py") -> str:
        """An executable that runs this Python code; it is registered by the host's own settings."""
        path = self.folder / name
        path.write_text(
            f"#!{sys.executable} -IS\nimport os, signal, sys, time\nassert sys.argv.pop(1) == 'serve'\n{code}\n"
        )
        path.chmod(0o755)
        self.runtimes.append(path)
        return str(path)

    def task(self, executable: str, *more: str, **fields: Any) -> wire.EngineTask:
        argv = [executable, "serve", str(self.model), "--host", "127.0.0.1", "--port", wire.PORT_PLACE, *more]
        return wire.EngineTask(**{"argv": argv, "model_path": str(self.model), **fields})

    def config(self, **more: Any) -> Config:
        return Config(folder=self.dir, model_roots=[self.models], runtimes=self.runtimes, **more)

    def table(self) -> Table:
        return Table(self)

    # --- the agent as a process of its own --------------------------------------------------------------------------

    def configure(self, panel: FakePanel, **more: Any) -> None:
        runtimes = [str(path) for path in self.runtimes]
        settings = {"panel": panel.url, "model_roots": [str(self.models)], "runtimes": runtimes, "report_s": 0.5}
        for name, text in (("agent.json", json.dumps({**settings, **more})), ("token", TOKEN)):
            (self.dir / name).write_text(text)
            (self.dir / name).chmod(stat.S_IRUSR | stat.S_IWUSR)

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "panel.fleet.agent", "--dir", str(self.dir), *args]

    def start_agent(self, **env: str) -> subprocess.Popen[bytes]:
        with (self.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen(self.command(), cwd=ROOT, stderr=log, env={**os.environ, **env})
        self.agents.append(agent)
        return agent

    def kill_agent(self) -> None:
        self.agents[-1].kill()
        self.agents[-1].wait(10)

    def job_folder(self, job_id: str) -> Path:
        return self.dir / "jobs" / job_id

    def clean(self) -> None:
        for agent in self.agents:
            agent.kill()
            agent.wait(10)
        ids = {path.name for path in self.dir.glob("jobs/*")}
        ids |= {line for line in _lines(self.dir / "tombstones") if line}
        end = time.monotonic() + 10
        while time.monotonic() < end:
            left = [s.pid for s in procs.snapshot().values() if s.alive and procs.marker_of(s.pid) in ids]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            if not left:
                return
            time.sleep(0.02)
        raise AssertionError(f"processes left: {left}")


def _lines(path: Path) -> list[str]:
    return path.read_text().split("\n") if path.exists() else []


class Table:
    """The agent's table of jobs in this process, driven by the test."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.journal = Journal(host.dir)
        self.journal.lock()
        self.jobs = Jobs(self.journal, Registry(host.config()))
        self.jobs.adopt()
        self.rev = self.jobs.seen_rev
        self.orders: dict[str, Order] = {}

    def order(self, job_id: str, task: Any, desired: str = "run", grace_s: float = 5.0) -> None:
        self.orders[job_id] = Order(job_id, desired, grace_s, task.kind, task=task)
        self.converge()

    def stop(self, job_id: str, grace_s: float = 5.0) -> None:
        self.order(job_id, self.orders[job_id].task, "stop", grace_s)

    def converge(self) -> None:
        self.rev += 1
        assert self.jobs.converge(self.rev, list(self.orders.values()))

    def status(self, job_id: str) -> wire.JobStatus | None:
        return next((s for s in self.jobs.statuses(Reading()) if s.id == job_id), None)

    def job(self, job_id: str) -> Job:
        return self.jobs.jobs[job_id]

    def until(self, job_id: str, *states: str, timeout_s: float = 20.0) -> wire.JobStatus:
        def look() -> wire.JobStatus | None:
            self.jobs.tick()
            status = self.status(job_id)
            return status if status is not None and status.state in states else None

        found: wire.JobStatus = until(look, timeout_s, why=f"for {states}, now {self.status(job_id)}")
        return found

    def die(self) -> None:
        """As if the agent had been killed: nothing is said, the lock is free."""
        self.journal.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.clean()


@pytest.fixture
def table(host: Host) -> Iterator[Table]:
    made = host.table()
    yield made
    made.die()


@pytest.fixture
def fake_panel() -> Iterator[FakePanel]:
    with FakePanel() as panel:
        yield panel


@pytest.fixture(scope="session")
def pip_tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The venv with an install's own pip, made once: `.pip` of a managed folder may be a link to it."""
    managed = tmp_path_factory.mktemp("tool")
    pip_tool_of(sys.executable, managed, Teller(lambda line: None), {**clean_env(), "PIP_NO_INDEX": "1"})
    return managed / TOOL


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "index") as made:
        yield made
