"""Where a spec can run: hosts, GPUs, copies and runtimes to one placement, or the reasons of every candidate. Pure.

The person's picks are respected; what they left open goes to the emptiest GPUs. Memory is counted three times over:
what runs have reserved, what strangers use, and what is free right now. MiB are whole numbers of 2^20 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from deployments.engines.base import EngineRefusal, Reason, version_key
from deployments.engines.options import normal_flag
from deployments.engines.registry import adapter_for
from deployments.engines.tokens import expand
from deployments.placement import (
    DEFAULT_KV_GIB,
    DEFAULT_UTILISATION,
    Candidate,
    CopyView,
    GpuView,
    HostView,
    NoPlacement,
    Placement,
    RuntimeView,
)
from deployments.spec import DeploymentSpec

# What vLLM takes on a CPU beside weights and KV cache. Measured with vLLM 0.32.0 (CPU), SmolLM2-135M in bfloat16, KV
# space 1 GiB: 3019 MiB of PSS over its processes when ready, less 257 of weights and 1024 of KV = 1738. Rounded up,
# since a bigger model has bigger activations.
CPU_OVERHEAD_MIB = 2048
# A card is never wholly free: the driver and a desktop hold some. Below this the live check does not complain.
GPU_SLACK_MIB = 64
LEAST_SHARE = 0.05  # less is no room for an engine
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


@dataclass
class _Search:
    """One search: what was refused so far."""

    spec: DeploymentSpec
    model_facts: Mapping[str, Any]
    runtime_host: int | None = None  # the host of the chosen engine
    reasons: list[Candidate] = field(default_factory=list)

    def refuse(self, host: HostView, code: str, gpu: str = "", **params: Any) -> None:
        self.reasons.append(Candidate(host.id, host.name, Reason(code, params), gpu))


def plan(spec: DeploymentSpec, hosts: Sequence[HostView], model_facts: Mapping[str, Any]) -> Placement | NoPlacement:
    """The best placement, or why there is none. The same answer for the same input, whoever asks."""
    has_chosen = (host.id for host in hosts if any(r.id == spec.runtime_id and r.present for r in host.runtimes))
    search = _Search(spec, model_facts, next(has_chosen, None))
    found: list[tuple[tuple[float, ...], Placement]] = []
    for host in hosts:
        if spec.host_id is not None and host.id != spec.host_id:
            continue
        placed = _on_host(search, host)
        if placed:
            found.append(placed)
    if found:
        return replace(min(found, key=lambda item: item[0])[1], elsewhere=tuple(search.reasons))
    if spec.host_id is not None and not any(host.id == spec.host_id for host in hosts):
        gone = Candidate(spec.host_id, "", Reason("host.gone"))
        return NoPlacement((gone,), False)
    if not hosts:
        return NoPlacement((Candidate(0, "", Reason("host.none")),), False)
    reasons = tuple(search.reasons)
    return NoPlacement(reasons, any(candidate.reason.code in PASSING for candidate in reasons))


def _on_host(search: _Search, host: HostView) -> tuple[tuple[float, ...], Placement] | None:
    """Rank (smaller is better) and placement on this host; notes its reasons otherwise."""
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
        if runtime:
            place = _on_gpus if device == "gpu" else _on_cpu
            return place(search, host, copy, runtime)
    return None


def _copy(search: _Search, host: HostView) -> CopyView | None:
    usable = [copy for copy in host.copies if copy.present and not copy.problems]
    if usable:
        return usable[0]
    broken = [copy for copy in host.copies if copy.present]
    if broken:
        problem = broken[0].problems[0]
        search.refuse(host, "copy.broken", path=broken[0].path, problem=dict(problem))
    elif host.copies:
        search.refuse(host, "copy.vanished", path=host.copies[0].path)
    elif search.spec.host_id is not None or not host.copies:
        search.refuse(host, "copy.none")
    return None


def _device(search: _Search, host: HostView) -> Literal["gpu", "cpu"]:
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


def _runtime(search: _Search, host: HostView, device: Literal["gpu", "cpu"]) -> RuntimeView | None:
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
        search.reasons.append(Candidate(host.id, host.name, reason))
    return None


# --- GPUs ------------------------------------------------------------------------------------------------------------


def utilisation_of(spec: DeploymentSpec) -> float:
    """The share of a GPU's memory that this spec claims."""
    return _share(_given(spec, "gpu_memory_utilization", "--gpu-memory-utilization", "--device-memory-utilization"))


def _given(spec: DeploymentSpec, name: str, *flags: str) -> Any:
    """An option's value, whether it was typed as an option or stands among the further flags; None when in neither."""
    if name in spec.options:
        return spec.options[name]
    try:
        words = expand(spec.extra_args)
    except EngineRefusal:
        return None  # the adapter says what is wrong with them
    for word, following in pairwise([*words, ""]):
        head, has_value, value = word.partition("=")
        if normal_flag(head) in flags:
            return value if has_value else following
    return None


def _share(value: Any) -> float:
    """A number in (0, 1]; anything else is refused by the adapter, so the default is as good."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return DEFAULT_UTILISATION
    return number if 0 < number <= 1 else DEFAULT_UTILISATION


def _gpu_count(spec: DeploymentSpec) -> int:
    """GPUs to take: those picked, else the parts that the options cut the model into, else `gpu_count`."""
    if spec.gpu_uuids:
        return len(spec.gpu_uuids)
    parts = 1
    for kind, short in (("tensor", "-tp"), ("pipeline", "-pp"), ("data", "-dp")):
        text = str(_given(spec, f"{kind}_parallel_size", f"--{kind}-parallel-size", short))
        parts *= int(text) if text.isdecimal() and 1 <= int(text) <= 64 else 1
    return max(parts, spec.gpu_count)


def _on_gpus(
    search: _Search, host: HostView, copy: CopyView, runtime: RuntimeView
) -> tuple[tuple[float, ...], Placement] | None:
    spec, share = search.spec, utilisation_of(search.spec)
    wanted = _gpu_count(spec)
    pool = _pool(search, host)
    fitting = [gpu for gpu in pool if _fits(search, host, gpu, share)]
    if spec.gpu_uuids and len(fitting) < wanted:
        return None  # each picked GPU has said why not
    chosen = _emptiest(fitting, wanted)
    if len(chosen) < wanted:
        if pool and len(pool) < wanted:
            search.refuse(host, "gpu.too_few", wanted=wanted, have=len(pool), alike=len(chosen))
        return None
    if spec.gpu_uuids:
        chosen = sorted(chosen, key=lambda gpu: spec.gpu_uuids.index(gpu.uuid))
    placement = Placement(
        host.id,
        runtime.id,
        copy.id,
        "gpu",
        tuple(gpu.uuid for gpu in chosen),
        tuple((gpu.uuid, claim_mib(gpu.total_mib, share)) for gpu in chosen),
        share,
        spec.kv_cache_gib or DEFAULT_KV_GIB,
        tuple(_notes(chosen)),
    )
    return (0.0, -min(gpu.free_mib / gpu.total_mib for gpu in chosen), host.id), placement


def claim_mib(total_mib: int, share: float) -> int:
    """What a run claims of one GPU, as vLLM counts it: ceil(total × share)."""
    return min(total_mib, math.ceil(total_mib * share))


def _pool(search: _Search, host: HostView) -> list[GpuView]:
    """The GPUs that may be looked at: the picked ones, or all that are present and not set aside."""
    picked = search.spec.gpu_uuids
    known = {gpu.uuid: gpu for gpu in host.gpus}
    for uuid in picked:
        if uuid not in known or not known[uuid].present:
            search.refuse(host, "gpu.gone", uuid, uuid=uuid)
    if not picked and not any(gpu.present for gpu in host.gpus):
        search.refuse(host, "gpu.none")
    pool = [gpu for gpu in host.gpus if gpu.present and (not picked or gpu.uuid in picked)]
    for gpu in pool:
        if not gpu.schedulable:
            code = "gpu.paused_for" if gpu.aside_note else "gpu.paused"
            search.refuse(host, code, gpu.uuid, index=gpu.index, note=gpu.aside_note)
    return [gpu for gpu in pool if gpu.schedulable]


def _fits(search: _Search, host: HostView, gpu: GpuView, share: float) -> bool:
    need = claim_mib(gpu.total_mib, share)
    if gpu.total_mib > 0 and gpu.free_mib + GPU_SLACK_MIB >= need and gpu.reserved_mib + need <= gpu.total_mib:
        return True
    facts: dict[str, Any] = {"index": gpu.index, "need_mib": need, "free_mib": gpu.free_mib, "total_mib": gpu.total_mib}
    facts["utilisation"] = share
    if smaller := _smaller_share(search, gpu):
        facts["fits_utilisation"] = smaller
    if gpu.reserved_mib + need > gpu.total_mib:
        search.refuse(host, "gpu.reserved", gpu.uuid, reserved_mib=gpu.reserved_mib, **facts)
    elif gpu.others:
        users = [asdict(user) for user in sorted(gpu.others, key=lambda u: -(u.used_mib or 0))[:5]]
        search.refuse(host, "gpu.used_by_others", gpu.uuid, used_mib=gpu.others_mib, users=users, **facts)
    else:
        search.refuse(host, "gpu.busy", gpu.uuid, used_mib=gpu.used_mib, **facts)
    return False


def _smaller_share(search: _Search, gpu: GpuView) -> float:
    """The largest share that would fit now, as the engine's option shows it; 0 when the weights alone need more."""
    share = math.floor(gpu.free_mib / gpu.total_mib * 100) / 100 if gpu.total_mib else 0.0
    weights_mib = int(search.model_facts.get("weight_bytes") or 0) / 2**20 / _gpu_count(search.spec)
    return share if share >= LEAST_SHARE and share * gpu.total_mib > weights_mib else 0.0


def _emptiest(gpus: Iterable[GpuView], count: int) -> list[GpuView]:
    """The emptiest GPUs; several must be of one kind where that is possible, since the slowest sets the pace."""
    ranked = sorted(gpus, key=lambda gpu: (-gpu.free_mib / gpu.total_mib, -gpu.total_mib, gpu.index))
    by_kind: dict[tuple[str, int], list[GpuView]] = {}
    for gpu in ranked:
        by_kind.setdefault((gpu.name, gpu.total_mib), []).append(gpu)
    alike = [kind[:count] for kind in by_kind.values() if len(kind) >= count]
    if alike:
        return max(alike, key=lambda kind: min(gpu.free_mib / gpu.total_mib for gpu in kind))
    return ranked[:count]


def _notes(chosen: Sequence[GpuView]) -> list[Reason]:
    kinds = sorted({gpu.name for gpu in chosen})
    return [Reason("gpu.mixed_kinds", {"names": kinds})] if len(kinds) > 1 else []


# --- the CPU ---------------------------------------------------------------------------------------------------------


def cpu_need_mib(spec: DeploymentSpec, size_bytes: int) -> int:
    """RAM of a run on the CPU: weights, KV space, and what the engine takes beside them."""
    kv_gib = spec.kv_cache_gib or DEFAULT_KV_GIB
    return math.ceil(size_bytes / 2**20) + kv_gib * 1024 + CPU_OVERHEAD_MIB


def _on_cpu(
    search: _Search, host: HostView, copy: CopyView, runtime: RuntimeView
) -> tuple[tuple[float, ...], Placement] | None:
    spec = search.spec
    weights = search.model_facts.get("weight_bytes") or copy.size_bytes
    need = cpu_need_mib(spec, int(weights))
    facts: dict[str, Any] = {
        "need_mib": need,
        "total_mib": host.ram_total_mib,
        "weights_mib": math.ceil(weights / 2**20),
        "kv_gib": spec.kv_cache_gib or DEFAULT_KV_GIB,
        "overhead_mib": CPU_OVERHEAD_MIB,
    }
    if spec.gpu_uuids:
        search.refuse(host, "gpu.not_on_cpu")
    elif need > host.ram_total_mib:
        search.refuse(host, "host.ram_too_small", **facts)
    elif host.ram_reserved_mib + need > host.ram_total_mib:
        search.refuse(host, "host.ram_reserved", reserved_mib=host.ram_reserved_mib, **facts)
    elif need > host.ram_available_mib:
        search.refuse(host, "host.ram_used", available_mib=host.ram_available_mib, **facts)
    else:
        kv_gib = spec.kv_cache_gib or DEFAULT_KV_GIB
        free = (host.ram_available_mib - host.ram_reserved_mib) / max(1, host.ram_total_mib)
        reserve: tuple[tuple[str | None, int], ...] = ((None, need),)
        placed = Placement(host.id, runtime.id, copy.id, "cpu", (), reserve, DEFAULT_UTILISATION, kv_gib)
        return (1.0, -free, host.id), placed
    return None
