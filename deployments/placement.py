"""What the planner looks at and what it says: hosts, GPUs, runtimes and copies as plain data; placements. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from deployments.engines.base import Reason, RuntimeFacts
from models_catalog.estimate import Amount, Plan
from models_catalog.estimate.alone import DEFAULT_KV_GIB
from models_catalog.estimate.need import USUAL_SHARE, Level

__all__ = [
    "DEFAULT_KV_GIB", "DEFAULT_UTILISATION", "Candidate", "Change", "Claim", "CopyView", "GpuUser", "GpuView",
    "HostView", "Level", "NoPlacement", "Placement", "RuntimeView",
]  # fmt: skip

DEFAULT_UTILISATION = USUAL_SHARE


@dataclass(frozen=True)
class GpuUser:
    """A process on a GPU that is not one of ours."""

    pid: int
    name: str = ""
    user: str = ""
    used_mib: int | None = None

    @property
    def called(self) -> str:
        """As people find it: "python3 (ada)"."""
        return f"{self.name or self.pid} ({self.user})" if self.user else self.name or str(self.pid)


@dataclass(frozen=True)
class Claim:
    """What one of our runs holds of a device; `used_mib` is what its processes use now, None where it is not told."""

    holder: str  # the run
    name: str  # its deployment
    mib: int
    used_mib: int | None = None


@dataclass(frozen=True)
class GpuView:
    """One GPU: `used_mib` is measured, `reserved_mib` is what runs have claimed, `others` are strangers on it.

    `claims` says which runs these are, where that was asked. `nvlink` are the GPUs that it reaches by a fast link;
    None: its host does not tell.
    """

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
    claims: tuple[Claim, ...] = ()
    capability: tuple[int, int] | None = None  # compute capability, e.g. (8, 9)
    nvlink: frozenset[str] | None = None

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

    def without(self, holders: frozenset[str]) -> GpuView:
        """As it would be when these runs had stopped."""
        ours = [claim for claim in self.claims if claim.holder in holders]
        return replace(
            self,
            reserved_mib=max(0, self.reserved_mib - sum(claim.mib for claim in ours)),
            used_mib=max(0, self.used_mib - sum(_used(claim) for claim in ours)),
            claims=tuple(claim for claim in self.claims if claim.holder not in holders),
        )

    def without_others(self) -> GpuView:
        """As it would be when all that is not ours had ended."""
        return replace(self, used_mib=max(0, self.used_mib - self.others_mib), others=())


def _used(claim: Claim) -> int:
    return claim.mib if claim.used_mib is None else claim.used_mib


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
    ram_claims: tuple[Claim, ...] = ()
    lost: bool = False
    schedulable: bool = True
    aside_note: str = ""  # why an admin set it aside
    has_door: bool = True  # engines there can be asked: by loopback, or through the host's door
    machine: str = "x86_64"
    cpu_flags: frozenset[str] = frozenset()
    gpus: tuple[GpuView, ...] = ()
    runtimes: tuple[RuntimeView, ...] = ()
    copies: tuple[CopyView, ...] = ()

    def without(self, holders: frozenset[str]) -> HostView:
        """As it would be when these runs had stopped."""
        ours = [claim for claim in self.ram_claims if claim.holder in holders]
        return replace(
            self,
            ram_reserved_mib=max(0, self.ram_reserved_mib - sum(claim.mib for claim in ours)),
            ram_available_mib=min(self.ram_total_mib, self.ram_available_mib + sum(_used(claim) for claim in ours)),
            ram_claims=tuple(claim for claim in self.ram_claims if claim.holder not in holders),
            gpus=tuple(gpu.without(holders) for gpu in self.gpus),
        )


@dataclass(frozen=True)
class Placement:
    """Where it runs. `reserve` is a list of (GPU uuid, or None for the host's RAM; MiB) to claim before the start.

    `plan` is the estimate at this share, None where there can be none; `people` are requests of `context` tokens at
    the same time that there is memory for, `at_once` those of them that the engine answers at once, `longest` the
    tokens of the longest single one.

    `why` says why it comes first, or what puts it behind the first; `others` are the next that could take it, of
    `rivals` in all.
    """

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
    level: Level = "unknown"
    context: int | None = None
    people: Amount | None = None
    at_once: Amount | None = None
    longest: Amount | None = None
    plan: Plan | None = None
    why: Reason | None = None
    others: tuple[Placement, ...] = ()
    rivals: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, to be kept with the run: `estimate` is what was foreseen."""
        # Those are true now only.
        here = replace(
            self, elsewhere=(), others=(), why=None, plan=None, people=None, at_once=None, longest=None, rivals=0
        )
        plain = asdict(here)
        for name in ("elsewhere", "others", "why", "plan", "people", "at_once", "longest", "rivals"):
            del plain[name]
        plain["estimate"] = self.plan.to_dict() if self.plan is not None else None
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
class Change:
    """Something that would make it fit, checked by planning with it. `patch` are the fields of the spec to set.

    A change without a patch is done elsewhere (something is stopped).
    """

    reason: Reason
    patch: Mapping[str, Any] = field(default_factory=dict)
    host_id: int | None = None
    placement: Placement | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"patch": dict(self.patch), "host_id": self.host_id, **self.reason.as_dict()}


@dataclass(frozen=True)
class NoPlacement:
    """No candidate fits. `retryable` when waiting may help (something is busy or out of reach)."""

    reasons: tuple[Candidate, ...] = ()
    retryable: bool = False
    changes: tuple[Change, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "reasons": [candidate.as_dict() for candidate in self.reasons],
            "retryable": self.retryable,
            "changes": [change.as_dict() for change in self.changes],
        }
