"""A Berth that can be broken: two web processes, two workers, an agent, PostgreSQL and Valkey, all of them ours to end.

What is true is read from the kernel (/proc) and from what the fake engines kept, never asked of Berth.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import redis
from django.conf import settings
from django.db import InterfaceError, OperationalError, connections

from panel.core.locks import Lock
from panel.embedded import Embedded
from tests.chaos.cable import Cable
from tests.chaos.cards import Cards
from tests.chaos.clocks import Clock
from tests.chaos.times import Times
from tests.e2e.stack import Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.servers import Servers
from tests.waiting import free_port, until

PARTS = ("web", "worker", "agent")
NAMES = {"web": ("web", "web2"), "worker": ("worker", "worker2"), "agent": ("agent",)}
BACK_S = 60.0  # within which what was killed must be up again
MODELS: dict[str, dict[str, Any]] = {
    "steady": {"children": 2, "phase_s": 0.1, "stop_s": 0.2},
    "slow": {"children": 1, "phase_s": 0.25, "stop_s": 0.6},
    "stubborn": {"children": 3, "phase_s": 0.1, "children_stay": True, "ignore_term": True, "orphan": True},
    "forks": {"children": 3, "phase_s": 0.1, "children_stay": True, "orphan": True},
}

T = TypeVar("T")


def own_servers() -> Servers:
    """PostgreSQL and Valkey that may be killed. PostgreSQL is durable: what it said is done must outlive it."""
    folder = tempfile.TemporaryDirectory(prefix="berth-chaos-db-")
    embedded = Embedded(Path(folder.name), durable=True, createdb=True).start(60)
    return Servers(embedded.postgres.url(), embedded.valkey.url(), embedded, folder)


def fresh(read: Callable[[], T], patience: float = 30.0) -> T:
    """Read from the database; connections that a killed server left behind are thrown away and it is tried again."""
    end = time.monotonic() + patience
    while True:
        try:
            return read()
        except (OperationalError, InterfaceError):
            connections.close_all()
            connections["default"].close_pool()
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@dataclass
class Seen:
    """Processes of this Berth's jobs: by job all of an engine's family, its main process, its shim."""

    processes: dict[str, list[int]] = field(default_factory=dict)
    mains: dict[str, list[int]] = field(default_factory=dict)
    shims: dict[str, int] = field(default_factory=dict)


class Berth(Stack):
    """See the module."""

    def __init__(self, servers: Servers, folder: Path, *, times: Times, **kwargs: Any) -> None:
        self.times, self.servers = times, servers
        self.copies = folder / "copies"
        self.copies.mkdir()
        # Moments and invariants are about runs: a check before each first start would be one more process beside them.
        env = {"BERTH_CHECK_BEFORE_START": "0", **times.environment(), **kwargs.pop("env", {})}
        self.cards = Cards(folder)
        super().__init__(servers, folder, env={**env, **self.cards.env}, **kwargs)
        self.second_port = free_port()
        self.urls = (self.url, f"http://127.0.0.1:{self.second_port}")
        self.tokens: list[str] = []  # of two people
        # One for all, since making one is dear; without kept connections, since whoever is at their other end dies.
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=0)
        self.http = httpx.Client(trust_env=False, verify=False, limits=limits)
        self._looking = threading.Lock()
        self._newest = (0.0, Seen())
        self._dead: set[tuple[int, int]] = set()
        self.cable, self.clock, self.host_clock = Cable(self.port), Clock(folder, "panel"), Clock(folder, "host")

    # --- processes ---

    def start(self, name: str) -> None:
        self.procs[name] = self._spawn(name)

    def start_beside(self, name: str) -> subprocess.Popen[bytes]:
        """One more of the same, of which this Berth knows nothing but that it ends with it."""
        number = sum(1 for known in self.procs if known.startswith("beside"))
        self.procs[f"beside{number}"] = process = self._spawn(name)
        return process

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        args, env = list(self.COMMANDS[name.rstrip("2")]), dict(self.env)
        env |= self.host_clock.env if name == "agent" else self.clock.env
        if name == "web2":
            # Inside parts go on calling the first one; this one only serves people.
            env |= {"BERTH_BIND": f"127.0.0.1:{self.second_port}", "BERTH_INTERNAL_URL": self.url}
        elif name == "agent":
            args = ["-m", "tests.chaos.host_agent"]  # the same one, whose shims have the host's clock, too
            args += ["--dir", str(self.data / "agent")]
        elif name == "worker2":
            args += ["-n", "second@%h"]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *args], cwd=Path(__file__).parents[2], env=env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def begin(self) -> None:
        """Bring everything up, with models, an engine and a person's token."""
        from panel.accounts.models import Scope, User
        from panel.accounts.tokens import create_token
        from panel.fleet.services import ensure_local_host

        make_fake_engine(self.engines)
        for_cards = self.cards.make_engine(self.folder)
        for name, fake in MODELS.items():
            make_fake_model(self.models / name, copies=str(self.copies), **fake)
        ensure_local_host(self.data / "agent")
        config = self.data / "agent" / "agent.json"
        values = {**json.loads(config.read_text()), "model_roots": [str(self.models)], "report_s": self.times.report,
                  "runtimes": for_cards}  # fmt: skip
        values["panel"] = self.cable.url
        config.write_text(json.dumps(values))
        for username in ("olga", "nils"):
            person = User.objects.create_user(username=username, password="harbour lights at nine", role="admin")
            self.tokens.append(create_token(person, "chaos", actor=person, scope=Scope.API_WRITE)[1])
        for names in NAMES.values():
            for name in names:
                self.start(name)
        self.heal()
        self.scan()
        until(lambda: self.cards.known(), why="all cards are reported")
        self.ids = {name: self.artifact(name).pk for name in MODELS}

    def heal(self) -> None:
        """Start what is not alive, and return when web processes, servers and agent answer."""
        embedded = self.servers.embedded
        assert embedded is not None
        for server in (embedded.valkey, embedded.postgres):
            if not server.alive():
                self._revive(server)
            until(server.answers, timeout=BACK_S / 3, why=f"{server.name} is back")
        for names in NAMES.values():
            for name in names:
                if name not in self.procs or self.procs[name].poll() is not None:
                    self.start(name)
        for url in self.urls:
            until(lambda url=url: self.up(url), timeout=BACK_S / 3, why="web answers")
        since = self.heard()
        until(lambda: self.heard() != since, timeout=BACK_S / 3, why="the agent calls")
        until(self.ticking, timeout=BACK_S / 3, why="a worker's ticker leads")

    @staticmethod
    def ticking() -> bool:
        """Whether a worker is up: its ticker holds the lock of the leader."""

        def look() -> bool:
            with connections["default"].cursor() as cursor:
                cursor.execute(
                    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND granted"
                    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
                    [int(Lock.TICKER)],
                )
                return bool(cursor.fetchone()[0])

        return fresh(look)

    def heard(self) -> tuple[Any, Any]:
        """When the agent called last, by the host's row and by the broker's memory."""
        from panel.fleet.samples import SEEN

        host = fresh(self.host)
        with redis.Redis.from_url(self.servers.redis_url, socket_timeout=2) as client:
            return host.last_seen_at, client.hget(SEEN, str(host.pk))

    def _revive(self, server: Any) -> None:
        """A server that was killed: its children must be gone before it starts again, as a supervisor would find."""
        if server.child is not None:
            server.child.wait(10)
        if server.name == "postgres":
            until(lambda: not self._backends_of(server.folder), why="PostgreSQL's children are gone")
        server.start()

    @staticmethod
    def _backends_of(folder: Path) -> list[int]:
        return [pid for pid in _pids() if _link(pid, "cwd") == str(folder.resolve())]

    def up(self, url: str) -> bool:
        with suppress(httpx.HTTPError):
            return self.http.get(f"{url}/healthz", timeout=1).status_code == 200
        return False

    def of_kind(self, kind: str, which: int | None = None) -> list[psutil.Process]:
        """Living processes of one kind. PostgreSQL's first one is the server, the others are its children."""
        if kind in ("valkey", "postgres"):
            server = getattr(self.servers.embedded, kind)
            with suppress(psutil.NoSuchProcess):
                if server.alive():
                    return [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(True)]
            return []
        names = NAMES[kind] if which is None else NAMES[kind][which : which + 1]
        return [psutil.Process(self.procs[n].pid) for n in names if n in self.procs and self.procs[n].poll() is None]

    def engine_side(self, actor: str, job_id: str) -> list[psutil.Process]:
        """The shim, the main process or the engine's other processes of one job."""
        seen = self.seen()
        mains = seen.mains.get(job_id, [])
        found = {
            "shim": [seen.shims[job_id]] if job_id in seen.shims and mains else [],
            "engine": mains,
            "child": [pid for pid in seen.processes.get(job_id, []) if pid not in mains][:1],
        }[actor]
        return [psutil.Process(pid) for pid in found if psutil.pid_exists(pid)]

    def all_pids(self) -> list[int]:
        seen = self.seen()
        own = [p.pid for kind in (*PARTS, "postgres", "valkey") for p in self.of_kind(kind)]
        return [*own, *seen.shims.values(), *[pid for pids in seen.processes.values() for pid in pids]]

    # --- what is true ---

    def seen(self, *, since: float = 0.0) -> Seen:
        """All engine processes and shims of this Berth, by markers, working folders and the pids that engines kept.

        `since` (a monotonic time): a look that is not older is good enough; many runs ask at the same time.
        """
        with self._looking:
            at, found = self._newest
            if not since or at < since:
                at = time.monotonic()
                found = self._look()
                self._newest = at, found
            return found

    def _look(self) -> Seen:
        found, jobs = Seen(), str(self.data / "agent" / "jobs")
        for pid in _pids():
            env = _environ(pid)
            if env.get("HOME") == str(self.folder) and (job := env.get("BERTH_JOB")):
                found.processes.setdefault(job, []).append(pid)
                if "serve" in _words(pid):
                    found.mains.setdefault(job, []).append(pid)
            elif (cwd := _link(pid, "cwd")).startswith(jobs) and any("shim.py" in word for word in _words(pid)):
                found.shims[Path(cwd).name] = pid
        for path in self.copies.glob("*.pids"):
            for line in path.read_text().splitlines():
                pid, ticks = map(int, line.split())
                if (pid, ticks) in self._dead:
                    continue
                if _ticks(pid) != ticks:
                    self._dead.add((pid, ticks))
                elif pid not in found.processes.get(path.stem, []):
                    found.processes.setdefault(path.stem, []).append(pid)
        return found

    def written(self, job_id: str) -> bytes:
        """What the engine of this job wrote, by its own account."""
        path = self.copies / job_id
        return path.read_bytes() if path.exists() else b""

    def pss_mib(self) -> dict[str, tuple[int, float]]:
        """{name: (pid, MiB)} of the lasting processes; PostgreSQL with all its children."""
        named = {name: [self.procs[name].pid] for names in NAMES.values() for name in names if name in self.procs}
        named |= {kind: [process.pid for process in self.of_kind(kind)] for kind in ("valkey", "postgres")}
        sizes = {name: (pids[0], sum(_pss(pid) for pid in pids)) for name, pids in named.items() if pids}
        return {name: value for name, value in sizes.items() if value[1]}

    def queued(self) -> dict[str, int]:
        """Tasks that wait in the broker."""
        with redis.Redis.from_url(self.servers.redis_url, socket_timeout=2) as client:
            return {name: int(client.llen(name)) for name in ("loop", "probe")}  # type: ignore[arg-type] # sync client


# --- /proc, read without a library: a scan is made many times a second -------------------------------------------------


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - quicker


def _raw(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _environ(pid: int) -> dict[str, str]:
    pairs = (part.partition(b"=") for part in _raw(pid, "environ").split(b"\0") if b"=" in part)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def visible_cards(pid: int) -> list[str]:
    """Which cards an engine may use, by its environment."""
    return [uuid for uuid in _environ(pid).get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid]


def _words(pid: int) -> list[str]:
    return _raw(pid, "cmdline").decode(errors="replace").split("\0")


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")  # noqa: PTH115
    except OSError:
        return ""


def _ticks(pid: int) -> int:
    """When the process began, 0 for one that is gone or a zombie."""
    fields = _raw(pid, "stat").rpartition(b")")[2].split()
    return int(fields[19]) if fields and fields[0] != b"Z" else 0


def _pss(pid: int) -> float:
    for line in _raw(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


@contextmanager
def berth(servers: Servers, folder: Path, times: Times) -> Iterator[Berth]:
    """A Berth on a database of its own; this process's ORM works on that one meanwhile."""
    with running(servers, folder, make=Berth, times=times) as made:
        assert isinstance(made, Berth)
        try:
            made.begin()
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{made.logs()}") from None
        try:
            yield made
        finally:
            made.cable.close()


def point_django_at(servers: Servers) -> None:
    """This process's settings name the servers, as tests/conftest.py does for pytest."""
    from panel.celery import app
    from panel.core.services_urls import redis_urls

    settings.DATABASES["default"].update(servers.database_settings())
    settings.REDIS_URL, settings.CELERY_BROKER_URL = redis_urls(servers.redis_url, settings.BERTH_DATA)
    app.conf.broker_url = settings.CELERY_BROKER_URL
