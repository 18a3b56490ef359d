"""Whether the weights are stored as the configuration says. Pure.

Engines trust the configuration: vLLM 0.32 starts a folder whose tensors are not packed as claimed, and serves noise.
"""

from __future__ import annotations

from models_catalog.facts import Problem, Quantisation
from models_catalog.inspect.reading import clean
from models_catalog.inspect.safetensors import Weights

FLOAT8 = ("F8_E4M3", "F8_E5M2")
PACKERS = frozenset(
    {"gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round", "autoround", "inc", "marlin", "auto_awq"}
)
# Tensors that only a packed model has, by the end of their names.
SIGNS = frozenset({"qweight", "qzeros", "weight_packed", "absmax", "SCB", "weight_scale_inv"})


def claim_problems(claimed: Quantisation | None, inside: str, weights: Weights) -> list[Problem]:
    """`inside` is the format that compressed-tensors and modelopt name, lower case."""
    if claimed is None:
        return _unclaimed(weights)
    if not _kept(claimed, inside, weights):
        return [Problem(code="quantisation_not_in_weights", params={"method": claimed.method})]
    return []


def _unclaimed(weights: Weights) -> list[Problem]:
    """Packed tensors of which the configuration says nothing: an engine reads them as plain numbers."""
    signs = sorted(weights.endings & SIGNS)
    if not signs and not ("weight_scale" in weights.endings and weights.bytes_by_format.keys() & {*FLOAT8, "I8", "U8"}):
        return []
    return [Problem(code="quantisation_not_in_config", params={"sign": clean(signs[0] if signs else "weight_scale")})]


def _kept(claimed: Quantisation, inside: str, weights: Weights) -> bool:
    """Whether the tensors show what is claimed; True for methods that leave no trace that is known."""
    formats, endings, method = set(weights.bytes_by_format), weights.endings, claimed.method
    has_float8 = bool(formats & set(FLOAT8))
    if method in PACKERS:
        return bool(formats & {"I32", "U32"}) and bool({"qweight", "weight_packed"} & endings)
    if method in ("fp8", "fbgemm_fp8", "ptpc_fp8", "deepspeedfp"):
        return has_float8
    if method in ("mxfp4", "nvfp4", "mlx"):
        return bool(formats & {"U8", "F4", "I8", "U32"})
    if method == "bitsandbytes":
        return bool({"absmax", "SCB", "quant_map"} & endings)
    if method == "compressed-tensors":
        return _compressed(claimed, inside, formats, endings)
    if method == "modelopt":
        return bool(formats & {"U8", "F4"}) if "fp4" in inside else has_float8 or "fp8" not in inside
    return True


def _compressed(claimed: Quantisation, inside: str, formats: set[str], endings: set[str]) -> bool:
    if "pack" in inside or "marlin" in inside:
        return "weight_packed" in endings
    if inside in ("dense", ""):
        return inside == "dense" or bool(formats & {*FLOAT8, "I8", "U8", "I32", "F4"})
    if "float" in inside:
        return bool(formats & {*FLOAT8, "U8", "F4"})
    if "int" in inside:
        return bool(formats & {"I8", "I32"})
    return bool(formats & {*FLOAT8, "I8", "U8", "I32", "F4"}) or claimed.bits == 16
