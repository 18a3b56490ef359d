"""Rules that no amount of memory changes: what a GPU can compute, how a model divides, how fast GPUs talk. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from deployments.engines.base import Reason
from deployments.placement import GpuView
from deployments.planner.asked import Asked
from models_catalog.estimate import kernels
from models_catalog.estimate.kernels import NATIVE_FP8
from models_catalog.facts import ModelFacts

# Cards of one machine that are joined by NVLink in every form they are sold in.
LINKED = re.compile(r"SXM|HBM3|HGX|\bH20\b|H200(?! ?NVL)|\bB[23]00\b|GB[23]00|GH200", re.I)


def capability_reason(gpu: GpuView, asked: Asked, facts: ModelFacts | None, version: str) -> Reason | None:
    """Why this card cannot compute this model; None when it can, or when it does not tell what it can."""
    found = kernels.lacking(gpu.capability, facts, asked.options, version, asked.dtype)
    if found is None or gpu.capability is None:
        return None
    what, least = found
    have, need = (".".join(map(str, number)) for number in (gpu.capability, least))
    params = {"index": gpu.index, "name": gpu.name, "what": what, "have": have, "need": need}
    return Reason("gpu.capability", params)


def can_fp8_cache(gpus: Sequence[GpuView]) -> bool:
    """Whether keys and values in eight bits are known to work on all of these."""
    return bool(gpus) and all(gpu.capability is not None and gpu.capability >= NATIVE_FP8 for gpu in gpus)


def capability_notes(gpus: Sequence[GpuView], asked: Asked, facts: ModelFacts | None) -> list[Reason]:
    """What these cards do, but not as fast as the packing promises."""
    old = any(gpu.capability is not None and gpu.capability < NATIVE_FP8 for gpu in gpus)
    notes = []
    if old and kernels.packing_of(facts, asked.options).startswith("fp8"):
        notes.append(Reason("gpu.fp8_unpacked"))
    if old and asked.options.kv_type.lower().startswith(("fp8", "e4m3")):
        notes.append(Reason("gpu.fp8_cache_old"))
    return notes


def divides(facts: ModelFacts | None, model_facts: Mapping[str, Any], asked: Asked, tp: int, pp: int) -> Reason | None:
    """Why the model cannot be cut into so many parts."""
    shape = facts.geometry if facts is not None else None
    heads = shape.heads if shape is not None else model_facts.get("heads")
    if isinstance(heads, int) and tp > 1 and heads % tp:
        return Reason("parallel.heads", {"heads": heads, "parts": tp}, "tensor_parallel_size")
    if shape is None or tp * pp == 1:
        return None
    if -(-shape.vocab // 64) * 64 % tp:
        return Reason("parallel.vocabulary", {"vocab": shape.vocab, "parts": tp}, "tensor_parallel_size")
    if shape.latent is None and shape.kv_heads % tp and tp % shape.kv_heads:
        return Reason("parallel.kv_heads", {"kv_heads": shape.kv_heads, "parts": tp}, "tensor_parallel_size")
    if pp > len(shape.layers):
        return Reason("parallel.layers", {"layers": len(shape.layers), "parts": pp}, "pipeline_parallel_size")
    torn = kernels.split_group(facts, asked.options, tp, whole_experts=asked.whole_experts)
    if torn is None:
        return None
    group, width = torn
    return Reason("parallel.groups", {"group": group, "width": width, "parts": tp}, "tensor_parallel_size")


def fast_link(gpus: Sequence[GpuView]) -> bool | None:
    """Whether every two of these are joined by NVLink; None when neither their host nor their names tell."""
    if len(gpus) < 2:
        return True
    if all(gpu.nvlink is not None for gpu in gpus):
        return all(b.uuid in (a.nvlink or ()) and a.uuid in (b.nvlink or ()) for a, b in combinations(gpus, 2))
    if all(LINKED.search(gpu.name) for gpu in gpus):
        return True
    return None if any("A100" in gpu.name or "V100" in gpu.name for gpu in gpus) else False
