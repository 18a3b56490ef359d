"""Whether a need fits into so much memory: the estimate asked, and its answer judged with its range. Pure.

The estimate says a number and how far it may be off. A place is given up only when even the best end of the range is
too little; between that and the number itself it is `unlikely`, and between the number and its worst end `tight`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from deployments.placement import Level
from deployments.planner.asked import CPU_SEQUENCES, Asked
from models_catalog.estimate import Amount, Gpu, Lesson, Options, Plan, try_estimate
from models_catalog.facts import ModelFacts

LEAST_CONTEXT = 2048  # an engine that may choose its context is of no use below this
LEAST_SHARE, MOST_SHARE = 0.05, 0.97  # of a GPU; the driver's own part is never free
ORDER: dict[Level, int] = {"fits": 0, "tight": 1, "unknown": 2, "unlikely": 3, "no": 4}
ENOUGH: tuple[Level, ...] = ("fits", "tight")


@dataclass(frozen=True)
class Setting:
    """One kind of GPU (or a machine's processor), the engine on it, and how the model is divided among them."""

    gpu: Gpu
    version: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    lesson: Lesson | None = None  # what earlier launches of this kind on this host taught


@dataclass(frozen=True)
class Fit:
    """The answer for one share. `need_gib` is what each GPU must give, as far as that can be said."""

    level: Level
    plan: Plan | None = None
    context: int | None = None
    people: Amount | None = None
    longest: Amount | None = None
    need_gib: float | None = None


UNKNOWN = Fit("unknown")


@dataclass
class Estimator:
    """The estimate of one model, remembered: one search asks the same of many equal GPUs."""

    facts: ModelFacts | None
    lessons: Mapping[tuple[int, str, str, int], Lesson] = field(default_factory=dict)  # see measured.Kind
    _plans: dict[tuple[Options, Gpu, str, Lesson | None], Plan | None] = field(default_factory=dict)
    _fits: dict[tuple[Asked, Setting, float], Fit] = field(default_factory=dict)
    _least: dict[tuple[Asked, Setting, bool], float | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model_facts: Mapping[str, Any],
        task: str = "generate",
        lessons: Mapping[tuple[int, str, str, int], Lesson] | None = None,
    ) -> Estimator:
        """Facts that cannot be read, and models without a conversation, have no estimate."""
        if task != "generate":
            return cls(None)
        try:
            return cls(ModelFacts.from_dict(dict(model_facts)), lessons or {})
        except ValidationError:
            return cls(None)

    @property
    def longest(self) -> int | None:
        return self.facts.context_length if self.facts is not None else None

    def plan(self, options: Options, gpu: Gpu, version: str, lesson: Lesson | None = None) -> Plan | None:
        """None where there is no estimate, also for facts that no model has."""
        key = (options, gpu, version, lesson)
        if key not in self._plans:
            self._plans[key] = self._plan(*key)
        return self._plans[key]

    def _plan(self, options: Options, gpu: Gpu, version: str, lesson: Lesson | None) -> Plan | None:
        return try_estimate(self.facts, options, gpu, version, lesson) if self.facts is not None else None

    def fit(self, asked: Asked, setting: Setting, share: float) -> Fit:
        """`share` is that of a GPU's total; on a CPU it is the GiB of the KV cache."""
        key = (asked, setting, share)
        if key not in self._fits:
            self._fits[key] = self._fit(asked, setting, share)
        return self._fits[key]

    def _fit(self, asked: Asked, setting: Setting, share: float) -> Fit:
        goal = asked.goal(setting.version, self.longest)
        must = asked.must(setting.version, self.longest)
        plan = self.at(asked, setting, share, goal)
        if plan is None:
            return UNKNOWN
        if not plan.ranks:
            return Fit("no" if plan.verdict == "does_not_fit" else "unknown", plan)
        longest = plan.max_len
        if must is not None and must > goal:
            longer = self.at(asked, setting, share, must)
            longest = longer.max_len if longer is not None else longest
        people = plan.concurrency.map(lambda requests: requests * setting.dp, plan.concurrency.reason)
        level = _level(asked, plan, must, self.longest, people, longest)
        need = _need_gib(plan, asked.need.people or 1, must or goal)
        return Fit(level, plan, goal, people, longest, need)

    def at(self, asked: Asked, setting: Setting, share: float, context: int) -> Plan | None:
        """The estimate at one context."""
        try:
            options = replace(asked.options, tp=setting.tp, pp=setting.pp, context=context)
            if setting.gpu.cpu:
                options = replace(options, kv_gib=share, sequences=options.sequences or CPU_SEQUENCES, eager=True)
            else:
                options = replace(options, utilisation=share)
        except ValueError:  # no engine can mean that; the adapter says which value it is
            return None
        return self.plan(options, setting.gpu, setting.version, setting.lesson)

    def least_share(self, asked: Asked, setting: Setting, *, sure: bool = False) -> float | None:
        """The smallest share, in hundredths, that holds the need; `sure` at the worst end too. None when none does."""
        key = (asked, setting, sure)
        if key not in self._least:
            self._least[key] = self._least_share(asked, setting, ("fits",) if sure else ENOUGH)
        return self._least[key]

    def _least_share(self, asked: Asked, setting: Setting, enough: tuple[Level, ...]) -> float | None:
        low, high = round(LEAST_SHARE * 100), round(MOST_SHARE * 100)
        if self.fit(asked, setting, high / 100).level not in enough:
            return None
        while low < high:
            middle = (low + high) // 2
            if self.fit(asked, setting, middle / 100).level in enough:
                high = middle
            else:
                low = middle + 1
        return high / 100


def _level(asked: Asked, plan: Plan, must: int | None, own: int | None, people: Amount, longest: Amount) -> Level:
    """The worst of all that is wanted."""
    least = must if must is not None else min(LEAST_CONTEXT, own or LEAST_CONTEXT)
    levels = [_reaches(longest, least)]
    if asked.need.people is not None:
        levels.append(_reaches(people, asked.need.people))
    elif must is None and _reaches(people, 1) != "fits":
        levels.append("tight")
    if "no" in levels or (plan.verdict == "does_not_fit" and plan.concurrency.value is None):
        return "no"
    if plan.verdict == "unknown":
        return "unknown"
    if plan.verdict == "tight":
        levels.append("tight")
    return max(levels, key=ORDER.__getitem__)


def _reaches(amount: Amount, wanted: float) -> Level:
    if amount.high is not None and amount.high < wanted:
        return "no"
    if amount.value is None:
        return "unknown"
    if amount.value < wanted:
        return "unlikely"
    return "fits" if amount.low is not None and amount.low >= wanted else "tight"


def _need_gib(plan: Plan, people: int, context: int) -> float | None:
    """Weights, working memory, and a cache for so many requests; None when a part is not known."""
    parts = [(rank.weights, rank.activation, rank.overhead) for rank in plan.ranks]
    charged = [rank.graphs if rank.graphs.reason.code != "graphs.outside" else None for rank in plan.ranks]
    blocks, size = plan.concurrency.reason.params, plan.kv_tokens.reason.params.get("bytes")
    if "blocks" not in blocks or not size or any(part.value is None for three in parts for part in three):
        return None
    times = max(1.0, context / (blocks.get("context") or context))
    cache = math.ceil(people * blocks["blocks"] * times + 1) * size / 2**30
    fixed = [
        sum(part.value or 0.0 for part in three) + ((graphs.value or 0.0) if graphs is not None else 0.0)
        for three, graphs in zip(parts, charged, strict=True)
    ]
    return float(max(fixed) + cache)
