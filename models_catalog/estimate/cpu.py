"""vLLM on a processor: the cache has the size that VLLM_CPU_KVCACHE_SPACE names, in blocks of 128 tokens. Exact.

What the process takes beside it is less certain; it must fit into the machine's memory.
"""

from __future__ import annotations

from models_catalog.estimate import activation, kv_cache, verdict, vllm, weights
from models_catalog.estimate.case import Case
from models_catalog.estimate.plan import Amount, Plan, Rank, Reason

DEFAULT_KV_GIB = 4.0
PROCESS_GIB = (1.0, 1.5, 3.0)  # Python, PyTorch and the engine's processes: (least, usual, most)


def plan(case: Case, version_text: str, plain_parts: frozenset[str], *, certain: bool, longest: int | None) -> Plan:
    """As vllm.plan, with the machine's memory in place of a GPU's."""
    judge = verdict.Judge(certain=certain)
    verdict.shards(judge, case)
    if judge.fails:
        return vllm.refused(case, version_text, judge)
    rank = _rank(case, plain_parts)
    counts = vllm.count(case, (rank,), [kv_cache.cache_of(case, 0)], longest)
    need = sum(amount.value or 0.0 for amount in rank.amounts().values())
    free = case.gpu.free_gib if case.gpu.free_gib is not None else case.gpu.total_gib
    if free is not None and need > free:
        judge.fail("ram.too_small", need=round(need, 2), free=round(free, 2))
    elif free is not None and need > 0.9 * free:
        judge.warn("ram.little", need=round(need, 2), free=round(free, 2))
    verdict.request(judge, case, counts["concurrency"], counts["max_len"])
    verdict.limit(judge, case, longest)
    judge.note("cpu.slow")
    return Plan(
        engine="vllm",
        engine_version=version_text,
        ranks=(rank,),
        verdict=judge.verdict(),
        reasons=tuple(judge.reasons),
        context=case.context,
        need_gib=need,
        **counts,
    )


def _rank(case: Case, plain_parts: frozenset[str]) -> Rank:
    loaded = verdict.gib(weights.weight_bytes(case, 0, plain_parts))
    peak = verdict.gib(activation.activation_bytes(case, 0))
    least, usual, most = PROCESS_GIB
    told = case.options.kv_gib or DEFAULT_KV_GIB
    source = "kv.told" if case.options.kv_gib else "kv.cpu_default"
    return Rank(
        stage=0,
        weights=Amount.near(loaded, 0.02 * loaded, reason=case.scheme.source),
        activation=Amount.near(peak, 0.5 * peak, reason=Reason("activation.cpu")),
        overhead=Amount(usual, least, most, Reason("overhead.process")),
        graphs=Amount(0.0, 0.0, 0.0, Reason("graphs.none")),
        kv=Amount(told, told, told, Reason(source)),
        layers=len(case.geometry.layers),
    )
