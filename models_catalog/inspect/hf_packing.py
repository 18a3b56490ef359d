"""How the quantised tensors of a Hugging Face model are laid out, by its configuration. Pure: dicts in, values out."""

from __future__ import annotations

import re
from typing import Any

from models_catalog.inspect import hf_config
from models_catalog.inspect.reading import clean, obj, texts, whole

IGNORE_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
MAX_IGNORED = 20_000
ALL_LAYERS = 0.9  # a part that is left alone in so many layers is left alone
# Name of a part: how the module, or one projection that stands for it, ends.
PARTS = {
    "attention": ("self_attn", "self_attn.o_proj", "attention"),
    "recurrent": ("linear_attn", "linear_attn.out_proj", "mamba", "mixer"),
    "mlp": (".mlp", "mlp.down_proj"),
    "shared_experts": ("shared_expert", "shared_experts", "shared_expert.down_proj", "shared_experts.down_proj"),
    "experts": ("mlp.experts", "block_sparse_moe.experts"),
}


def packing(config: dict[str, Any], extra: dict[str, Any]) -> tuple[str, list[str]]:
    """(scheme, parts left in 16 bits). The scheme is a name of estimate/schemes.py; "" when there is none or it is not
    one of those."""
    told = _told(config, extra)
    if not told:
        return "", []
    return _scheme(told), _plain_parts(told, hf_config.dimensions(config)["layers"] or 1)


def kv_scheme(config: dict[str, Any], extra: dict[str, Any]) -> str:
    """What the packing says of the KV cache (modelopt: kv_cache_quant_algo; compressed-tensors: kv_cache_scheme)."""
    told = _told(config, extra)
    inner = obj(told.get("quantization")) or told
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        value = inner.get(key) or told.get(key)
        named = clean(value, 20).lower()
        if named in ("fp8", "nvfp4"):
            return named
        bits = whole(obj(value).get("num_bits"))
        if bits in (4, 8) and clean(obj(value).get("type"), 20) == "float":
            return "fp8" if bits == 8 else "nvfp4"
    return ""


def _told(config: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    part = hf_config.language_part(config)
    told = next((o for key in ("quantization_config", "compression_config") if (o := obj(part.get(key)))), {})
    return told or obj(extra.get("quantization")) or extra


def _scheme(told: dict[str, Any]) -> str:
    method = clean(told.get("quant_method"), 40).lower()
    algorithm = clean(told.get("quant_algo"), 40).lower()
    group = whole(told.get("group_size"))
    bits = whole(told.get("bits")) or whole(told.get("w_bit")) or 4
    if method == "compressed-tensors" or obj(told.get("config_groups")):
        return _compressed(told)
    if method == "modelopt" or algorithm:
        named = {"nvfp4": "nvfp4", "fp8": "fp8-tensor", "fp8_pb_wo": "fp8-block128", "w4a16_awq": "awq-int4-g128"}
        return named.get(algorithm, "")
    if method == "fp8":
        return "fp8-block128" if told.get("weight_block_size") else "fp8-tensor"
    if method in ("gptq", "auto-round", "autoround", "inc", "gptq_marlin"):
        return _integers(bits, group, zeros=False)
    if method == "awq":
        return _integers(bits, group, zeros=bool(told.get("zero_point", True)))
    if method == "bitsandbytes":
        return "bitsandbytes-8bit" if told.get("load_in_8bit") else "bitsandbytes-4bit"
    return {"mxfp4": "mxfp4", "fbgemm_fp8": "fp8-channel", "ptpc_fp8": "fp8-channel"}.get(method, "")


def _compressed(told: dict[str, Any]) -> str:
    """The first group of layers decides; mixed models are rare and say so in their names."""
    groups = [obj(obj(group).get("weights")) for group in obj(told.get("config_groups")).values()]
    weights = groups[0] if groups else {}
    bits, kind = whole(weights.get("num_bits")), clean(weights.get("type"), 20)
    strategy, size = clean(weights.get("strategy"), 20), whole(weights.get("group_size"))
    if bits == 8 and kind == "float":
        return {"channel": "fp8-channel", "block": "fp8-block128", "tensor": "fp8-tensor"}.get(strategy, "")
    if bits == 8 and strategy == "channel":
        return "int8-channel"
    if bits == 4 and kind == "float":
        return "nvfp4" if size == 16 else ""
    return _integers(bits or 0, size, zeros=weights.get("symmetric") is False)


def _integers(bits: int, group: int | None, *, zeros: bool) -> str:
    if bits == 8:
        return "int8-channel" if group is None else "gptq-int8-g128"
    if bits != 4:
        return ""
    if group in (32, 64):
        return f"int4-g{group}"
    return "awq-int4-g128" if zeros else "gptq-int4-g128"


def _plain_parts(told: dict[str, Any], layers: int) -> list[str]:
    """Parts that a list of exceptions names for (nearly) every layer."""
    names = [name for key in IGNORE_KEYS for name in texts(told.get(key), MAX_IGNORED)]
    found = []
    for part, ends in PARTS.items():
        seen: set[str] = set()
        for name in names:
            plain = name.removeprefix("re:").rstrip("$*.").replace("\\", "")
            number = re.search(r"layers?\.(\d+)\.", plain)
            if plain.endswith(ends) and "vision" not in plain and "visual" not in plain:
                seen.add(number[1] if number else "*")
        if "*" in seen or len(seen) >= ALL_LAYERS * layers:
            found.append(part)
    return found
