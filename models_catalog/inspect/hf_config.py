"""From config.json to dimensions, context, quantisation and tasks. Pure: dicts in, values out."""

from __future__ import annotations

from typing import Any

from models_catalog.facts import Quantisation, Rope, TaskKind
from models_catalog.inspect import hf_use
from models_catalog.inspect.reading import clean, first_whole, obj, real, texts, whole

# The language part of models that also see or hear is nested under one of these keys.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "max_seq_length",
    "seq_len",
)  # fmt: skip
OWN_CONTEXT = "model_max_length"  # counts alone where it is said (Command R)
# RoPE kinds whose maximum is already the scaled one.
ALREADY_SCALED = frozenset({"default", "su", "longrope", "llama3", "mrope", "proportional"})


def language_part(config: dict[str, Any]) -> dict[str, Any]:
    """The dict that describes the language model; values it lacks fall back to the outer one."""
    for key in NESTED:
        inner = obj(config.get(key))
        deeper = obj(inner.get("text_config"))
        if deeper or inner:
            return {**config, **inner, **deeper}
    return config


def own_part(config: dict[str, Any]) -> dict[str, Any]:
    """The same without what stands outside of it."""
    for key in NESTED:
        inner = obj(config.get(key))
        if inner:
            return {**inner, **obj(inner.get("text_config"))}
    return config


def architectures(config: dict[str, Any]) -> list[str]:
    return texts(config.get("architectures"))


def dimensions(config: dict[str, Any], file: str = "config.json") -> dict[str, Any]:
    """layers, heads, head_dim and the like, under the names of ModelFacts; `file` is where they stand."""
    part = language_part(config)
    heads, _ = first_whole(part, "num_attention_heads", "n_head", "n_heads", "num_heads")
    width, _ = first_whole(part, "hidden_size", "n_embd", "d_model", "dim")
    layers, _ = first_whole(part, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    layers = layers or len(texts(part.get("layers_block_type"), 1000)) or None
    layers = layers or len(clean(part.get("hybrid_override_pattern"), 1000)) or None
    context, source = context_length(config, file)
    experts, _ = first_whole(part, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    used, _ = first_whole(part, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
    vocab, _ = first_whole(part, "vocab_size", "padded_vocab_size", "n_vocab")
    sliding = whole(part.get("sliding_window")) if part.get("use_sliding_window", True) else None
    return {
        "model_type": clean(config.get("model_type"), 60),
        "layers": layers,
        "hidden_size": width,
        "heads": heads,
        "kv_heads": _kv_heads(part, heads),
        **_lengths(part, heads, width),
        "heads_by_layer": _heads_by_layer(part),
        "rope": rope(part),
        "vocab_size": vocab,
        "context_length": context,
        "context_source": source,
        "context_named": context_named(config),
        "sliding_window": sliding,
        "experts": experts,
        "experts_used": used if experts else None,
    }


def _kv_heads(part: dict[str, Any], heads: int | None) -> int | None:
    by_layer = _heads_by_layer(part)
    if by_layer:
        return max(by_layer) or heads
    number, _ = first_whole(
        part, "num_key_value_heads", "n_head_kv", "num_kv_heads", "n_kv_heads", "multi_query_group_num"
    )
    if number and (part.get("new_decoder_architecture", True) or "multi_query" not in part):
        return number
    if part.get("multi_query") is True and not part.get("new_decoder_architecture"):
        return 1
    return number or heads


def _lengths(part: dict[str, Any], heads: int | None, width: int | None) -> dict[str, int | None]:
    nope, turned = whole(part.get("qk_nope_head_dim")), whole(part.get("qk_rope_head_dim"))
    if nope and turned:  # multi-head latent attention: queries are as long as both parts
        value = whole(part.get("v_head_dim"))
        return {"head_dim": nope + turned, "key_length": nope + turned, "value_length": value or nope + turned}
    told, _ = first_whole(part, "head_dim", "attention_head_dim", "kv_channels", "d_kv")
    told = told or (width // heads if width and heads else None)
    return {"head_dim": told, "key_length": told, "value_length": whole(part.get("v_head_dim")) or told}


def _heads_by_layer(part: dict[str, Any]) -> list[int]:
    """KV heads of each layer, where a list says so and they differ (OpenELM, DeciLM); [] where they do not."""
    told = part.get("num_kv_heads") or part.get("num_key_value_heads_per_layer") or part.get("num_key_value_heads")
    if isinstance(told, list):
        numbers = [n for item in told[:1000] if (n := whole(item, low=0)) is not None]
        return numbers if len(numbers) == len(told) and len(set(numbers)) > 1 else []
    return []


def rope(part: dict[str, Any]) -> Rope | None:
    """Base and stretching of the positions; None when nothing is said. Of several kinds of layers, the full ones'."""
    told = obj(part.get("rope_parameters")) or obj(part.get("rope_scaling"))
    told = obj(told.get("full_attention")) or told
    kind = clean(told.get("rope_type") or told.get("type"), 40)
    kind = "" if kind == "default" else kind
    found = Rope(
        base=real(told.get("rope_theta")) or real(part.get("rope_theta")) or real(part.get("rotary_emb_base")),
        scaling=kind,
        factor=real(told.get("factor")) if kind else None,
        original_context=whole(told.get("original_max_position_embeddings"))
        or (whole(part.get("original_max_position_embeddings")) if kind else None),
    )
    return found if found != Rope() else None


def context_length(config: dict[str, Any], file: str = "config.json") -> tuple[int | None, str]:
    """(tokens, where it says so). Scaling that the value does not contain yet is applied, as vLLM does."""
    part = language_part(config)
    number, key = _named(part) or first_whole(part, "n_ctx")
    if number is None:
        return None, ""
    source = f"{file}: {key}"
    scaling = obj(part.get("rope_scaling")) or obj(part.get("rope_parameters"))
    kind, factor = _kind(scaling), scaling.get("factor")
    if (
        kind in ALREADY_SCALED
        or "gemma3" in _model_type(config, part)
        or not isinstance(factor, int | float)
        or not 1 < factor < 1e6
    ):
        return number, source
    original = whole(scaling.get("original_max_position_embeddings")) if kind == "yarn" else None
    return whole(int((original or number) * factor)), f"{source} × {kind} {factor:g}"


def _named(part: dict[str, Any]) -> tuple[int, str] | None:
    """(tokens, key) by which engines know the length."""
    if own := whole(part.get(OWN_CONTEXT)):
        return own, OWN_CONTEXT
    return min(((n, key) for key in CONTEXT_KEYS if (n := whole(part.get(key)))), default=None)


def context_named(config: dict[str, Any]) -> int | None:
    """The same before any stretching; None where releases of the engine read the stretching differently.

    Layers of several kinds, and factors of kinds that have none by their nature: there the last word is the engine's.
    """
    part = language_part(config)
    found = _named(own_part(config))
    told = [obj(part.get(name)) for name in ("rope_scaling", "rope_parameters")]
    kinds = [each for one in told for each in one.values() if isinstance(each, dict)]
    kinds += [one for one in told if _kind(one) in ("default", "mrope", "proportional")]
    stretched = any((real(kind.get("factor")) or 1) > 1 for kind in kinds)
    return None if found is None or (stretched and "gemma3" not in _model_type(config, part)) else found[0]


def _kind(scaling: dict[str, Any]) -> str:
    return clean(scaling.get("rope_type") or scaling.get("type") or "default", 40)


def _model_type(config: dict[str, Any], part: dict[str, Any]) -> str:
    return clean(part.get("model_type")) + clean(config.get("model_type"))


def dtype(config: dict[str, Any]) -> str:
    part = language_part(config)
    told = clean(part.get("dtype") or part.get("torch_dtype") or config.get("torch_dtype"), 20)
    return told.removeprefix("torch.")


def quantisation(config: dict[str, Any], extra: dict[str, Any]) -> Quantisation | None:
    """What the configuration claims; `extra` is hf_quant_config.json or quantize_config.json when there is one."""
    part = language_part(config)
    told = next((o for key in ("quantization_config", "compression_config") if (o := obj(part.get(key)))), {})
    told = told or obj(extra.get("quantization")) or extra
    method = clean(told.get("quant_method") or told.get("quant_algo"), 40).lower()
    mlx = obj(config.get("quantization"))
    if not method and whole(mlx.get("bits")) and whole(mlx.get("group_size")):
        method, told = "mlx", mlx
    if not method and extra and "bits" in extra:
        method = "gptq"  # quantize_config.json of early GPTQ folders names no method
    if not method:
        return None
    bits = _bits(method, told)
    names = {"gptq": "GPTQ", "awq": "AWQ", "fp8": "FP8", "mxfp4": "MXFP4", "nvfp4": "NVFP4", "mlx": "MLX"}
    name = names.get(method, method)
    inside = clean(told.get("quant_algo") or told.get("format"), 40)
    if method in ("compressed-tensors", "modelopt") and inside and inside.lower() != method:
        name = f"{method} {inside}"
    label = name if bits is None or method in ("fp8", "mxfp4", "nvfp4") else f"{name} {bits}-bit"
    return Quantisation(method=method, bits=bits, label=label)


def packing_format(config: dict[str, Any], extra: dict[str, Any]) -> str:
    """The layout that compressed-tensors and modelopt name beside their method, lower case; "" for none."""
    part = language_part(config)
    told = next((o for key in ("quantization_config", "compression_config") if (o := obj(part.get(key)))), {})
    told = told or obj(extra.get("quantization")) or extra
    return clean(told.get("quant_algo") or told.get("format"), 40).lower()


def _bits(method: str, told: dict[str, Any]) -> int | None:
    number, _ = first_whole(told, "bits", "w_bit", "wbits", "weight_bits")
    if number:
        return number if number <= 16 else None
    if told.get("load_in_4bit") is True:
        return 4
    if told.get("load_in_8bit") is True:
        return 8
    for group in list(obj(told.get("config_groups")).values())[:1]:
        return whole(obj(obj(group).get("weights")).get("num_bits"))
    inside = f"{method} {clean(told.get('quant_algo'), 40).lower()}"
    if "fp4" in inside or "int4" in inside or "w4a" in inside:
        return 4
    return 8 if "fp8" in inside or "int8" in inside or "w8a" in inside else None


def tasks(config: dict[str, Any], *, sentence_embedding: bool) -> list[TaskKind]:
    """What it can be asked for. `sentence_embedding`: the folder carries sentence-transformers' modules.json."""
    return hf_use.tasks(hf_use.purpose(config, sentence_embedding=sentence_embedding))
