"""The host's machine goes down with everything on it, and comes up with another disk or other processes than before."""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.faults import Base, Factory
from tests.chaos.faults import Host as Dies

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
TRIES, FREE_S = 200, 3.0


@dataclass
class Reboot(Dies):
    """Agent, shims and engines end at once; the journal is of the boot before, and perhaps of an earlier day."""

    name: str = "host reboots"
    forgets: bool = False  # the disk is one of before some of the jobs

    def __post_init__(self) -> None:
        self.name = "host reboots, old disk" if self.forgets else "host reboots"

    def begin(self, job_id: str) -> bool:
        struck = super().begin(job_id)
        agent = self.berth.data / "agent"
        self.berth.procs["agent"].wait(10)
        for folder in sorted((agent / "jobs").iterdir()):
            if self.forgets and self.rng.random() < 0.6:
                shutil.rmtree(folder)
                continue
            for name in ("run.json", "job.json"):
                _of_earlier_boot(folder / name)
            if self.rng.random() < 0.5:
                (folder / "exit.json").unlink(missing_ok=True)
        if self.forgets:
            (agent / "state.json").unlink(missing_ok=True)
            (agent / "tombstones").unlink(missing_ok=True)
        return struck


def _of_earlier_boot(path: Path) -> None:
    with suppress(FileNotFoundError, ValueError):
        raw = json.loads(path.read_text())
        path.write_text(json.dumps({key: _earlier(value) for key, value in raw.items()}))


def _earlier(value: Any) -> Any:
    is_process = isinstance(value, list) and len(value) == 3 and isinstance(value[2], str)
    return [*value[:2], "an-earlier-boot"] if is_process else value


@dataclass
class PidReused(Base):
    """Agent, shim and engine die, and before the agent is back a stranger has the engine's number: it is left alone."""

    name: str = "pid reused"
    kills_engine: bool = True
    stranger: subprocess.Popen[bytes] | None = None

    def begin(self, job_id: str) -> bool:
        seen = self.berth.seen()
        mains = seen.mains.get(job_id, [])
        shim = seen.shims.get(job_id)
        if len(mains) != 1 or shim is None or not LAST_PID.exists():
            return False
        # The shim lives until the engine's number is free; what it wrote of the exit is lost with the machine.
        for pid in [*[process.pid for process in self.berth.of_kind("agent")], *mains]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + FREE_S
        while Path(f"/proc/{mains[0]}").exists() and time.monotonic() < end:
            time.sleep(0.005)
        with suppress(ProcessLookupError):
            os.kill(shim, signal.SIGKILL)
        (self.berth.data / "agent" / "jobs" / job_id / "exit.json").unlink(missing_ok=True)
        self.stranger = _with_pid(mains[0])
        return self.stranger is not None

    def end(self) -> None:
        if self.stranger is None:
            return
        self.berth.heal()
        time.sleep(2 * self.berth.times.report)
        try:
            assert self.stranger.poll() is None, "a process of somebody else was ended"
        finally:
            self.stranger.kill()
            self.stranger.wait(10)


def _with_pid(wanted: int) -> subprocess.Popen[bytes] | None:
    """A process of nobody's with just this number; None where the kernel does not let us choose."""
    for _ in range(TRIES):
        try:
            LAST_PID.write_text(str(wanted - 1))
        except OSError:
            return None
        process = subprocess.Popen(["sleep", "600"], start_new_session=True, env={"PATH": os.environ["PATH"]})
        if process.pid == wanted:
            return process
        process.kill()
        process.wait(10)
        time.sleep(0.01)
    return None


FAULTS: list[Factory] = [
    Reboot,
    lambda berth, rng: Reboot(berth, rng, forgets=True),
    PidReused,
]
