"""A place on a host's processor: weights, KV space and what the engine takes beside them, in its RAM. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from deployments.engines.base import Reason
from deployments.placement import DEFAULT_KV_GIB, HostView
from deployments.planner.asked import Asked
from deployments.planner.fit import ENOUGH, Estimator, Fit, Setting
from deployments.planner.search import Open, Search, Spot
from deployments.spec import DeploymentSpec
from models_catalog.estimate import Gpu

# What vLLM takes on a CPU beside weights and KV cache. Measured with vLLM 0.32.0 (CPU), SmolLM2-135M in bfloat16, KV
# space 1 GiB: 3019 MiB of PSS over its processes when ready, less 257 of weights and 1024 of KV = 1738. Rounded up,
# since a bigger model has bigger activations.
CPU_OVERHEAD_MIB = 2048
MOST_KV_GIB = 4096  # what a spec may name


@dataclass(frozen=True)
class _Claim:
    """What it would take of the machine with a cache of this size."""

    kv_gib: int
    need_mib: int
    fit: Fit


def cpu_need_mib(spec: DeploymentSpec, size_bytes: int, kv_gib: int | None = None) -> int:
    """RAM of a run on the CPU: weights, KV space, and what the engine takes beside them."""
    kv_gib = kv_gib or spec.kv_cache_gib or DEFAULT_KV_GIB
    return math.ceil(size_bytes / 2**20) + kv_gib * 1024 + CPU_OVERHEAD_MIB


def spots(search: Search, place: Open) -> list[Spot]:
    """At most one; notes the reason otherwise."""
    spec, host = search.spec, place.host
    if spec.gpu_uuids:
        search.refuse(host, "gpu.not_on_cpu")
        return []
    weights = int(search.model_facts.get("weight_bytes") or place.copy.size_bytes)
    setting = Setting(Gpu("CPU", cpu=True), place.runtime.facts.version)
    claim = _fitting(search, host, setting, weights)
    if claim is None:
        return []
    notes = (Reason("cpu.for_tests"),)
    most = max(claim.kv_gib, claim.kv_gib + (_free_mib(host) - claim.need_mib) // 1024)
    return [
        Spot(
            host,
            place.copy,
            place.runtime,
            setting,
            claim.kv_gib,
            most,
            fit=claim.fit,
            need_mib=claim.need_mib,
            notes=notes,
        )
    ]


def _free_mib(host: HostView) -> int:
    return min(host.ram_total_mib - host.ram_reserved_mib, host.ram_available_mib)


def _fitting(search: Search, host: HostView, setting: Setting, weights: int) -> _Claim | None:
    """The usual cache, or the one that the spec names; a larger one where the need wants it, a smaller one in need."""
    spec, asked, estimator = search.spec, search.asked, search.estimator
    claim = _claim(search, setting, weights, spec.kv_cache_gib or DEFAULT_KV_GIB)
    if spec.kv_cache_gib is None and claim.fit.level != "unknown":
        least = least_kv_gib(estimator, asked, setting)
        if least is not None and (claim.fit.level not in ENOUGH or _short(host, claim) or asked.need.priority == "fit"):
            claim = _claim(search, setting, weights, least)
    if claim.fit.level == "no":
        context = asked.must(setting.version, estimator.longest) or claim.fit.context
        params: dict[str, Any] = {"kv_gib": claim.kv_gib, "context": context, "people": asked.need.people or 1}
        search.refuse(host, "host.kv_too_small", **params)
        return None
    code = _short(host, claim)
    if not code:
        return claim
    facts: dict[str, Any] = {
        "need_mib": claim.need_mib,
        "total_mib": host.ram_total_mib,
        "weights_mib": math.ceil(weights / 2**20),
        "kv_gib": claim.kv_gib,
        "overhead_mib": claim.need_mib - math.ceil(weights / 2**20) - claim.kv_gib * 1024,
    }
    if code == "host.ram_reserved":
        names = sorted({one.name for one in host.ram_claims if one.name})
        facts |= {"reserved_mib": host.ram_reserved_mib, "runs": names}
    elif code == "host.ram_used":
        facts |= {"available_mib": host.ram_available_mib}
    search.refuse(host, code, **facts)
    return None


def _short(host: HostView, claim: _Claim) -> str:
    """The code of what is missing, "" when there is enough."""
    if claim.need_mib > host.ram_total_mib:
        return "host.ram_too_small"
    if host.ram_reserved_mib + claim.need_mib > host.ram_total_mib:
        return "host.ram_reserved"
    return "host.ram_used" if claim.need_mib > host.ram_available_mib else ""


def _claim(search: Search, setting: Setting, weights: int, kv_gib: int) -> _Claim:
    fit = search.estimator.fit(search.asked, setting, kv_gib)
    need = cpu_need_mib(search.spec, weights, kv_gib)
    if fit.plan is not None and fit.plan.need_gib is not None:
        need = max(need, math.ceil(fit.plan.need_gib * 1024))
    return _Claim(kv_gib, need, fit)


def least_kv_gib(estimator: Estimator, asked: Asked, setting: Setting) -> int | None:
    """The smallest cache, whole GiB, that holds the need; None when none does."""
    low, high = 1, 1
    while estimator.fit(asked, setting, high).level not in ENOUGH:
        low, high = high + 1, high * 4
        if high > MOST_KV_GIB:
            return None
    while low < high:
        middle = (low + high) // 2
        if estimator.fit(asked, setting, middle).level in ENOUGH:
            high = middle
        else:
            low = middle + 1
    return high
