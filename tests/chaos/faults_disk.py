"""The host's disk takes nothing more: agent and shims can write no byte, and what is started meanwhile cannot either.

The processes' own limit stands in for the disk, so that a whole Berth meets it; a disk that is really full, read-only
or slow is tests/chaos/test_disk.py's.
"""

import resource
from contextlib import suppress
from dataclasses import dataclass

from tests.chaos.faults import Factory, Fault


@dataclass
class Full(Fault):
    """`kills_engine`: a start meanwhile is refused, and what a shim just started ends."""

    name: str = "disk full"
    kills_engine: bool = True

    def begin(self, job_id: str) -> bool:
        pids = [process.pid for process in self.berth.of_kind("agent")] + list(self.berth.seen().shims.values())
        for pid in pids:
            self._limit(pid, 0)
        return bool(pids)

    def hold(self) -> float:
        return self.rng.uniform(1.0, 3.0)

    def end(self) -> None:
        seen = self.berth.seen()
        agents = [process.pid for process in self.berth.of_kind("agent")]
        for pid in [*agents, *seen.shims.values(), *(pid for pids in seen.processes.values() for pid in pids)]:
            self._limit(pid, resource.RLIM_INFINITY)

    @staticmethod
    def _limit(pid: int, most: int) -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


FAULTS: list[Factory] = [Full]
