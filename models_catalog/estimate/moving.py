"""What of an estimate moves with context, requests and share, as plain numbers that a page can calculate with. Pure.

For vLLM from its rewrite on: the cache is what the share leaves, and blocks are what a request takes of it. All else
(weights, working memory, graphs) stays. `static/panel/fit.js` is the other half; tests hold the two together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from models_catalog.estimate import files, gpus, kv_cache, overhead, versions, vllm
from models_catalog.estimate.case import Case, case_of
from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.learned import Lesson
from models_catalog.estimate.options import Options
from models_catalog.estimate.plan import Plan
from models_catalog.estimate.schemes import scheme_of
from models_catalog.facts import ModelFacts


def moving(
    facts: ModelFacts, options: Options, gpu: Gpu, version_text: str, lesson: Lesson | None, plan: Plan
) -> dict[str, Any] | None:
    """The numbers beside a plan that was made of the same; None where the plan is not simply the formulas' answer.

    `stages`: GiB of cache at this share and bytes of a block; `doubt`: least GiB and share of the cache; `flight`:
    tokens beside a sliding window; `beside`: GiB that must stay free outside the share; `total`: GiB of the GPU.
    """
    case = _case(facts, options, gpu, version_text, lesson)
    if case is None or not plan.ranks or any(rank.kv.value is None for rank in plan.ranks):
        return None
    caches = [kv_cache.cache_of(case, stage) for stage in range(case.options.pp)]
    if not all(cache.block_bytes and cache.groups for cache in caches):
        return None
    first = caches[0]
    told = case.options.kv_gib is not None or case.gpu.cpu
    doubt = (0.0, 0.0) if told else (vllm.cache_doubt_gib(case, 0.0), 0.0 if lesson else vllm.LEAST_DOUBT_SHARE)
    return {
        "told": told,
        "total": gpus.total_gib(gpu),
        "share": case.utilisation,
        "stages": [{"kv": r.kv.value, "bytes": c.block_bytes} for r, c in zip(plan.ranks, caches, strict=True)],
        "groups": [[group.kind, group.block, group.window] for group in first.groups],
        "flight": first.batches_in_flight * first.batched_tokens,
        "state": (2 if first.state_checkpoints else 1) + first.draft_tokens,
        "times": case.options.dcp,
        "spare": 1 if case.version.null_block else 0,
        "doubt": list(doubt),
        "beside": _beside_gib(case, plan),
    }


def _case(facts: ModelFacts, options: Options, gpu: Gpu, text: str, lesson: Lesson | None) -> Case | None:
    """As `estimate` fills it in, where it adds no doubt of its own."""
    shape, version = facts.geometry, versions.parse(text)
    scheme = scheme_of(facts, options.scheme) or files.scheme_of_files(facts)
    if shape is None or not shape.known or scheme is None or options.engine != "vllm":
        return None
    if not options.scheme and files.far_from_files(facts, shape, scheme):
        return None
    if version is None or not versions.known(version) or version.engine_v0:
        return None
    if version.checks_all_layers and options.pp > 1:
        return None
    if not gpu.cpu and gpus.total_gib(gpu) is None:
        return None
    longest, family = facts.context_length, facts.model_type
    options = replace(options, kv_default=facts.kv_scheme)
    return case_of(shape, scheme, options, gpu, version, longest=longest, family=family, lesson=lesson)


def _beside_gib(case: Case, plan: Plan) -> float:
    """Below this, what lies outside the share has no room; the same as verdict.py says it."""
    if case.options.kv_gib is not None or case.gpu.cpu:
        return 0.0
    graphs = 0.0 if case.charges_graphs else (plan.ranks[0].graphs.value or 0.0)
    least = graphs + overhead.before_start_gib(case)[1] if graphs else 0.0
    return max(least, 2.0 if case.options.loras and not case.options.eager else 0.0)
