"""Rules that no amount of memory changes: what a GPU can compute, how a model divides, how fast GPUs talk. Pure.

Sources: `get_min_capability` of each quantisation in vLLM 0.32, and what start logs of earlier versions say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from deployments.engines.base import Reason, version_key
from deployments.placement import GpuView
from deployments.planner.asked import Asked
from models_catalog.estimate.schemes import scheme_of
from models_catalog.facts import Geometry, ModelFacts

Capability = tuple[int, int]
OLDEST_GPU: Capability = (7, 0)  # the engine's own builds have no kernels for less
BFLOAT16: Capability = (8, 0)
NATIVE_FP8: Capability = (8, 9)
FALLS_BACK_SINCE = (0, 9)  # from then on a bfloat16 model runs in float16 on cards that have no bfloat16
# Least capability by the beginning of a packing's name.
PACKINGS: tuple[tuple[str, Capability], ...] = (
    ("mxfp4", (8, 0)),
    ("nvfp4", (7, 5)),
    ("fp_quant", (10, 0)),
    ("fp8", (7, 5)),
    ("awq", (7, 5)),
    ("int8-channel", (7, 5)),
    ("bitsandbytes", (7, 0)),
)
# Cards of one machine that are joined by NVLink in every form they are sold in.
LINKED = re.compile(r"SXM|HBM3|HGX|\bH20\b|H200(?! ?NVL)|\bB[23]00\b|GB[23]00|GH200", re.I)


def capability_reason(gpu: GpuView, asked: Asked, facts: ModelFacts | None, version: str) -> Reason | None:
    """Why this card cannot compute this model; None when it can, or when it does not tell what it can."""
    if gpu.capability is None:
        return None
    for need, what in _needs(asked, facts, version):
        if gpu.capability < need:
            have, least = (".".join(map(str, number)) for number in (gpu.capability, need))
            params = {"index": gpu.index, "name": gpu.name, "what": what, "have": have, "need": least}
            return Reason("gpu.capability", params)
    return None


def _needs(asked: Asked, facts: ModelFacts | None, version: str) -> list[tuple[Capability, str]]:
    needs: list[tuple[Capability, str]] = [(OLDEST_GPU, "vLLM")]
    old = bool(version) and version_key(version)[:2] < FALLS_BACK_SINCE
    own = (facts.dtype if facts is not None else "").lower()
    if asked.dtype in ("bfloat16", "bf16") or (asked.dtype in ("", "auto") and old and own in ("bfloat16", "bf16")):
        needs.append((BFLOAT16, "bfloat16"))
    packing = packing_of(asked, facts)
    needs += [(least, packing) for name, least in PACKINGS if packing.startswith(name)]
    if asked.options.kv_type.lower().startswith(("fp8", "e4m3")):
        needs.append((BFLOAT16, "fp8 KV cache"))
    return needs


def packing_of(asked: Asked, facts: ModelFacts | None) -> str:
    """The name of how the weights are packed, "" when it is not known."""
    scheme = scheme_of(facts, asked.options.scheme) if facts is not None else None
    return scheme.name if scheme is not None else ""


def can_fp8_cache(gpus: Sequence[GpuView]) -> bool:
    """Whether keys and values in eight bits are known to work on all of these."""
    return bool(gpus) and all(gpu.capability is not None and gpu.capability >= NATIVE_FP8 for gpu in gpus)


def capability_notes(gpus: Sequence[GpuView], asked: Asked, facts: ModelFacts | None) -> list[Reason]:
    """What these cards do, but not as fast as the packing promises."""
    old = any(gpu.capability is not None and gpu.capability < NATIVE_FP8 for gpu in gpus)
    notes = []
    if old and packing_of(asked, facts).startswith("fp8"):
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
    return _groups(shape, facts, asked, tp)


def _groups(shape: Geometry, facts: ModelFacts | None, asked: Asked, tp: int) -> Reason | None:
    """Weights that share a scale stay together: each part of a layer must hold whole groups."""
    scheme = scheme_of(facts, asked.options.scheme) if facts is not None else None
    group = (128 if scheme.block else scheme.group) if scheme is not None else 0
    if not group or (scheme is not None and (scheme.experts_only or scheme.name.startswith("bitsandbytes"))):
        return None
    dense = shape.mlp_width if not shape.experts or shape.dense_layers else 0
    for width in (dense, shape.expert_width if shape.experts and not asked.whole_experts else 0):
        if width and (width % tp or width // tp % group):
            params = {"group": group, "width": width, "parts": tp}
            return Reason("parallel.groups", params, "tensor_parallel_size")
    return None


def fast_link(gpus: Sequence[GpuView]) -> bool | None:
    """Whether every two of these are joined by NVLink; None when neither their host nor their names tell."""
    if len(gpus) < 2:
        return True
    if all(gpu.nvlink is not None for gpu in gpus):
        return all(b.uuid in (a.nvlink or ()) and a.uuid in (b.nvlink or ()) for a, b in combinations(gpus, 2))
    if all(LINKED.search(gpu.name) for gpu in gpus):
        return True
    return None if any("A100" in gpu.name or "V100" in gpu.name for gpu in gpus) else False
