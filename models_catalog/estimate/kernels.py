"""What no amount of memory changes: what a GPU can compute, and how packed weights divide. Pure.

Sources: `get_min_capability` of each quantisation in vLLM 0.32, and what start logs of earlier versions say.
"""

from __future__ import annotations

from models_catalog.estimate import versions
from models_catalog.estimate.options import Options
from models_catalog.estimate.schemes import scheme_of
from models_catalog.facts import ModelFacts

Capability = tuple[int, int]
OLDEST_GPU: Capability = (7, 0)  # the engine's own builds have no kernels for less
BFLOAT16: Capability = (8, 0)
NATIVE_FP8: Capability = (8, 9)
FALLS_BACK_SINCE = 9  # from 0.9 on a bfloat16 model runs in float16 on cards that have no bfloat16
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


def lacking(
    capability: Capability | None, facts: ModelFacts | None, options: Options, version: str, dtype: str = ""
) -> tuple[str, Capability] | None:
    """(what for, the least that it takes) where a card has less; None when it has enough, or does not tell."""
    if capability is None:
        return None
    return next(((what, least) for least, what in _needs(facts, options, version, dtype) if capability < least), None)


def _needs(facts: ModelFacts | None, options: Options, version: str, dtype: str) -> list[tuple[Capability, str]]:
    needs: list[tuple[Capability, str]] = [(OLDEST_GPU, "vLLM")]
    known = versions.parse(version)
    old = known is not None and known.minor < FALLS_BACK_SINCE
    own = (facts.dtype if facts is not None else "").lower()
    if dtype in ("bfloat16", "bf16") or (dtype in ("", "auto") and old and own in ("bfloat16", "bf16")):
        needs.append((BFLOAT16, "bfloat16"))
    packing = packing_of(facts, options)
    needs += [(least, packing) for name, least in PACKINGS if packing.startswith(name)]
    if options.kv_type.lower().startswith(("fp8", "e4m3")):
        needs.append((BFLOAT16, "fp8 KV cache"))
    return needs


def packing_of(facts: ModelFacts | None, options: Options) -> str:
    """The name of how the weights are packed, "" when it is not known."""
    scheme = scheme_of(facts, options.scheme) if facts is not None else None
    return scheme.name if scheme is not None else ""


def split_group(facts: ModelFacts | None, options: Options, tp: int, *, whole_experts: bool) -> tuple[int, int] | None:
    """(weights that share a scale, width of a layer) where so many parts would tear such a group apart; else None."""
    shape = facts.geometry if facts is not None else None
    scheme = scheme_of(facts, options.scheme) if facts is not None else None
    if shape is None or scheme is None or tp == 1:
        return None
    group = 128 if scheme.block else scheme.group
    if not group or scheme.experts_only or scheme.name.startswith("bitsandbytes"):
        return None
    dense = shape.mlp_width if not shape.experts or shape.dense_layers else 0
    for width in (dense, shape.expert_width if shape.experts and not whole_experts else 0):
        if width and (width % tp or width // tp % group):
            return group, width
    return None


def capability_of(text: str | None) -> Capability | None:
    """ "8.9" → (8, 9); None where the card or the driver does not tell."""
    major, dot, minor = (text or "").partition(".")
    return (int(major), int(minor)) if dot and major.isdecimal() and minor.isdecimal() else None
