"""From all hosts to ranked placements, or the reasons of every candidate. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deployments.engines.base import Reason
from deployments.placement import (
    DEFAULT_KV_GIB,
    DEFAULT_UTILISATION,
    Candidate,
    HostView,
    NoPlacement,
    Placement,
)
from deployments.planner import cpu, gpus, length
from deployments.planner.asked import Asked, Need, asked_of
from deployments.planner.fit import Estimator
from deployments.planner.search import PASSING, Search, Spot, opened
from deployments.spec import DeploymentSpec
from models_catalog.estimate.alone import claim_mib
from models_catalog.estimate.need import because

NEXT_TOLD = 3  # places after the best that are told with it


@dataclass(frozen=True)
class Ranked:
    """Places that can take it, the best first, and why each of the others cannot."""

    spots: tuple[Spot, ...]
    reasons: tuple[Candidate, ...]
    asked: Asked


def plan(
    spec: DeploymentSpec,
    hosts: Sequence[HostView],
    model_facts: Mapping[str, Any],
    need: Need | None = None,
    *,
    estimator: Estimator | None = None,
) -> Placement | NoPlacement:
    """The best placement, or why there is none. The same answer for the same input, whoever asks."""
    found = rank(spec, hosts, model_facts, need, estimator=estimator)
    if found.spots:
        return _first(spec, found)
    if spec.host_id is not None and not any(host.id == spec.host_id for host in hosts):
        gone = Candidate(spec.host_id, "", Reason("host.gone"))
        return NoPlacement((gone,), False)
    if not hosts:
        return NoPlacement((Candidate(0, "", Reason("host.none")),), False)
    codes = {candidate.reason.code for candidate in found.reasons}
    waits = bool(codes & PASSING) and length.CODE not in codes  # the model is no other elsewhere, or later
    return NoPlacement(found.reasons, waits)


def _first(spec: DeploymentSpec, found: Ranked) -> Placement:
    """The best, with what comes after it and why."""
    best, *others = found.spots
    next_ = [replace(placement_of(spot), why=spot.behind(best, found.asked)) for spot in others[:NEXT_TOLD]]
    picked = spec.gpu_uuids or (spec.host_id is not None and not others)
    code = "first.picked" if picked else f"first.{found.asked.need.priority}" if others else "first.only"
    return replace(
        placement_of(best), elsewhere=found.reasons, others=tuple(next_), rivals=len(others), why=Reason(code)
    )


def rank(
    spec: DeploymentSpec,
    hosts: Iterable[HostView],
    model_facts: Mapping[str, Any],
    need: Need | None = None,
    *,
    estimator: Estimator | None = None,
) -> Ranked:
    """Look at every host. An `estimator` that is given remembers what was asked of it before."""
    known = list(hosts)
    has_chosen = (host.id for host in known if any(r.id == spec.runtime_id and r.present for r in host.runtimes))
    asked = asked_of(spec, need)
    asks = estimator or Estimator.of(model_facts, spec.task)
    search = Search(spec, asked, asks, model_facts, next(has_chosen, None))
    found: list[Spot] = []
    for host in known:
        if spec.host_id is not None and host.id != spec.host_id:
            continue
        place = opened(search, host)
        if place is not None:
            wanted = gpus.gpu_count(search)
            found += gpus.spots(search, place, wanted) if place.device == "gpu" else cpu.spots(search, place)
    return Ranked(tuple(sorted(found, key=lambda spot: spot.rank(asked))), tuple(search.reasons), asked)


def placement_of(spot: Spot) -> Placement:
    """What a run is given of this place."""
    reserve: tuple[tuple[str | None, int], ...] = ((None, spot.need_mib),)
    if spot.gpus:
        reserve = tuple((gpu.uuid, claim_mib(gpu.total_mib, spot.share)) for gpu in spot.gpus)
    return Placement(
        spot.host.id,
        spot.runtime.id,
        spot.copy.id,
        "gpu" if spot.gpus else "cpu",
        tuple(gpu.uuid for gpu in spot.gpus),
        reserve,
        spot.share if spot.gpus else DEFAULT_UTILISATION,
        DEFAULT_KV_GIB if spot.gpus else int(spot.share),
        (*spot.notes, *_doubts(spot)),
        level=spot.level,
        context=spot.fit.context,
        people=spot.fit.people,
        at_once=spot.fit.at_once,
        longest=spot.fit.longest,
        plan=spot.fit.plan,
    )


def _doubts(spot: Spot) -> list[Reason]:
    """What a person should know before the start, and what the estimate says why."""
    if spot.level == "fits":
        return []
    params: dict[str, Any] = {}
    if (why := because(spot.fit)) is not None:
        params["because"] = why.to_dict()
    if spot.level == "unlikely":
        longest = spot.fit.longest.value if spot.fit.longest is not None else None
        params["longest"] = int(longest or 0) // 1024 * 1024
    return [Reason(f"estimate.{spot.level}", params)]
