"""From the numbers to a verdict, with every reason that led there."""

from __future__ import annotations

from dataclasses import dataclass, field

from models_catalog.estimate import gpus, overhead
from models_catalog.estimate.case import Case
from models_catalog.estimate.plan import Amount, Rank, Reason, Verdict
from models_catalog.estimate.units import GIB

JUST_GIB = 0.5  # "it just fits" is said when it would not with so much less
ROUND_LEN = 1024


@dataclass
class Judge:
    """Collects reasons; the worst verdict stands.

    Not `certain`: the version or the architecture is unknown, and only what no doubt can change is a verdict.
    """

    certain: bool = True
    reasons: list[Reason] = field(default_factory=list)
    fails: bool = False
    tight: bool = False

    def fail(self, code: str, **params: object) -> None:
        self.fails = True
        self.reasons.append(Reason(code, dict(params)))

    def warn(self, code: str, **params: object) -> None:
        self.tight = True
        self.reasons.append(Reason(code, dict(params)))

    def note(self, code: str, **params: object) -> None:
        self.reasons.append(Reason(code, dict(params)))

    def best(self, amount: Amount) -> float | None:
        """What a failure is judged by: the value, or the best that is possible when the value is a guess."""
        return amount.value if self.certain else amount.high

    def verdict(self) -> Verdict:
        if self.fails:
            return "does_not_fit"
        if not self.certain:
            return "unknown"
        return "tight" if self.tight else "fits"


def shards(judge: Judge, case: Case) -> None:
    """Refusals that depend on no memory at all."""
    shape, tp = case.geometry, case.options.tp
    if case.vocab % tp:
        judge.fail("tp.vocabulary", tp=tp, vocab=case.vocab)
    if shape.heads % tp:
        judge.fail("tp.heads", tp=tp, heads=shape.heads)
    elif shape.kv_heads % tp and tp % shape.kv_heads and shape.latent is None:
        judge.fail("tp.kv_heads", tp=tp, kv_heads=shape.kv_heads)
    if case.options.pp > len(shape.layers):
        judge.fail("pp.layers", pp=case.options.pp, layers=len(shape.layers))


def memory(judge: Judge, case: Case, ranks: tuple[Rank, ...]) -> None:
    """Whether weights, working memory and graphs leave anything for the cache."""
    total = gpus.total_gib(case.gpu)
    if total is None:
        judge.note("gpu.unknown", gpu=case.gpu.name)
        judge.certain = judge.certain and case.options.kv_gib is not None
        return
    wanted = total * case.utilisation
    if case.gpu.free_gib is not None and case.gpu.free_gib < wanted and case.options.kv_gib is None:
        judge.fail("free.too_small", free=_round(case.gpu.free_gib), wanted=_round(wanted), total=_round(total))
    worst = min((rank.kv for rank in ranks), key=lambda kv: kv.value if kv.value is not None else 0.0)
    if worst.value is not None and case.options.kv_gib is None:
        best = judge.best(worst)
        if best is not None and best <= 0:
            judge.fail("kv.none", missing=_round(-best), wanted=_round(wanted))
        elif worst.low is not None and min(worst.low, worst.value - JUST_GIB) <= 0:
            judge.warn("kv.little", kv=_round(worst.value))
    _beside(judge, case, ranks[0], total)


def _beside(judge: Judge, case: Case, rank: Rank, total: float) -> None:
    """What lies outside the budget must fit beside it: graphs of older versions, and the CUDA context."""
    if case.options.kv_gib is not None:
        return
    _least, most = overhead.before_start_gib(case)
    beside = total * (1 - case.utilisation)
    graphs = 0.0 if case.charges_graphs else (rank.graphs.value or 0.0)
    if graphs and graphs + most > beside:
        judge.warn("graphs.no_room", graphs=_round(graphs), beside=_round(beside))
    if case.options.loras and not case.options.eager and beside < 2.0:
        judge.warn("graphs.lora", loras=case.options.loras, beside=_round(beside))


def request(judge: Judge, case: Case, concurrency: Amount, longest: Amount) -> None:
    """Whether one request of the wanted context fits."""
    if longest.value is None:
        return
    most = judge.best(longest)
    best = int(longest.value) // ROUND_LEN * ROUND_LEN or int(longest.value)
    if most is not None and most < case.context:
        judge.fail("context.too_long", context=case.context, longest=best)
    elif longest.low is not None and longest.low < case.context:
        judge.warn("context.close", context=case.context, longest=max(best, min(case.context, int(longest.value))))
    elif concurrency.value is not None:
        judge.note("requests.fit", requests=round(concurrency.value, 2), context=case.context)


def limit(judge: Judge, case: Case, longest: int | None) -> None:
    """What the model itself can take; memory is not the question then."""
    if longest is not None and case.context > longest:
        judge.note("context.beyond_model", context=case.context, longest=longest)


def gib(size: float) -> float:
    return size / GIB


def _round(value: float) -> float:
    return round(value, 2)
