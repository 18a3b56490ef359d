"""A place on a host's processor: weights, KV space and what the engine takes beside them, in its RAM. Pure."""

from __future__ import annotations

import math
from typing import Any

from deployments.engines.base import Reason
from deployments.placement import HostView
from deployments.planner.search import Open, Search, Spot
from models_catalog.estimate import Gpu
from models_catalog.estimate.alone import Given, on_cpu
from models_catalog.estimate.need import Setting


def spots(search: Search, place: Open) -> list[Spot]:
    """At most one; notes the reason otherwise."""
    spec, host = search.spec, place.host
    if spec.gpu_uuids:
        search.refuse(host, "gpu.not_on_cpu")
        return []
    weights = int(search.model_facts.get("weight_bytes") or place.copy.size_bytes)
    setting = Setting(Gpu("CPU", cpu=True), place.runtime.facts.version)
    given = _fitting(search, host, setting, weights)
    if given is None:
        return []
    size = int(given.share)
    most = max(size, size + (_free_mib(host) - given.need_mib) // 1024)
    more: dict[str, Any] = {"fit": given.fit, "need_mib": given.need_mib, "notes": (Reason("cpu.for_tests"),)}
    return [Spot(host, place.copy, place.runtime, setting, size, most, **more)]


def _free_mib(host: HostView) -> int:
    return min(host.ram_total_mib - host.ram_reserved_mib, host.ram_available_mib)


def _fitting(search: Search, host: HostView, setting: Setting, weights: int) -> Given | None:
    """None with the reason noted."""
    spec, asked, estimator = search.spec, search.asked, search.estimator
    given = on_cpu(
        estimator.needs,
        estimator.wish(asked, setting.version),
        setting,
        weights,
        _free_mib(host),
        kv_gib=spec.kv_cache_gib,
        smallest=asked.need.priority == "fit",
    )
    size = int(given.share)
    if given.fit.level == "no":
        context = asked.must(setting.version, estimator.longest) or given.fit.context
        params: dict[str, Any] = {"kv_gib": size, "context": context, "people": asked.need.people or 1}
        search.refuse(host, "host.kv_too_small", **params)
        return None
    code = _short(host, given)
    if not code:
        return given
    facts: dict[str, Any] = {
        "need_mib": given.need_mib,
        "total_mib": host.ram_total_mib,
        "weights_mib": math.ceil(weights / 2**20),
        "kv_gib": size,
        "overhead_mib": given.need_mib - math.ceil(weights / 2**20) - size * 1024,
    }
    if code == "host.ram_reserved":
        names = sorted({one.name for one in host.ram_claims if one.name})
        facts |= {"reserved_mib": host.ram_reserved_mib, "runs": names}
    elif code == "host.ram_used":
        facts |= {"available_mib": host.ram_available_mib}
    search.refuse(host, code, **facts)
    return None


def _short(host: HostView, given: Given) -> str:
    """The code of what is missing, "" when there is enough."""
    if given.need_mib > host.ram_total_mib:
        return "host.ram_too_small"
    if host.ram_reserved_mib + given.need_mib > host.ram_total_mib:
        return "host.ram_reserved"
    return "host.ram_used" if given.need_mib > host.ram_available_mib else ""
