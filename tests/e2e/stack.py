"""A whole Berth for tests: web, worker and agent as processes, on a database of its own; engines are fake or real.

Times of the loop are short. Each process can be killed and started again by name, as chaos and recovery tests do.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from panel.core.database import own_connection
from tests.servers import Servers
from tests.waiting import free_port, until

ROOT = Path(__file__).resolve().parent.parent.parent
FAST = {
    "BERTH_TICK_S": "0.3",
    "BERTH_CLAIM_S": "2",
    "BERTH_HOST_LOST_S": "4",
    "BERTH_RESTART_FIRST_S": "0.5",
    "BERTH_LOG_LEVEL": "WARNING",
}


class Stack:
    """The processes of one Berth, and shortcuts to speak with it."""

    def __init__(self, servers: Servers, folder: Path, *, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.models = folder / "models"
        self.engines = Path((env or {}).get("BERTH_ENGINE_CACHE", folder / "engines"))
        self.data = folder / "data"
        for path in (self.models, self.engines, self.data):
            path.mkdir(exist_ok=True)
        self.env = {
            **servers.environment(self.data),
            **FAST,
            "BERTH_BIND": f"127.0.0.1:{self.port}",
            "BERTH_ENGINE_CACHE": str(self.engines),
            "HOME": str(folder),
            "PATH": f"{self.engines}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **(env or {}),
        }
        self.procs: dict[str, subprocess.Popen[bytes]] = {}

    # --- processes ---

    COMMANDS: dict[str, list[str]] = {
        "web": ["-m", "panel.web"],
        "worker": ["-m", "celery", "-A", "panel.celery", "--quiet", "worker", "-P", "threads", "-c", "8",
                   "-Q", "loop,probe", "--without-gossip", "--without-mingle"],
        "agent": ["-m", "panel.fleet.agent"],
    }  # fmt: skip

    def start(self, name: str) -> None:
        args, python = list(self.COMMANDS[name]), sys.executable
        if name == "agent":
            args += ["--dir", str(self.data / "agent")]
            python = os.environ.get("BERTH_TEST_AGENT_PYTHON", python)
        log = (self.folder / f"{name}.log").open("ab")
        self.procs[name] = subprocess.Popen(
            [python, *args],
            cwd=ROOT,
            env=self.env,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def start_all(self) -> None:
        from panel.fleet.services import ensure_local_host

        ensure_local_host(self.data / "agent")
        config = self.data / "agent" / "agent.json"
        values = {**json.loads(config.read_text()), "model_roots": [str(self.models)], "report_s": 1}
        config.write_text(json.dumps(values))
        for name in ("web", "worker", "agent"):
            self.start(name)
        until(self.healthy, timeout=30, why="web answers")
        until(lambda: self.host().last_seen_at, timeout=30, why="the agent called")

    @contextmanager
    def settings(self) -> Iterator[None]:
        """This process's settings as the stack's processes have them."""
        logs = {**django_settings.STORAGES["logs"], "OPTIONS": {"location": self.data / "logs"}}
        names = {
            "BERTH_INTERNAL_URL": self.url,
            "BERTH_ENGINE_CACHE": self.engines,
            "BERTH_DATA": self.data,
            "STORAGES": {**django_settings.STORAGES, "logs": logs},
        }
        with override_settings(**names):  # its signal also makes the storages anew
            yield

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End one process, not its children, and reap it."""
        self.procs[name].send_signal(number)
        self.procs[name].wait(10)

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for proc in self.procs.values():
                if proc.poll() is None:
                    proc.send_signal(number)
            end = time.monotonic() + 6
            while time.monotonic() < end and any(p.poll() is None for p in self.procs.values()):
                time.sleep(0.05)
        for proc in self.job_processes():
            proc.kill()

    # --- what is true, asked of the machine and not of Berth ---

    def job_processes(self, job_id: Any = "") -> list[psutil.Process]:
        """Engine processes of this stack by their environment marker; shims are not engines."""
        found = []
        for proc in psutil.process_iter():
            try:
                env = proc.environ()
                if not env.get("BERTH_JOB", "").startswith(str(job_id)) or "BERTH_JOB" not in env:
                    continue
                if env.get("HOME") == str(self.folder) and proc.status() != psutil.STATUS_ZOMBIE:
                    found.append(proc)
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue
        return found

    def host(self) -> Any:
        from panel.fleet.models import Host

        return Host.objects.get(is_local=True)

    def logs(self) -> str:
        """The last lines of every process, for a failing test."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            parts.append(f"--- {path.name}\n" + path.read_text(errors="replace")[-3000:])
        return "\n".join(parts)

    # --- acts, as a person would ---

    def scan(self) -> None:
        """Look for models and engines again, and wait until both are known."""
        from panel.fleet import services, wire
        from panel.fleet.models import Job

        jobs = [
            services.order_job(host=self.host(), task=wire.RuntimesTask()),
            services.order_job(host=self.host(), task=wire.ScanTask()),
        ]
        pks = [job.pk for job in jobs]
        until(lambda: Job.objects.filter(pk__in=pks, open=False).count() == 2, timeout=60, why="scans ended")

    def artifact(self, name: str) -> Any:
        from models_catalog.models import Copy

        copies = Copy.objects.filter(present=True, path__contains=name).select_related("artifact")
        return until(copies.first, why=f"{name} is in the catalog").artifact

    def deploy(self, name: str, model: str, **spec: Any) -> Any:
        from deployments import services
        from deployments.spec import DeploymentSpec

        values = {"artifact_id": self.artifact(model).pk, "device": "cpu", "kv_cache_gib": 1, "grace_s": 1.0, **spec}
        return services.create(name=name, spec=DeploymentSpec.model_validate(values), actor=None)

    def state(self, deployment: Any) -> str:
        deployment.refresh_from_db()
        return str(deployment.state)

    def wait_for(self, deployment: Any, *states: str, timeout: float = 30.0) -> Any:
        """Wait for one of the states; the deployment, fresh."""
        try:
            until(
                lambda: self.state(deployment) in states, timeout=timeout, why=f"{deployment.name} is one of {states}"
            )
        except AssertionError as exc:
            raise AssertionError(f"{exc}; it is {deployment.state} {deployment.reason}\n{self.logs()}") from None
        return deployment


@contextmanager
def running(servers: Servers, folder: Path, make: type[Stack] = Stack, **kwargs: Any) -> Iterator[Stack]:
    """A stack on a new database of its own; this process's ORM works on that one meanwhile."""
    connection = connections["default"]
    before = connection.settings_dict["NAME"]
    name = f"stack_{os.getpid()}_{folder.name.replace('-', '_')}"[:60].lower()
    _admin(f'CREATE DATABASE "{name}"')
    connection.settings_dict["NAME"] = django_settings.DATABASES["default"]["NAME"] = name
    try:
        call_command("migrate", verbosity=0)
        stack = make(servers, folder, **kwargs)
        try:
            with stack.settings():
                yield stack
        finally:
            stack.stop()
    finally:
        connections.close_all()
        _close_pool()
        connection.settings_dict["NAME"] = django_settings.DATABASES["default"]["NAME"] = before
        _admin(f'DROP DATABASE "{name}" WITH (FORCE)')


def _close_pool() -> None:
    connection = connections["default"]
    if hasattr(connection, "close_pool"):
        connection.close_pool()


def _admin(statement: str) -> None:
    """Run one statement outside any database that is copied or dropped."""
    connections.close_all()
    _close_pool()
    with own_connection(dbname="postgres") as admin:
        admin.execute(statement)
