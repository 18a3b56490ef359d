"""The host's machine goes down with everything on it, and comes up with another disk or other processes than before."""

import json
import os
import shutil
import signal
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from panel.fleet import logstore
from tests.chaos.berth import fresh
from tests.chaos.faults import Factory, Fault
from tests.chaos.faults import Host as Dies

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
TRY_S, FREE_S = 8.0, 3.0


@dataclass
class Reboot(Dies):
    """Agent, shims and engines end at once; the journal is of the boot before, and perhaps of an earlier day."""

    name: str = "host reboots"
    forgets: bool = False  # the disk is one of before some of the jobs
    gone: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = "host reboots, old disk" if self.forgets else "host reboots"

    def begin(self, job_id: str) -> bool:
        struck = super().begin(job_id)
        agent = self.berth.data / "agent"
        self.berth.procs["agent"].wait(10)
        for folder in sorted((agent / "jobs").iterdir()):
            if self.forgets and self.rng.random() < 0.6:
                shutil.rmtree(folder)
                self.gone.append(folder.name)
                continue
            for name in ("run.json", "job.json"):
                _of_earlier_boot(folder / name)
            if self.rng.random() < 0.5:
                (folder / "exit.json").unlink(missing_ok=True)
        if self.forgets:
            (agent / "state.json").unlink(missing_ok=True)
            (agent / "tombstones").unlink(missing_ok=True)
        return struck

    def end(self) -> None:
        """What was not sent yet of a log went down with the disk: the engine's own copy is cut to what was."""
        for job_id in self.gone:
            copy = self.berth.copies / job_id
            if not copy.exists():
                continue
            stored = fresh(lambda job_id=job_id: _stored(job_id))
            assert copy.read_bytes().startswith(stored), "what is stored is not what was written"
            copy.write_bytes(stored)


def _stored(job_id: str) -> bytes:
    return b"".join(part.data for part in logstore.read_all(uuid.UUID(job_id)))


def _of_earlier_boot(path: Path) -> None:
    with suppress(FileNotFoundError, ValueError):
        raw = json.loads(path.read_text())
        path.write_text(json.dumps({key: _earlier(value) for key, value in raw.items()}))


def _earlier(value: Any) -> Any:
    is_process = isinstance(value, list) and len(value) == 3 and isinstance(value[2], str)
    return [*value[:2], "an-earlier-boot"] if is_process else value


@dataclass
class PidReused(Fault):
    """Agent, shim and engine die, and before the agent is back a stranger has the engine's number: it is left alone."""

    name: str = "pid reused"
    kills_engine: bool = True
    stranger: int = 0

    def begin(self, job_id: str) -> bool:
        seen = self.berth.seen()
        living = sorted(job for job in seen.mains if job in seen.shims)
        if job_id not in living:  # that run has no engine just now; another one of the group has
            job_id = self.rng.choice(living) if living else ""
        engine = _engine(self.berth.data / "agent" / "jobs" / job_id) if job_id else 0
        if not engine or not LAST_PID.exists():
            return False
        shim = seen.shims[job_id]
        # A number is free only when nobody's session or group has it any more: the engine's whole family has to go.
        # The shim reaps them, and goes last; what it wrote of the exit is lost with the machine.
        for pid in [*[process.pid for process in self.berth.of_kind("agent")], engine, *seen.processes[job_id]]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + FREE_S
        while any(Path(f"/proc/{pid}").exists() for pid in seen.processes[job_id]) and time.monotonic() < end:
            time.sleep(0.005)
        with suppress(ProcessLookupError):
            os.kill(shim, signal.SIGKILL)
        (self.berth.data / "agent" / "jobs" / job_id / "exit.json").unlink(missing_ok=True)
        self.stranger = _with_pid(engine)
        return bool(self.stranger)

    def over(self) -> None:
        """The stranger lives until all was judged: who takes it for the engine says meanwhile that the run goes on."""
        if not self.stranger:
            return
        try:
            ended, _status = os.waitpid(self.stranger, os.WNOHANG)
        except ChildProcessError:
            ended = self.stranger
        assert not ended, "a process of somebody else was ended"
        _end(self.stranger)


def _engine(folder: Path) -> int:
    """The number of the engine's main process, by what its shim wrote down."""
    with suppress(FileNotFoundError, ValueError, KeyError):
        return int(json.loads((folder / "run.json").read_text())["engine"][0])
    return 0


def _with_pid(wanted: int) -> int:
    """A process of nobody's with just this number; 0 where the kernel, or a machine that forks too much, gives none."""
    sleep, tried = shutil.which("sleep") or "sleep", []
    end = time.monotonic() + TRY_S
    try:
        while time.monotonic() < end:
            LAST_PID.write_text(str(wanted - 1))
            pid = os.posix_spawn(sleep, ["sleep", "600"], {})
            if pid == wanted:
                return pid
            tried.append(pid)
    except OSError:
        return 0
    finally:
        for pid in tried:
            _end(pid)
    return 0


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


FAULTS: list[Factory] = [
    Reboot,
    lambda berth, rng: Reboot(berth, rng, forgets=True),
    PidReused,
]
