"""What a page needs to follow a slider before the planner has answered: the numbers of the best place. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deployments.placement import DEFAULT_UTILISATION, GpuView, HostView
from deployments.planner import gpus, length
from deployments.planner.asked import Asked, Need, asked_of
from deployments.planner.effects import Effect, effects
from deployments.planner.fit import Estimator
from deployments.planner.inverse import ROUND, Answer, longest_context, most_people
from deployments.planner.ranking import rank
from deployments.planner.search import Spot
from deployments.spec import DeploymentSpec
from models_catalog.estimate import Amount, Plan
from models_catalog.estimate.moving import moving
from models_catalog.estimate.need import LEAST_CONTEXT, LEAST_SHARE, MOST_SHARE


@dataclass(frozen=True)
class Outlook:
    """The best place for the spec, or where a short conversation would fit, and the ends of both sliders.

    `numbers` are for static/panel/fit.js, None where only the planner can say; `most` people are of the length that is
    asked for, `longest` is for as many people as are asked for. `effects` are of other settings at that place, and
    `alone` is what it would hold if nothing else were on those GPUs, None where that is the same.
    """

    spot: Spot | None = None
    numbers: dict[str, Any] | None = None
    longest: Answer | None = None
    most: Answer | None = None
    model_longest: int | None = None
    effects: tuple[Effect, ...] = ()
    alone: Amount | None = None

    @property
    def plan(self) -> Plan | None:
        return self.spot.fit.plan if self.spot is not None else None


def outlook(
    spec: DeploymentSpec, hosts: Sequence[HostView], model_facts: Mapping[str, Any], need: Need, estimator: Estimator
) -> Outlook:
    """Asks nothing twice that `estimator` has answered before."""
    found = rank(spec, hosts, model_facts, need, estimator=estimator)
    if not found.spots:  # where less would fit, so that the page can say how much
        options = {**spec.options, "max_model_len": min(ROUND, estimator.longest or ROUND)}
        short = spec.model_copy(update={"options": options})
        found = rank(short, hosts, model_facts, replace(need, people=None), estimator=estimator)
    spot = found.spots[0] if found.spots else None
    asked = asked_of(spec, need)
    goal = asked.goal(spot.setting.version, estimator.longest) if spot is not None else None
    known = estimator.facts is not None and spot is not None
    return Outlook(
        spot,
        _numbers(spec, spot, asked, estimator) if spot is not None else None,
        longest_context(spec, hosts, model_facts, need.people or 1, estimator=estimator) if known else None,
        most_people(spec, hosts, model_facts, goal, estimator=estimator) if known and goal else None,
        estimator.longest_by(spot.setting.version if spot is not None else ""),
        effects(spec, hosts, model_facts, need, spot, estimator) if spot is not None else (),
        _alone(spot, asked, estimator) if spot is not None else None,
    )


def _alone(spot: Spot, asked: Asked, estimator: Estimator) -> Amount | None:
    """Requests at once with the usual share, where others on the GPUs leave less."""
    if not spot.squeezed or asked.utilisation is not None or spot.share >= DEFAULT_UTILISATION:
        return None
    return estimator.fit(asked, spot.setting, DEFAULT_UTILISATION).at_once


def _numbers(spec: DeploymentSpec, spot: Spot, asked: Asked, estimator: Estimator) -> dict[str, Any] | None:
    """None where the estimate is no simple sum, e.g. of an engine version or a model that is not known."""
    plan, setting = spot.fit.plan, spot.setting
    if plan is None or estimator.facts is None or spot.fit.context is None:
        return None
    options = replace(asked.options, tp=setting.tp, pp=setting.pp, context=spot.fit.context)
    if setting.gpu.cpu:
        options = replace(options, kv_gib=spot.share, eager=True)
    else:
        options = replace(options, utilisation=spot.share)
    parts = moving(estimator.facts, options, setting.gpu, setting.version, setting.lesson, plan)
    if parts is None:
        return None
    without = spec.model_copy(update={"options": {k: v for k, v in spec.options.items() if k != "max_model_len"}})
    unsaid, version = asked_of(without, asked.need), setting.version
    end = length.ends(asked, estimator.facts, version)
    usual, roomy = gpus.usual_share(spot.gpus) if spot.gpus else (spot.share, True)
    return parts | {
        "share": spot.share,
        "least": LEAST_SHARE,
        "most": min(spot.most, MOST_SHARE) if asked.utilisation is None else spot.share,
        "usual": usual,
        "roomy": roomy,
        "said": asked.utilisation is not None or setting.gpu.cpu,
        "priority": asked.need.priority,
        "goal": unsaid.goal(version, estimator.longest),
        "must": unsaid.must(version, estimator.longest),
        "short": min(LEAST_CONTEXT, estimator.longest or LEAST_CONTEXT),
        "longest": estimator.longest_by(version),
        "ends": end.tokens if end is not None and end.sure else None,
        "replicas": setting.dp,
        "seats": spot.fit.seats,
    }


def stage_of(spot: Spot, place: int) -> int:
    """The pipeline stage of a GPU, by its place among those of the spot."""
    return place // spot.setting.tp % spot.setting.pp


def held_mib(gpu: GpuView) -> int:
    """What is taken of it before this run: claimed, used by others, or used in this moment."""
    return min(gpu.total_mib, max(gpu.reserved_mib + gpu.others_mib, gpu.used_mib))
