"""What the planner looks at and what it says: hosts, GPUs, runtimes and copies as plain data; placements. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from deployments.engines.base import Reason, RuntimeFacts

DEFAULT_UTILISATION = 0.9
DEFAULT_KV_GIB = 4


@dataclass(frozen=True)
class GpuUser:
    """A process on a GPU that is not one of ours."""

    pid: int
    name: str = ""
    user: str = ""
    used_mib: int | None = None


@dataclass(frozen=True)
class GpuView:
    """One GPU: `used_mib` is measured, `reserved_mib` is what runs have claimed, `others` are strangers on it."""

    uuid: str
    index: int
    name: str
    total_mib: int
    used_mib: int = 0
    reserved_mib: int = 0
    present: bool = True
    schedulable: bool = True
    aside_note: str = ""  # why an admin set it aside
    others: tuple[GpuUser, ...] = ()

    @property
    def others_mib(self) -> int:
        """What strangers use; where the driver does not tell it by process, all that is used beyond the claims."""
        if any(user.used_mib is None for user in self.others):
            return max(0, self.used_mib - self.reserved_mib)
        return sum(user.used_mib or 0 for user in self.others)

    @property
    def free_mib(self) -> int:
        """What a new run may claim: neither claimed nor used by strangers, and free in this moment as well."""
        return max(0, self.total_mib - max(self.reserved_mib + self.others_mib, self.used_mib))


@dataclass(frozen=True)
class RuntimeView:
    """An engine on a host."""

    id: int
    engine: str
    facts: RuntimeFacts
    present: bool = True
    refusal: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CopyView:
    """The artifact on a host's disk. `problems` are codes that forbid serving it."""

    id: int
    path: str
    size_bytes: int
    present: bool = True
    problems: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class HostView:
    """A host with everything on it that matters for this spec; `copies` are of the spec's artifact alone."""

    id: int
    name: str
    ram_total_mib: int = 0
    ram_reserved_mib: int = 0
    ram_available_mib: int = 0
    lost: bool = False
    schedulable: bool = True
    aside_note: str = ""  # why an admin set it aside
    has_door: bool = True  # engines there can be asked: by loopback, or through the host's door
    machine: str = "x86_64"
    cpu_flags: frozenset[str] = frozenset()
    gpus: tuple[GpuView, ...] = ()
    runtimes: tuple[RuntimeView, ...] = ()
    copies: tuple[CopyView, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Where it runs. `reserve` is a list of (GPU uuid, or None for the host's RAM; MiB) to claim before the start."""

    host_id: int
    runtime_id: int
    copy_id: int
    device: Literal["gpu", "cpu"]
    gpu_uuids: tuple[str, ...] = ()
    reserve: tuple[tuple[str | None, int], ...] = ()
    utilisation: float = DEFAULT_UTILISATION
    kv_cache_gib: int = DEFAULT_KV_GIB
    notes: tuple[Reason, ...] = ()
    elsewhere: tuple[Candidate, ...] = ()  # the places that could not take it, and why; for people who ask

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, to be kept with the run."""
        plain = asdict(self)
        del plain["elsewhere"]  # true of that moment only
        return plain | {"notes": [note.as_dict() for note in self.notes], "reserve": [list(r) for r in self.reserve]}


@dataclass(frozen=True)
class Candidate:
    """One host, and on it perhaps one GPU, that cannot take the run, and why."""

    host_id: int
    host_name: str
    reason: Reason
    gpu_uuid: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"host_id": self.host_id, "host": self.host_name, "gpu": self.gpu_uuid, **self.reason.as_dict()}


@dataclass(frozen=True)
class NoPlacement:
    """No candidate fits. `retryable` when waiting may help (something is busy or out of reach)."""

    reasons: tuple[Candidate, ...] = ()
    retryable: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"reasons": [candidate.as_dict() for candidate in self.reasons], "retryable": self.retryable}
