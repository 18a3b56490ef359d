"""SGLang: `mem-fraction-static` of a GPU's total holds weights and cache, everything else lives beside it.

Less certain. There is no profiling of the sampler, hence more cache than vLLM gives from the same share.
"""

from __future__ import annotations

from dataclasses import replace

from models_catalog.estimate import activation as working
from models_catalog.estimate import gpus, graphs, kv_cache, overhead, verdict, weights
from models_catalog.estimate.case import Case
from models_catalog.estimate.plan import Amount, Plan, Rank, Reason
from models_catalog.estimate.units import GIB

DEFAULT_SHARES = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))  # by GPUs side by side: from so many on
DOUBT_SHARE, LEAST_DOUBT_GIB = 0.1, 1.0


def plan(case: Case, version: str, plain_parts: frozenset[str], *, longest: int | None) -> Plan:
    """From documentation and one measured report; vLLM's shapes of weights and cache."""
    case = replace(case, options=replace(case.options, dp=1))  # its replicas have all experts each
    judge = verdict.Judge()
    judge.note("engine.less_certain", engine="sglang")
    verdict.shards(judge, case)
    rank = _rank(case, plain_parts)
    if judge.fails or rank.kv.value is None:
        nothing = Amount.unknown(judge.reasons[-1] if judge.fails else rank.kv.reason)
        judge.certain = judge.fails
        return Plan("sglang", version, (), nothing, nothing, nothing, judge.verdict(), tuple(judge.reasons))
    tokens = _tokens(case, rank.kv)
    most = max(longest, case.context) if longest else kv_cache.MOST_TOKENS
    longest_request = tokens.map(lambda n: min(n, most), Reason("kv.longest", {"limit": longest}))
    requests = tokens.map(lambda n: n / case.context, Reason("kv.requests", {"context": case.context}))
    if rank.kv.value <= 0:
        judge.fail("kv.none", missing=round(-rank.kv.value, 2), wanted=round(_budget(case) or 0.0, 2))
    _beside(judge, case, rank)
    verdict.request(judge, case, requests, longest_request)
    verdict.limit(judge, case, longest)
    return Plan(
        engine="sglang",
        engine_version=version,
        ranks=(rank,),
        kv_tokens=tokens,
        concurrency=requests,
        max_len=longest_request,
        verdict=judge.verdict(),
        reasons=tuple(judge.reasons),
        context=case.context,
        need_gib=sum(amount.value or 0.0 for amount in rank.amounts().values()),
    )


def _budget(case: Case) -> float | None:
    """The share of what is free when the weights begin to load; the driver's context and NCCL have theirs by then.

    From two start-ups: 4 GPUs of 23.5 GiB, 21.63 free, by default 0.85 of them; one with 14.70 free, told 0.15.
    """
    total = gpus.total_gib(case.gpu)
    return None if total is None else (total - sum(overhead.before_start_gib(case)) / 2) * share(case)


def share(case: Case) -> float:
    told, side_by_side = case.options.static_share, case.options.tp * case.options.pp
    return told or next(each for count, each in DEFAULT_SHARES if side_by_side >= count)


def _rank(case: Case, plain_parts: frozenset[str]) -> Rank:
    loaded = verdict.gib(weights.weight_bytes(case, 0, plain_parts))
    forward = verdict.gib(working.forward_bytes(case))
    beside, budget, told = overhead.overhead(case), _budget(case), case.options.kv_gib
    if told is not None:
        cache = Amount(told, told, told, Reason("kv.told"))
    elif budget is None:
        cache = Amount.unknown(Reason("gpu.unknown", {"gpu": case.gpu.name}))
    else:
        left = budget - loaded
        doubt = max(LEAST_DOUBT_GIB, DOUBT_SHARE * abs(left))
        cache = Amount.near(left, doubt, reason=Reason("kv.static", {"budget": round(budget, 2)}))
    return Rank(
        stage=0,
        weights=Amount.near(loaded, 0.03 * loaded, reason=case.scheme.source),
        activation=Amount.near(forward, 0.5 * forward, 2 * forward, reason=Reason("activation.outside")),
        overhead=beside,
        graphs=graphs.graphs(case, 0),
        kv=cache,
        layers=len(case.stage_layers(0)),
    )


def _tokens(case: Case, size: Amount) -> Amount:
    """Every attention layer keeps every token."""
    layers = sum(kind in ("full", "sliding", "chunked") for kind in case.kinds(0))
    each = max(1, layers * kv_cache.token_bytes(case))
    return size.map(lambda gib: max(0, int(gib * GIB // each)), Reason("kv.tokens", {"bytes": each}))


def _beside(judge: verdict.Judge, case: Case, rank: Rank) -> None:
    total, budget = gpus.total_gib(case.gpu), _budget(case)
    if total is None or budget is None:
        return
    outside = (rank.activation.value or 0.0) + (rank.graphs.value or 0.0)
    if outside > total - budget:
        judge.warn("static.no_room", outside=round(outside, 2), beside=round(total - budget, 2))
    if case.gpu.free_gib is not None and budget + outside > case.gpu.free_gib:
        judge.fail("free.too_small", free=round(case.gpu.free_gib, 2), wanted=round(budget, 2), total=round(total, 2))
