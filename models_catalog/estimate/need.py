"""Whether a wish fits into so much memory, and how surely: the estimate asked and judged with its range. Pure.

Catalog, downloads and the planner all ask here, so that a model never fits on one page and not on the next.

The estimate says a number and how far it may be off. A place is given up only when even the best end of the range is
too little; between that and the number itself it is `unlikely`, and between the number and its worst end `tight`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from models_catalog.estimate import Amount, Gpu, Lesson, Options, Plan, try_estimate, versions
from models_catalog.estimate.case import default_batch
from models_catalog.estimate.plan import Reason, Verdict
from models_catalog.estimate.units import GIB
from models_catalog.facts import ModelFacts

# How surely it will start and hold what is wanted. `unlikely`: the numbers say no, but by less than they may be off.
Level = Literal["fits", "tight", "unknown", "unlikely", "no"]
ORDER: dict[Level, int] = {"fits": 0, "tight": 1, "unknown": 2, "unlikely": 3, "no": 4}
ENOUGH: tuple[Level, ...] = ("fits", "tight")
VERDICTS: dict[Level, Verdict] = {
    "fits": "fits", "tight": "tight", "unknown": "unknown", "unlikely": "does_not_fit", "no": "does_not_fit",
}  # fmt: skip
LEAST_CONTEXT = 2048  # an engine that may choose its context is of no use below this
USUAL_SHARE = 0.9  # of a GPU, where nothing speaks against it
LEAST_SHARE, MOST_SHARE = 0.05, 0.97  # of a GPU; the driver's own part is never free
CPU_SEQUENCES = 8  # requests at once on a CPU where nobody says
MOST_KV_GIB = 4096
DEFAULTS = Options()


@dataclass(frozen=True)
class Wish:
    """What is wanted of a model.

    `context` are tokens by which requests at once are counted, `must` those that one request has to be able to have
    (None: the engine takes what fits), `people` requests of `context` at the same time (None: not said). What
    `options` say of context, parts and share does not count.
    """

    context: int
    must: int | None = None
    people: int | None = None
    options: Options = DEFAULTS


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
    """The answer for one share. `need_gib` is what each GPU must give, as far as that can be said.

    `people` is what the memory holds; the engine answers no more than `seats` of them at once (max_num_seqs), None
    where that is not known.
    """

    level: Level
    plan: Plan | None = None
    context: int | None = None
    people: Amount | None = None
    longest: Amount | None = None
    need_gib: float | None = None
    seats: int | None = None

    @property
    def at_once(self) -> Amount | None:
        """Requests that there is memory for and that the engine answers at once."""
        return seated(self.people, self.seats)


def seated(people: Amount | None, seats: int | None) -> Amount | None:
    """No more than so many; an amount that is not known stays so."""
    if people is None or seats is None:
        return people
    return people.map(lambda requests: min(requests, seats), people.reason)


UNKNOWN = Fit("unknown")
# The reasons of a plan that decide how surely it fits; what else it says is worth knowing, and no reason for that.
SHORT = (
    "kv.none", "kv.little", "context.too_long", "context.close", "free.too_small", "graphs.no_room", "graphs.lora",
    "static.no_room", "ram.too_small", "ram.little", "offload.too_large", "offload.little", "weights.too_large",
)  # fmt: skip
NOT_KNOWN = ("model.unknown", "model.unchecked", "scheme.unknown", "version.unknown", "gpu.unknown")


def because(fit: Fit) -> Reason | None:
    """Why it is not sure that it fits, as the estimate says it; None where it fits surely, or nothing is said.

    Where no part of the memory is short, it is the number of requests that fit.
    """
    if fit.plan is None or fit.level == "fits":
        return None
    wanted = (*NOT_KNOWN, *SHORT) if fit.level == "unknown" else (*SHORT, "requests.fit")
    found = {reason.code: reason for reason in reversed(fit.plan.reasons)}
    return next((found[code] for code in wanted if code in found), None)


@dataclass
class Needs:
    """What one model needs, remembered: the same is asked of many equal GPUs. No facts: nothing can be said."""

    facts: ModelFacts | None
    _plans: dict[tuple[Options, Gpu, str, Lesson | None], Plan | None] = field(default_factory=dict)
    _fits: dict[tuple[Wish, Setting, float], Fit] = field(default_factory=dict)
    _least: dict[tuple[Wish, Setting, bool], float | None] = field(default_factory=dict)

    @property
    def longest(self) -> int | None:
        """The context that the model itself names."""
        return self.facts.context_length if self.facts is not None else None

    def plan(self, options: Options, gpu: Gpu, version: str, lesson: Lesson | None = None) -> Plan | None:
        """None where there is no estimate, also for facts that no model has."""
        key = (options, gpu, version, lesson)
        if key not in self._plans:
            found = try_estimate(self.facts, options, gpu, version, lesson) if self.facts is not None else None
            self._plans[key] = found
        return self._plans[key]

    def fit(self, wish: Wish, setting: Setting, share: float) -> Fit:
        """`share` is that of a GPU's total; on a CPU it is the GiB of the KV cache."""
        key = (wish, setting, share)
        if key not in self._fits:
            self._fits[key] = self._fit(wish, setting, share)
        return self._fits[key]

    def _fit(self, wish: Wish, setting: Setting, share: float) -> Fit:
        plan = self.at(wish.options, setting, share, wish.context)
        if plan is None:
            return UNKNOWN
        if not plan.ranks:
            return Fit("no" if plan.verdict == "does_not_fit" else "unknown", plan)
        longest = plan.max_len
        if wish.must is not None and wish.must > wish.context:
            longer = self.at(wish.options, setting, share, wish.must)
            longest = longer.max_len if longer is not None else longest
        people = plan.concurrency.map(lambda requests: requests * setting.dp, plan.concurrency.reason)
        level = _level(wish, plan, self.longest, people, longest)
        need = _need_gib(plan, wish.people or 1, wish.must or wish.context)
        return Fit(level, plan, wish.context, people, longest, need, _seats(wish.options, setting))

    def at(self, options: Options, setting: Setting, share: float, context: int) -> Plan | None:
        """The estimate at one context."""
        try:
            options = replace(options, tp=setting.tp, pp=setting.pp, dp=setting.dp, context=context)
            if setting.gpu.cpu:
                options = replace(options, kv_gib=share, sequences=options.sequences or CPU_SEQUENCES, eager=True)
            else:
                options = replace(options, utilisation=share)
        except ValueError:  # no engine can mean that; whoever starts it says which value it is
            return None
        return self.plan(options, setting.gpu, setting.version, setting.lesson)

    def least_share(self, wish: Wish, setting: Setting, *, sure: bool = False) -> float | None:
        """The smallest share, in hundredths, that holds the wish; `sure` at the worst end too. None when none does."""
        key = (wish, setting, sure)
        if key not in self._least:
            self._least[key] = self._least_share(wish, setting, ("fits",) if sure else ENOUGH)
        return self._least[key]

    def _least_share(self, wish: Wish, setting: Setting, enough: tuple[Level, ...]) -> float | None:
        low, high = round(LEAST_SHARE * 100), round(MOST_SHARE * 100)
        if self.fit(wish, setting, high / 100).level not in enough:
            return None
        while low < high:
            middle = (low + high) // 2
            if self.fit(wish, setting, middle / 100).level in enough:
                high = middle
            else:
                low = middle + 1
        return high / 100

    def least_kv_gib(self, wish: Wish, setting: Setting) -> int | None:
        """The smallest cache on a CPU, whole GiB, that holds the wish; None when none does."""
        low, high = 1, 1
        while self.fit(wish, setting, high).level not in ENOUGH:
            low, high = high + 1, high * 4
            if high > MOST_KV_GIB:
                return None
        while low < high:
            middle = (low + high) // 2
            if self.fit(wish, setting, middle).level in ENOUGH:
                high = middle
            else:
                low = middle + 1
        return high


def _seats(options: Options, setting: Setting) -> int | None:
    """Requests that the engine answers at once, as the settings say or by its own default; each replica so many."""
    each = options.sequences or (CPU_SEQUENCES if setting.gpu.cpu else None)
    version = versions.parse(setting.version) if each is None else None
    if version is not None:
        each = default_batch(setting.gpu, version)[1]
    return each * setting.dp if each else None


def _level(wish: Wish, plan: Plan, own: int | None, people: Amount, longest: Amount) -> Level:
    """The worst of all that is wanted."""
    must = wish.must
    levels = [_reaches(longest, must if must is not None else min(LEAST_CONTEXT, own or LEAST_CONTEXT))]
    if wish.people is not None:
        levels.append(_reaches(people, wish.people))
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
    cache = math.ceil(people * blocks["blocks"] * times + 1) * size / GIB
    fixed = [
        sum(part.value or 0.0 for part in three) + ((graphs.value or 0.0) if graphs is not None else 0.0)
        for three, graphs in zip(parts, charged, strict=True)
    ]
    return float(max(fixed) + cache)
