"""One search through hosts: which of them can be looked at at all, and what each of the others says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deployments.engines.base import Reason, version_key
from deployments.engines.registry import adapter_for
from deployments.placement import Candidate, CopyView, GpuView, HostView, Level, RuntimeView
from deployments.planner import length
from deployments.planner.asked import Asked
from deployments.planner.fit import Estimator
from deployments.spec import DeploymentSpec
from models_catalog.estimate.need import ORDER, UNKNOWN, Fit, Setting

# Reasons that may go away by waiting; all others need a person.
PASSING = frozenset(
    {
        "host.lost",
        "host.no_door",
        "gpu.busy",
        "gpu.reserved",
        "gpu.used_by_others",
        "host.ram_reserved",
        "host.ram_used",
    }
)


@dataclass(frozen=True)
class Spot:
    """A place that can take it: the share to claim, and the largest that could be claimed there now.

    On a CPU both are GiB of KV cache, and `need_mib` is what is claimed of the machine.
    """

    host: HostView
    copy: CopyView
    runtime: RuntimeView
    setting: Setting
    share: float
    most: float
    gpus: tuple[GpuView, ...] = ()
    squeezed: bool = False  # less than the usual share, since something else is there
    linked: bool | None = None
    fit: Fit = UNKNOWN
    need_mib: int = 0
    notes: tuple[Reason, ...] = ()

    @property
    def level(self) -> Level:
        return self.fit.level

    @property
    def free(self) -> float:
        """The share of the fullest device that nobody has."""
        if not self.gpus:
            return (self.host.ram_available_mib - self.host.ram_reserved_mib) / max(1, self.host.ram_total_mib)
        return min(gpu.free_mib / gpu.total_mib for gpu in self.gpus)

    def marks(self, asked: Asked) -> tuple[tuple[str, Any], ...]:
        """What places are compared by, the first that differs decides, and smaller is better: what surely works, then
        a GPU, then what matters to the person. The names are those of the reasons `behind.…`.
        """
        first = (("unsure", ORDER[self.level]), ("cpu", not self.gpus))
        last = (("same", self.host.id), ("same", tuple(gpu.index for gpu in self.gpus)))
        slow = len(self.gpus) > 1 and not self.linked
        if asked.need.priority == "fit":
            size = sum(gpu.total_mib for gpu in self.gpus) or self.host.ram_total_mib
            return (*first, ("gpus", len(self.gpus)), ("larger", size), ("emptier", self.free), *last)
        if asked.need.priority == "speed":
            age = tuple(-number for number in min((gpu.capability or (0, 0)) for gpu in self.gpus)) if self.gpus else ()
            parts = len(self.gpus) if slow else -len(self.gpus)
            shared = sum(len(gpu.claims) + len(gpu.others) for gpu in self.gpus)
            newer = (("slow_link", slow), ("older", age), ("gpus", parts), ("squeezed", self.squeezed))
            return (*first, *newer, ("shared", shared), ("fuller", -self.free), *last)
        alone = (("squeezed", self.squeezed), ("gpus", len(self.gpus)), ("slow_link", slow))
        return (*first, *alone, ("fuller", -self.free), *last)

    def rank(self, asked: Asked) -> tuple[Any, ...]:
        return tuple(value for _name, value in self.marks(asked))

    def behind(self, first: Spot, asked: Asked) -> Reason:
        """What puts it behind another place."""
        pairs = zip(self.marks(asked), first.marks(asked), strict=True)
        name = next((own[0] for own, other in pairs if own != other), "same")
        if name == "unsure":
            name = self.level
        return Reason(f"behind.{name}", {"gpus": len(self.gpus)})


@dataclass
class Search:
    """What is looked for, and what was refused so far."""

    spec: DeploymentSpec
    asked: Asked
    estimator: Estimator
    model_facts: Mapping[str, Any]
    runtime_host: int | None = None  # the host of the chosen engine
    reasons: list[Candidate] = field(default_factory=list)

    def refuse(self, host: HostView, code: str, gpu: str = "", **params: Any) -> None:
        self.note(host, Reason(code, params), gpu)

    def note(self, host: HostView, reason: Reason, gpu: str = "") -> None:
        found = Candidate(host.id, host.name, reason, gpu)
        if found not in self.reasons:
            self.reasons.append(found)


@dataclass(frozen=True)
class Open:
    """A host that can be looked at, with the copy and the engine that would be used."""

    host: HostView
    copy: CopyView
    runtime: RuntimeView
    device: Literal["gpu", "cpu"]


def opened(search: Search, host: HostView) -> Open | None:
    """None with the host's reason noted."""
    copy = _copy(search, host)
    if not host.schedulable:
        search.refuse(host, "host.paused_for" if host.aside_note else "host.paused", note=host.aside_note)
    elif host.lost:
        search.refuse(host, "host.lost")
    elif not host.has_door:
        search.refuse(host, "host.no_door")
    elif copy:
        device = _device(search, host)
        runtime = _runtime(search, host, device)
        if runtime and not _is_too_long(search, host, runtime):
            return Open(host, copy, runtime, device)
    return None


def _is_too_long(search: Search, host: HostView, runtime: RuntimeView) -> bool:
    """More than the model was made for is refused by the engine, whatever the memory."""
    found = length.too_long(search.asked, search.estimator.facts, runtime.facts.version)
    if found is None or not found.sure:
        return False
    search.note(host, found.reason)
    return True


def _copy(search: Search, host: HostView) -> CopyView | None:
    usable = [copy for copy in host.copies if copy.present and not copy.problems]
    if usable:
        return usable[0]
    broken = [copy for copy in host.copies if copy.present]
    if broken:
        problem = broken[0].problems[0]
        search.refuse(host, "copy.broken", path=broken[0].path, problem=dict(problem))
    elif host.copies:
        search.refuse(host, "copy.vanished", path=host.copies[0].path)
    else:
        search.refuse(host, "copy.none")
    return None


def _device(search: Search, host: HostView) -> Literal["gpu", "cpu"]:
    """The device to use here. `auto` takes the CPU only where no GPU can be used at all, never because one is busy."""
    spec = search.spec
    if spec.device != "auto":
        return spec.device
    if spec.gpu_uuids:
        return "gpu"
    has_gpu = any(gpu.present for gpu in host.gpus)
    picked = [r for r in host.runtimes if spec.runtime_id in (None, r.id) and r.engine == spec.engine and r.present]
    for_gpu = any(runtime.facts.device not in ("cpu",) and not runtime.refusal for runtime in picked)
    return "gpu" if has_gpu and (for_gpu or not picked) else "cpu"


def _runtime(search: Search, host: HostView, device: Literal["gpu", "cpu"]) -> RuntimeView | None:
    """The newest runtime that can serve this model on this device."""
    spec = search.spec
    of_engine = [r for r in host.runtimes if r.engine == spec.engine and r.present]
    picked = [r for r in of_engine if spec.runtime_id in (None, r.id)]
    if not picked:
        chosen = "runtime.elsewhere" if search.runtime_host not in (None, host.id) else "runtime.gone"
        search.refuse(host, "runtime.none" if spec.runtime_id is None else chosen, engine=spec.engine)
        return None
    if device == "cpu" and host.machine in ("x86_64", "AMD64") and "avx2" not in host.cpu_flags:
        search.refuse(host, "cpu.no_avx2")
        return None
    refused: list[Reason] = []
    for runtime in sorted(picked, key=lambda r: version_key(r.facts.version), reverse=True):
        if runtime.refusal:
            refused.append(Reason("runtime.broken", {"executable": runtime.facts.executable, **runtime.refusal}))
            continue
        reasons = adapter_for(spec.engine).runtime_reasons(runtime.facts, search.model_facts, device)
        if not reasons:
            return runtime
        refused += reasons
    for reason in refused:
        search.note(host, reason)
    return None
