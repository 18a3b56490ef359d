"""From config.json to dimensions, context, quantisation and tasks. Pure: dicts in, values out."""

from __future__ import annotations

from typing import Any

from models_catalog.facts import Quantisation, TaskKind
from models_catalog.inspect.reading import clean, first_whole, obj, texts, whole

# The language part of models that also see or hear is nested under one of these keys.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
    "max_seq_length", "n_ctx",
)  # fmt: skip
# RoPE kinds whose maximum is already the scaled one.
ALREADY_SCALED = frozenset({"default", "su", "longrope", "llama3", "mrope", "proportional"})
# Models that read one text and write another through a separate decoder, or hear: no text engine here serves them.
NOT_TEXT = frozenset(
    {"t5", "mt5", "umt5", "bart", "mbart", "marian", "m2m_100", "pegasus", "whisper", "led", "blenderbot"}
)


def language_part(config: dict[str, Any]) -> dict[str, Any]:
    """The dict that describes the language model; values it lacks fall back to the outer one."""
    for key in NESTED:
        inner = obj(config.get(key))
        deeper = obj(inner.get("text_config"))
        if deeper or inner:
            return {**config, **inner, **deeper}
    return config


def architectures(config: dict[str, Any]) -> list[str]:
    return texts(config.get("architectures"))


def dimensions(config: dict[str, Any]) -> dict[str, Any]:
    """layers, heads, head_dim and the like, under the names of ModelFacts."""
    part = language_part(config)
    heads, _ = first_whole(part, "num_attention_heads", "n_head", "n_heads", "num_heads")
    width, _ = first_whole(part, "hidden_size", "n_embd", "d_model", "dim")
    layers, _ = first_whole(part, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    context, source = context_length(config)
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
        "head_dim": _head_dim(part, heads, width),
        "vocab_size": vocab,
        "context_length": context,
        "context_source": source,
        "sliding_window": sliding,
        "experts": experts,
        "experts_used": used if experts else None,
    }


def _kv_heads(part: dict[str, Any], heads: int | None) -> int | None:
    number, _ = first_whole(
        part, "num_key_value_heads", "n_head_kv", "num_kv_heads", "n_kv_heads", "multi_query_group_num"
    )
    if number and (part.get("new_decoder_architecture", True) or "multi_query" not in part):
        return number
    if part.get("multi_query") is True and not part.get("new_decoder_architecture"):
        return 1
    return number or heads


def _head_dim(part: dict[str, Any], heads: int | None, width: int | None) -> int | None:
    nope, rope = whole(part.get("qk_nope_head_dim")), whole(part.get("qk_rope_head_dim"))
    if nope and rope:  # multi-head latent attention: queries are as long as both parts
        return nope + rope
    told, _ = first_whole(part, "head_dim", "attention_head_dim", "kv_channels", "d_kv")
    return told or (width // heads if width and heads else None)


def context_length(config: dict[str, Any]) -> tuple[int | None, str]:
    """(tokens, where it says so). Scaling that the value does not contain yet is applied, as vLLM does."""
    part = language_part(config)
    found = [(n, key) for key in CONTEXT_KEYS if (n := whole(part.get(key)))]
    if not found:
        return None, ""
    number, key = min(found)
    source = f"config.json: {key}"
    scaling = obj(part.get("rope_scaling")) or obj(part.get("rope_parameters"))
    kind = clean(scaling.get("rope_type") or scaling.get("type") or "default", 40)
    factor = scaling.get("factor")
    model = clean(part.get("model_type")) + clean(config.get("model_type"))
    if kind in ALREADY_SCALED or "gemma3" in model or not isinstance(factor, int | float) or not 1 < factor < 1e6:
        return number, source
    original = whole(scaling.get("original_max_position_embeddings")) if kind == "yarn" else None
    return whole(int((original or number) * factor)), f"{source} × {kind} {factor:g}"


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
    if not method and extra and "bits" in extra:
        method = "gptq"  # quantize_config.json of early GPTQ folders names no method
    if not method:
        return None
    bits = _bits(method, told)
    names = {"gptq": "GPTQ", "awq": "AWQ", "fp8": "FP8", "mxfp4": "MXFP4", "nvfp4": "NVFP4"}
    name = names.get(method, method)
    inside = clean(told.get("quant_algo") or told.get("format"), 40)
    if method in ("compressed-tensors", "modelopt") and inside and inside.lower() != method:
        name = f"{method} {inside}"
    label = name if bits is None or method in ("fp8", "mxfp4", "nvfp4") else f"{name} {bits}-bit"
    return Quantisation(method=method, bits=bits, label=label)


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
    names = architectures(config)
    kind = clean(config.get("model_type"))
    if kind in NOT_TEXT or not names:
        return []
    first = names[0]
    if first.endswith("ForSequenceClassification"):
        return ["score"]
    if sentence_embedding or (first.endswith(("Model", "ForTextEncoding")) and not first.endswith("LMHeadModel")):
        return ["embed"]
    if first.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForCausalLMWithValueHead", "LM")):
        return ["generate"]
    return []


def needs_remote_code(*configs: dict[str, Any]) -> bool:
    """True when a configuration points to Python code inside the folder that must run to load it."""
    return any(bool(obj(config.get("auto_map"))) for config in configs)
