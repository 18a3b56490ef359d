"""When the version or the architecture is not known: no silent guess, but the range that is certain."""

from __future__ import annotations

from dataclasses import replace

from models_catalog.estimate import gpus
from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.options import Options
from models_catalog.estimate.plan import Amount, Plan, Rank, Reason, Verdict
from models_catalog.estimate.units import GIB
from models_catalog.estimate.verdict import Judge
from models_catalog.facts import ModelFacts

LEAST_PACKED = 0.125  # of 16 bits: two bits a weight
PACKING = 0.9  # files hold a little more than what is loaded: a drafter, a second copy of tied words


def hull(plans: list[Plan], reason: Reason) -> Plan:
    """One answer for several ways of counting: the most careful values, and a range that holds them all."""
    careful = min(plans, key=_cache)
    verdicts: set[Verdict] = {plan.verdict for plan in plans}
    verdict = verdicts.pop() if len(verdicts) == 1 else "unknown"
    if any(len(plan.ranks) != len(careful.ranks) for plan in plans):
        return replace(careful, verdict=verdict, reasons=(reason, *careful.reasons))
    ranks = tuple(_rank([plan.ranks[place] for plan in plans], rank) for place, rank in enumerate(careful.ranks))
    tokens = min((plan.kv_tokens for plan in plans), key=lambda amount: amount.value or 0.0)
    requests = min((plan.concurrency for plan in plans), key=lambda amount: amount.value or 0.0)
    longest = min((plan.max_len for plan in plans), key=lambda amount: amount.value or 0.0)
    return replace(
        careful,
        ranks=ranks,
        kv_tokens=_joined([plan.kv_tokens for plan in plans], tokens),
        concurrency=_joined([plan.concurrency for plan in plans], requests),
        max_len=_joined([plan.max_len for plan in plans], longest),
        verdict=verdict,
        reasons=(reason, *careful.reasons),
    )


def _rank(ranks: list[Rank], middle: Rank) -> Rank:
    return replace(
        middle,
        weights=_joined([rank.weights for rank in ranks], middle.weights),
        activation=_joined([rank.activation for rank in ranks], middle.activation),
        overhead=_joined([rank.overhead for rank in ranks], middle.overhead),
        graphs=_joined([rank.graphs for rank in ranks], middle.graphs),
        kv=_joined([rank.kv for rank in ranks], middle.kv),
    )


def _cache(plan: Plan) -> float:
    return min((rank.kv.value or 0.0 for rank in plan.ranks), default=0.0)


def _joined(amounts: list[Amount], middle: Amount) -> Amount:
    lows = [amount.low for amount in amounts]
    highs = [amount.high for amount in amounts]
    return replace(
        middle,
        low=None if None in lows else min(low for low in lows if low is not None),
        high=None if None in highs else max(high for high in highs if high is not None),
    )


def widened(plan: Plan, facts: ModelFacts, reason: Reason) -> Plan:
    """An architecture that was read like a plain decoder: its numbers stay, the ranges say that they may be wrong."""
    ranks = tuple(
        replace(
            rank,
            weights=_as_files(rank.weights, facts, len(plan.ranks)),
            kv=replace(rank.kv, low=None if rank.kv.value is None else min(0.0, rank.kv.value)),
        )
        for rank in plan.ranks
    )
    open_end = {
        name: replace(getattr(plan, name), low=0, high=None) for name in ("kv_tokens", "concurrency", "max_len")
    }
    verdict: Verdict = plan.verdict if plan.verdict == "does_not_fit" else "unknown"
    return replace(plan, ranks=ranks, verdict=verdict, reasons=(reason, *plan.reasons), **open_end)


def doubted(plan: Plan, reason: Reason) -> Plan:
    """Files and shape differ (a drafter's layers, a second copy of tied words, or a part that the shape misses): the
    number stays that of the shape, its range reaches to the files' size."""
    share = reason.params["files"] / reason.params["shape"] if reason.params["shape"] else 1.0
    ranks = []
    for rank in plan.ranks:
        weights, kv = rank.weights, rank.kv
        own = weights.value
        if own is not None and weights.low is not None and weights.high is not None:
            other = own * share
            weights = replace(weights, low=min(weights.low, other), high=max(weights.high, other))
            if kv.low is not None and kv.value is not None and kv.low != kv.high and other > own:
                kv = replace(kv, low=min(kv.low, kv.value - (other - own)))
        ranks.append(replace(rank, weights=weights, kv=kv))
    return replace(plan, ranks=tuple(ranks), reasons=(*plan.reasons, reason))


def _as_files(amount: Amount, facts: ModelFacts, stages: int) -> Amount:
    if not facts.weight_bytes or amount.value is None:
        return replace(amount, low=0.0, high=None)
    whole = facts.weight_bytes / GIB
    return replace(amount, low=min(amount.value, PACKING * whole / stages), high=max(amount.value, whole))


def unpacked(plan: Plan, options: Options, reason: Reason) -> Plan:
    """The packing is not known: weights take between 2 and 16 bits each, and the cache what they leave.

    A cache whose size was told holds what it holds, whatever the weights are.
    """
    ranks = []
    for rank in plan.ranks:
        most = rank.weights.value or 0.0
        weights = Amount.unknown(reason, LEAST_PACKED * most, most)
        kv = rank.kv
        if options.kv_gib is None and kv.value is not None:
            kv = Amount.unknown(reason, kv.low, kv.value + (1 - LEAST_PACKED) * most)
        ranks.append(replace(rank, weights=weights, kv=kv))
    known = replace(plan, ranks=tuple(ranks), reasons=(reason, *plan.reasons))
    if options.kv_gib is not None:
        return known
    return replace(
        known,
        kv_tokens=Amount.unknown(reason, plan.kv_tokens.low),
        concurrency=Amount.unknown(reason, plan.concurrency.low),
        max_len=Amount.unknown(reason, plan.max_len.low),
        verdict="fits" if plan.verdict == "fits" else "unknown",  # with 16 bits, and so with fewer
    )


def nothing_known(facts: ModelFacts, options: Options, gpu: Gpu, version: str, reason: Reason) -> Plan:
    """No shape, or a packing that has no formula: only the files' size is certain."""
    judge = Judge(certain=False)
    judge.reasons.append(reason)
    missing = Amount.unknown(reason)
    count = options.tp * options.pp
    ranks: tuple[Rank, ...] = ()
    if facts.weight_bytes:
        each = facts.weight_bytes / GIB / count
        size = Amount(each, PACKING * each, facts.weight_bytes / GIB, Reason("weights.files"))
        ranks = (Rank(0, size, missing, missing, missing, missing),)
        total = gpus.total_gib(gpu)
        if total is not None and PACKING * each > total:
            judge.fail("weights.too_large", weights=round(each, 2), total=round(total, 2))
    return Plan(
        options.engine, version, ranks, missing, missing, missing, judge.verdict(), tuple(judge.reasons),
        options.context,
    )  # fmt: skip
