"""vLLM on GPUs: budget − weights − activation − non-torch − graphs = cache, stage by stage.

Source: gpu_worker.py, worker/utils.py and utils/mem_utils.py of vLLM 0.6 to 0.32. The budget is a share of the GPU's
total, and what is free must be at least that much before the start.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from models_catalog.estimate import activation, gpus, graphs, kv_cache, kv_types, learned, overhead, verdict, weights
from models_catalog.estimate.case import Case
from models_catalog.estimate.kv_cache import Cache
from models_catalog.estimate.plan import Amount, Plan, Rank, Reason
from models_catalog.estimate.units import GIB

LEAST_DOUBT_GIB, LEAST_DOUBT_SHARE = 0.5, 0.02  # of the cache, where a combination was never measured
WIDE_DOUBT_GIB, SHARED_DOUBT_GIB = 0.9, 3.0
PIPELINE_DOUBT_GIB = 1.4  # stages without fast links set up their exchange during the trial run
FILM_DOUBT_GIB = 2.0  # the first engine profiled as many pictures as one step can hold
# Beyond so many tokens a step hardly anything was measured: GiB for each time so many.
TOKENS_SEEN, FAR_DOUBT = 16_384, 1.5
WEIGHTS_DOUBT, WEIGHTS_DOUBT_INEXACT = 0.01, 0.06
PLAIN_NAMES = frozenset({"none", "fp32"})
ACTIVATION_DOUBT_GIB = 0.1
ENDS = ("value", "low", "high")


def plan(case: Case, version_text: str, plain_parts: frozenset[str], *, certain: bool, longest: int | None) -> Plan:
    """The whole answer. `longest` is the context that the model itself names."""
    judge = verdict.Judge(certain=certain)
    verdict.shards(judge, case)
    if judge.fails:
        return refused(case, version_text, judge)
    ranks = tuple(_rank(case, stage, plain_parts) for stage in range(case.options.pp))
    caches = [kv_cache.cache_of(case, stage) for stage in range(case.options.pp)]
    counts = count(case, ranks, caches, longest)
    verdict.memory(judge, case, ranks)
    if caches[0].groups:
        verdict.request(judge, case, counts["concurrency"], counts["max_len"])
    else:
        judge.note("kv.unneeded")
    verdict.limit(judge, case, longest)
    _notes(judge, case)
    return Plan(
        engine="vllm",
        engine_version=version_text,
        ranks=ranks,
        verdict=judge.verdict(),
        reasons=tuple(judge.reasons),
        context=case.context,
        need_gib=_need(case, ranks),
        **counts,
    )


def refused(case: Case, version_text: str, judge: verdict.Judge) -> Plan:
    """No numbers: the engine ends before it needs any memory."""
    nothing = Amount.unknown(judge.reasons[0])
    return Plan(
        "vllm", version_text, (), nothing, nothing, nothing, judge.verdict(), tuple(judge.reasons),
        case.context,
    )  # fmt: skip


def _rank(case: Case, stage: int, plain_parts: frozenset[str]) -> Rank:
    size = verdict.gib(weights.weight_bytes(case, stage, plain_parts))
    doubt = WEIGHTS_DOUBT if _counted_exactly(case) else WEIGHTS_DOUBT_INEXACT
    loaded = Amount.near(size, doubt * size, reason=case.scheme.source)
    peak = Amount.near(
        verdict.gib(activation.activation_bytes(case, stage)),
        ACTIVATION_DOUBT_GIB,
        0.5 if case.geometry.vision_parameters else ACTIVATION_DOUBT_GIB,
        reason=Reason("activation.profile", {"tokens": case.batched_tokens, "sequences": case.sequences}),
    )
    beside, captured = overhead.overhead(case, stage), graphs.graphs(case, stage)
    cache = _cache_gib(case, loaded, peak, beside, captured)
    if case.lesson is not None and cache.value is not None and case.options.kv_gib is None:
        beside, peak, loaded = learned.moved((beside, peak, loaded), case.lesson.shift_gib)
    return Rank(stage, loaded, peak, beside, captured, cache, len(case.stage_layers(stage)))


def _counted_exactly(case: Case) -> bool:
    """Makers of packed models with recurrent layers leave some of those in 16 bits, and not all say which."""
    return case.scheme.exact and case.geometry.known and not (case.hybrid and case.scheme.name not in PLAIN_NAMES)


def _cache_gib(case: Case, loaded: Amount, peak: Amount, beside: Amount, captured: Amount) -> Amount:
    """What is left for the cache, or the size that was told."""
    told = case.options.kv_gib
    if told is not None:
        return Amount(told, told, told, Reason("kv.told"))
    total = gpus.total_gib(case.gpu)
    if total is None:
        return Amount.unknown(Reason("gpu.unknown", {"gpu": case.gpu.name}))
    budget = ceil(total * GIB * case.utilisation) / GIB
    charged = captured.value if case.charges_graphs else 0.0
    parts = (loaded, peak, beside)
    left = budget - sum(part.value or 0.0 for part in parts) - (charged or 0.0)
    reason = Reason("kv.left", {"budget": round(budget, 2), "utilisation": case.utilisation})
    if case.lesson is not None:
        left += case.lesson.shift_gib
        told_by = {"launches": case.lesson.launches, "shift": case.lesson.shift_gib}
        reason = Reason("kv.learned", {**reason.params, **told_by})
    doubt = cache_doubt_gib(case, left)
    return Amount.near(left, doubt, min(doubt, max(0.0, budget - left)), reason=reason)


def cache_doubt_gib(case: Case, left: float) -> float:
    """How far the size of the cache may be off: on a GPU and version that were not measured, or after launches here."""
    if case.lesson is not None:
        return case.lesson.doubt_gib
    doubt = max(LEAST_DOUBT_GIB, LEAST_DOUBT_SHARE * abs(left))
    shape = case.geometry
    unusual = bool(shape.experts or case.hybrid or shape.vision_parameters) and case.version.charges_graphs
    apart = case.traits.kind != "datacenter"
    if unusual or not case.scheme.exact or (case.options.tp > 1 and apart):
        doubt = max(doubt, WIDE_DOUBT_GIB)
    if case.options.pp > 1 and apart:
        doubt = max(doubt, PIPELINE_DOUBT_GIB)
    if shape.vision_parameters and case.version.engine_v0 and not case.options.text_only:
        doubt = max(doubt, FILM_DOUBT_GIB)
    doubt = max(doubt, FAR_DOUBT * case.batched_tokens / TOKENS_SEEN) if case.batched_tokens > TOKENS_SEEN else doubt
    if case.traits.shared_memory:
        doubt = max(doubt, SHARED_DOUBT_GIB)
    return doubt


def count(case: Case, ranks: tuple[Rank, ...], caches: list[Cache], longest: int | None) -> dict[str, Amount]:
    """Tokens, requests at once and the longest request: the stage with the fewest blocks decides.

    A request is no longer than the model itself can take, unless a longer context was asked for.
    """
    first = ranks[0].kv
    if first.value is None:
        unknown = Amount.unknown(first.reason)
        return {"kv_tokens": unknown, "concurrency": unknown, "max_len": unknown}
    ends = [_blocks(ranks, caches, end) for end in ENDS]
    cache, version = caches[0], case.version
    one = cache.request_blocks(case.context)
    times = case.options.dcp  # each GPU of such a group keeps other tokens
    tokens = [times * cache.logged_tokens(n, case.context, by_context=version.tokens_by_context) for n in ends]
    requests = [times * n / one if one else 0.0 for n in ends]
    most = max(longest, case.context) if longest else kv_cache.MOST_TOKENS
    lengths = [min(most, _longest(case, ranks, caches, end)) for end in ENDS]
    blocks = Reason("kv.blocks", {"blocks": ends[0], "groups": len(cache.groups), "bytes": cache.block_bytes})
    return {
        "kv_tokens": Amount.of(tokens, blocks),
        "concurrency": Amount.of(requests, Reason("kv.requests", {"context": case.context, "blocks": one})),
        "max_len": Amount.of(lengths, Reason("kv.longest", {"limit": longest})),
    }


def _blocks(ranks: tuple[Rank, ...], caches: list[Cache], end: str) -> int:
    sizes = [getattr(rank.kv, end) * GIB for rank in ranks]
    return min(cache.blocks(size) for cache, size in zip(caches, sizes, strict=True))


def _longest(case: Case, ranks: tuple[Rank, ...], caches: list[Cache], end: str) -> int:
    """Tokens of the longest request that memory allows, whatever the model itself can take."""
    blocks, cache = _blocks(ranks, caches, end), caches[0]
    if case.version.checks_all_layers and case.options.pp > 1:
        alone = replace(case, options=replace(case.options, pp=1))
        cache = kv_cache.cache_of(alone, 0)
        blocks = cache.blocks(min(getattr(rank.kv, end) for rank in ranks) * GIB)
    spare = 1 if case.version.null_block else 0
    return case.options.dcp * cache.longest(max(0, blocks - spare))


def _need(case: Case, ranks: tuple[Rank, ...]) -> float | None:
    """GiB that must be free on each GPU: the budget, or with a told cache what the parts come to."""
    total = gpus.total_gib(case.gpu)
    if total is not None and case.options.kv_gib is None:
        return total * case.utilisation
    return max(sum(amount.value or 0.0 for amount in rank.amounts().values()) for rank in ranks)


def _notes(judge: verdict.Judge, case: Case) -> None:
    """What a person should know beside the verdict."""
    shape, version = case.geometry, case.version
    if not kv_types.number_bytes(case.options.kv_type)[1]:
        judge.certain = False
        judge.note("kv.type_unknown", kv_type=case.options.kv_type)
    if case.gpu.total_gib is None and gpus.labelled(case.gpu):
        judge.note("gpu.by_label", gpu=case.gpu.name)
    if not case.charges_graphs and not case.options.eager:
        judge.note("graphs.outside")
    if case.traits.shared_memory:
        judge.note("gpu.shared_memory")
    if shape.experts:
        judge.note("weights.experts", experts=shape.experts, used=shape.experts_used)
    local = sum(kind in ("sliding", "chunked") for kind in shape.layers)
    if local and not (version.hybrid_cache and case.options.hybrid_cache):
        judge.note("kv.windows_ignored", layers=local)
    elif local and version.batches_in_flight > 1:
        judge.note("kv.in_flight", tokens=version.batches_in_flight * case.batched_tokens)
    if case.options.tp > shape.kv_heads and shape.latent is None:
        judge.note("kv.copied", tp=case.options.tp, kv_heads=shape.kv_heads)
    if case.charges_graphs and case.lesson is None:
        judge.note("start.cold")
