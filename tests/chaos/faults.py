"""Faults: something is broken for a while and then mended.

A fault is made from the random numbers of its group of runs, begins at the moment to which they came, and ends when its
harm is undone. Whatever was killed is then started again by the harness (`Berth.heal`), what slept is to be woken by
the fault. Files named faults_*.py in this folder add more: each has a list FAULTS of factories, which are mixed into
the matrix.
"""

import importlib
import os
import pkgutil
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psutil

import tests.chaos
from tests.chaos.berth import PARTS, Berth

LEAVE_S = 15.0  # for an orderly end on a busy machine
ENGINE_SIDE = ("shim", "engine", "child")


@dataclass
class Fault:
    """What all faults share: they say whether there was anything to break, and what they break.

    `kills_engine`: the engine may be gone by it, so that a failed run is the truth and not a fault of Berth.
    `silences_agent`: the panel hears nothing of the host while it lasts.
    `per_run`: it strikes what belongs to one run, so that each run of the group has one of its own.
    """

    berth: Berth
    rng: random.Random
    name: str = ""
    kills_engine: bool = False
    silences_agent: bool = False
    per_run: bool = False

    def begin(self, job_id: str) -> bool:
        """Break it; False when there was nothing to break."""
        return True

    def hold(self) -> float:
        """Seconds between begin and end."""
        return self.rng.uniform(0.0, 1.0)

    def end(self) -> None:
        """Undo it. What was killed is started again by the harness."""

    def over(self) -> None:
        """All was judged: what had to stay until then goes."""


Factory = Callable[[Berth, random.Random], Fault]


@dataclass
class Calm(Fault):
    """Nothing breaks: the moments alone must be right, too."""

    name: str = "calm"


@dataclass
class OnProcesses(Fault):
    """Sends a signal to the processes of one actor. `actor` may be one of several of its kind ("web"), or all ("webs")."""

    actor: str = ""
    victims: list[psutil.Process] = field(default_factory=list)
    patience_s: float = 2.0

    def find(self, job_id: str) -> list[psutil.Process]:
        if self.actor in ENGINE_SIDE:
            return self.berth.engine_side(self.actor, job_id)
        if self.actor in ("web", "worker"):
            return self.berth.of_kind(self.actor, self.rng.choice([0, 1]))
        return self.berth.of_kind(self.actor.removesuffix("s") if self.actor in ("webs", "workers") else self.actor)

    def begin(self, job_id: str) -> bool:
        end = time.monotonic() + self.patience_s
        while not (found := self.find(job_id)) and time.monotonic() < end:
            time.sleep(0.01)
        self.victims = found
        for process in found:
            self.strike(process)
        return bool(found)

    def strike(self, process: psutil.Process) -> None:
        raise NotImplementedError


@dataclass
class Kill(OnProcesses):
    """SIGKILL, and a moment later it is started again, as a supervisor would."""

    def __post_init__(self) -> None:
        self.name = f"kill {self.actor}"
        self.kills_engine = self.actor in ("engine", "shim")
        self.per_run = self.actor in ENGINE_SIDE
        self.silences_agent = self.actor == "agent"

    def strike(self, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@dataclass
class Pause(OnProcesses):
    """SIGSTOP for longer than every lease, then SIGCONT: it goes on with what it believed before."""

    def __post_init__(self) -> None:
        self.name = f"pause {self.actor}"
        self.per_run = self.actor in ENGINE_SIDE
        self.silences_agent = self.actor == "agent"

    def strike(self, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            process.suspend()

    def hold(self) -> float:
        return self.berth.times.beyond_every_lease

    def end(self) -> None:
        for process in reversed(self.victims):
            with suppress(psutil.NoSuchProcess):
                process.resume()


@dataclass
class Restart(OnProcesses):
    """An orderly end and a new start, as an upgrade does it."""

    def __post_init__(self) -> None:
        self.name = f"restart {self.actor}"

    def find(self, job_id: str) -> list[psutil.Process]:
        if self.actor == "all":
            return [p for kind in PARTS for p in self.berth.of_kind(kind)]
        return super().find(job_id)[:1] if self.actor == "postgres" else super().find(job_id)

    def strike(self, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT if self.actor == "postgres" else signal.SIGTERM)

    def end(self) -> None:
        """An orderly end takes its time; only then there is something to start again."""
        _gone, alive = psutil.wait_procs(self.victims, timeout=LEAVE_S)
        assert not alive, f"{self.actor} did not end within {LEAVE_S:g} s: {alive}"


@dataclass
class Backend(Fault):
    """One of PostgreSQL's own children is killed: the server throws everyone out and recovers."""

    name: str = "kill postgres backend"

    def begin(self, job_id: str) -> bool:
        backends = self.berth.of_kind("postgres")[1:]
        with suppress(psutil.NoSuchProcess):
            if backends:
                self.rng.choice(backends).kill()
                return True
        return False


@dataclass
class Everything(Fault):
    """The machine's processes all die at once: panel, servers, agent, shims, engines."""

    name: str = "kill everything"
    kills_engine: bool = True

    def begin(self, job_id: str) -> bool:
        for pid in self.berth.all_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True


@dataclass
class Host(Fault):
    """The host dies and comes back: agent, shims and engines; the panel lives on."""

    name: str = "kill host"
    kills_engine: bool = True

    def begin(self, job_id: str) -> bool:
        seen = self.berth.seen()
        pids = [p.pid for p in self.berth.of_kind("agent")] + [p for ps in seen.processes.values() for p in ps]
        for pid in [*pids, *seen.shims.values()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)


@dataclass
class SecondAgent(Fault):
    """The same host's agent is started once more while the first one works: it must leave."""

    name: str = "agent started twice"
    second: Any = None
    LEFT: ClassVar[int] = 3  # its exit code for "an agent already runs here"

    def begin(self, job_id: str) -> bool:
        self.second = self.berth.start_beside("agent")
        return True

    def end(self) -> None:
        assert self.second.wait(30) == self.LEFT, "a second agent of the same folder did not leave"


@dataclass
class Both(Fault):
    """Two actors die at the same moment."""

    pair: tuple[str, str] = ("worker", "agent")
    parts: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = f"kill {self.pair[0]} and {self.pair[1]}"
        self.parts = [Kill(self.berth, self.rng, actor=actor) for actor in self.pair]
        self.kills_engine = any(part.kills_engine for part in self.parts)
        self.per_run = any(part.per_run for part in self.parts)
        for part in self.parts:  # of a group of runs the first one kills what they share
            part.patience_s = part.patience_s if part.per_run else 0.0

    def begin(self, job_id: str) -> bool:
        struck = [part.begin(job_id) for part in self.parts]  # all of them, also when one finds nobody
        return all(ok for ok, part in zip(struck, self.parts, strict=True) if part.per_run or not self.per_run)


def _of(kind: type[OnProcesses], actor: str) -> Factory:
    return lambda berth, rng: kind(berth, rng, actor=actor)


def _both(first: str, second: str) -> Factory:
    return lambda berth, rng: Both(berth, rng, pair=(first, second))


ACTORS = ("web", "webs", "worker", "workers", "agent", "valkey", "postgres", *ENGINE_SIDE)
FAULTS: list[Factory] = [
    Calm,
    *[_of(Kill, actor) for actor in ACTORS],
    *[_of(Pause, actor) for actor in ACTORS],
    *[_of(Restart, actor) for actor in ("web", "worker", "agent", "valkey", "postgres", "all")],
    Backend,
    Everything,
    Host,
    SecondAgent,
    _both("worker", "agent"),
    _both("web", "worker"),
    _both("agent", "shim"),
    _both("agent", "engine"),
    _both("shim", "engine"),
    _both("valkey", "worker"),
]


def all_faults() -> list[Factory]:
    """Those here, then those of the files beside, in the order of their names."""
    found = list(FAULTS)
    for module in sorted(pkgutil.iter_modules(tests.chaos.__path__), key=lambda each: each.name):
        if module.name.startswith("faults_"):
            found += importlib.import_module(f"tests.chaos.{module.name}").FAULTS
    return found
