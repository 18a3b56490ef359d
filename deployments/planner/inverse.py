"""The inverse questions: how many people at this context, and how long for so many people. Pure.

Both are answered for every place that is free now, with the largest share that could be claimed there; the best counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deployments.placement import HostView, Placement
from deployments.planner.asked import Asked, Need
from deployments.planner.fit import Estimator
from deployments.planner.ranking import placement_of, rank
from deployments.planner.search import Spot
from deployments.spec import DeploymentSpec
from models_catalog.estimate.need import ENOUGH

ROUND = 1024  # tokens: contexts are told in steps of it
LONGEST_UNKNOWN = 2**20  # tokens, where the model does not name its longest
MOST_PLACES = 12  # equal places are asked once, and no more than so many


@dataclass(frozen=True)
class Answer:
    """Conversations at once, or tokens of one; `low` is what surely works. `placement` is where, on which host and
    GPUs by their numbers there.
    """

    value: int
    low: int
    placement: Placement
    host: str = ""
    gpus: tuple[int, ...] = ()


def most_people(
    spec: DeploymentSpec,
    hosts: Sequence[HostView],
    model_facts: Mapping[str, Any],
    context: int,
    *,
    estimator: Estimator | None = None,
) -> Answer | None:
    """Conversations of so many tokens at the same time; None where none fits or nothing can be said.

    No more than the engine answers at once, however much memory there is.
    """
    asks = estimator or Estimator.of(model_facts, spec.task)
    found = rank(spec, hosts, model_facts, Need(context=context), estimator=asks)
    best: Answer | None = None
    for spot in _different(found.spots, found.asked):
        widest = _widest(spot, found.asked, asks)
        people = widest.fit.at_once
        if people is None or people.value is None or people.value < 1:
            continue
        if best is None or people.value > best.value:
            best = _answer(int(people.value), int(people.low or 0), widest)
    return best


def longest_context(
    spec: DeploymentSpec,
    hosts: Sequence[HostView],
    model_facts: Mapping[str, Any],
    people: int = 1,
    *,
    estimator: Estimator | None = None,
) -> Answer | None:
    """Tokens of each of so many conversations at the same time, in steps of 1,024, or the model's own length.

    None where not even 1,024 fit.
    """
    asks = estimator or Estimator.of(model_facts, spec.task)
    short = spec.model_copy(update={"options": {**spec.options, "max_model_len": min(ROUND, asks.longest or ROUND)}})
    found = rank(short, hosts, model_facts, Need(people=people), estimator=asks)
    best: Answer | None = None
    for spot in _different(found.spots, found.asked):
        if spot.level not in ENOUGH:
            continue
        share = spot.most if found.asked.utilisation is None else spot.share
        value = _longest(found.asked, spot, share, asks, sure=False)
        if value and (best is None or value > best.value):
            sure = _longest(found.asked, spot, share, asks, sure=True)
            best = _answer(value, sure, _widest(spot, _of_length(found.asked, value), asks))
    return best


def _answer(value: int, low: int, spot: Spot) -> Answer:
    return Answer(value, low, placement_of(spot), spot.host.name, tuple(gpu.index for gpu in spot.gpus))


def _of_length(asked: Asked, context: int) -> Asked:
    return replace(asked, context=context, need=replace(asked.need, context=context))


def _longest(asked: Asked, spot: Spot, share: float, estimator: Estimator, *, sure: bool) -> int:
    """By halving; more context never takes less memory."""
    enough = ("fits",) if sure else ENOUGH
    own = estimator.longest_by(spot.setting.version) or LONGEST_UNKNOWN

    def holds(tokens: int) -> bool:
        return estimator.fit(_of_length(asked, tokens), spot.setting, share).level in enough

    low, high = 0, own // ROUND
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle * ROUND) else (low, middle - 1)
    return own if low == own // ROUND and own % ROUND and holds(own) else low * ROUND


def _widest(spot: Spot, asked: Asked, estimator: Estimator) -> Spot:
    """The same place with all that could be claimed there."""
    share = spot.share if asked.utilisation is not None else spot.most
    return replace(spot, share=share, fit=estimator.fit(asked, spot.setting, share))


def _different(spots: Sequence[Spot], asked: Asked) -> list[Spot]:
    """One of each kind of place."""
    kinds: dict[Any, Spot] = {}
    for spot in spots:
        kinds.setdefault((spot.setting, spot.share if asked.utilisation is not None else spot.most), spot)
    return list(kinds.values())[:MOST_PLACES]
