"""From config.json to the shape of a model (facts.Geometry): what its memory depends on. Pure: dicts in, values out.

Where a configuration leaves a value out, the default of the model's own class in `transformers` holds.
"""

from __future__ import annotations

from typing import Any

from models_catalog.facts import Geometry, Latent, LayerKind, State
from models_catalog.inspect import hf_config
from models_catalog.inspect.reading import clean, first_whole, obj, texts, whole

# Model types (of the language part) whose layout was checked. Others are read like a plain decoder, and marked.
KNOWN = frozenset({
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_moe",
    "qwen3_next", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5", "qwen3_5_text", "qwen3_5_moe",
    "qwen3_5_moe_text", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text", "phi", "phi3",
    "phimoe", "opt", "granite", "granitemoe", "granitemoehybrid", "deepseek", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "kimi_k2", "minimax_m2", "gpt_oss", "llama4_text", "olmo", "olmo2", "olmo3", "olmoe",
    "starcoder2", "smollm3", "glm", "glm4", "glm4_moe", "internlm2", "internlm3", "exaone", "exaone4", "cohere",
    "cohere2", "stablelm", "seed_oss", "ministral", "mistral4", "yi", "baichuan", "nemotron",
})  # fmt: skip
TIED = frozenset({
    "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text", "opt", "gpt2", "falcon", "bloom",
    "cohere", "cohere2", "starcoder2",
})  # fmt: skip
TWO_MATRICES = frozenset({
    "opt", "phi", "gpt2", "gpt_neox", "gpt_bigcode", "gptj", "starcoder2", "falcon", "bloom", "mpt", "nemotron",
    "nemotron_h",
})  # fmt: skip
BIASED = frozenset({
    "qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "gpt_oss", "phi", "opt", "starcoder2",
})  # fmt: skip
# Rotary tables four times as long, for the positions of pictures and films.
MULTIMODAL_ROPE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
QUARTER_ROPE = ("qwen3_next", "qwen3_5")  # they turn a quarter of each head, by their class's default
KINDS: dict[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
}
HYBRID_SIGNS: dict[str, LayerKind] = {"M": "mamba", "*": "full", "-": "mlp", "E": "mlp"}
MAX_LAYERS = 1000
IMAGES = {"gemma3": (896 * 896, 256), "gemma3_text": (896 * 896, 256)}  # pixels and tokens of one image, by class


def geometry(config: dict[str, Any]) -> Geometry | None:
    """The shape that the configuration tells; None when it lacks layers, widths, heads or the vocabulary."""
    part = hf_config.language_part(config)
    known = hf_config.dimensions(config)
    layers, hidden, heads, vocab = (known[name] for name in ("layers", "hidden_size", "heads", "vocab_size"))
    head_dim = known["head_dim"]
    if not (layers and hidden and heads and vocab and head_dim) or layers > MAX_LAYERS:
        return None
    kind = text_type(config)
    kinds, window = _layers(part, kind, layers, known["context_length"])
    values: dict[str, Any] = {
        "known": kind in KNOWN and kind != "",
        "hidden": hidden,
        "vocab": vocab,
        "tied": bool(part.get("tie_word_embeddings", kind in TIED)),
        "layers": kinds,
        "heads": heads,
        "kv_heads": known["kv_heads"] or heads,
        "head_dim": head_dim,
        "window": window,
        "attention_gate": bool(part.get("attn_output_gate", "linear" in kinds)),
        "attention_bias": bool(part.get("attention_bias", kind in BIASED)),
        "element_bytes": 4 if hf_config.dtype(config) == "float32" else 2,
        **_global_heads(part),
        **_mlp(part, kind, hidden),
        **_experts(part, kind, known),
        **_latent(part),
        **_rope(part, kind, head_dim, kinds),
        **_vision(config, hidden),
    }
    values["state"] = _gated_delta(part) or _mamba(part, hidden)
    return Geometry.model_validate(values)


def text_type(config: dict[str, Any]) -> str:
    """The model type of the language part."""
    part = hf_config.language_part(config)
    kind = clean(part.get("model_type"), 60)
    return {"mistral3": "mistral", "gemma4": "gemma4_text", "llama4": "llama4_text"}.get(kind, kind)


def _layers(part: dict[str, Any], kind: str, count: int, context: int | None) -> tuple[list[LayerKind], int | None]:
    """The kind of every layer, and how many tokens the local ones see."""
    chunk, window = whole(part.get("attention_chunk_size")), whole(part.get("sliding_window"))
    if not part.get("use_sliding_window", not kind.startswith("qwen")) or (window and context and window >= context):
        window = None
    told = [KINDS.get(name) for name in texts(part.get("layer_types"), MAX_LAYERS)]
    pattern = clean(part.get("hybrid_override_pattern"), MAX_LAYERS)
    if pattern and all(sign in HYBRID_SIGNS for sign in pattern):
        kinds: list[LayerKind] = [HYBRID_SIGNS[sign] for sign in pattern]
    elif len(told) == count and None not in told:
        kinds = [name for name in told if name]
    elif interval := whole(part.get("full_attention_interval")):
        kinds = _every(interval, count, "linear")
    elif chunk:
        kinds = _every(4, count, "chunked")
    elif window:
        kinds = _windowed(part, kind, count)
    else:
        kinds = ["full"] * count
    if "sliding" in kinds and not window:
        kinds = ["full" if name == "sliding" else name for name in kinds]
    return kinds, chunk if "chunked" in kinds else window if "sliding" in kinds else None


def _every(interval: int, count: int, other: LayerKind) -> list[LayerKind]:
    """Full attention in every `interval`th layer."""
    return ["full" if (index + 1) % interval == 0 else other for index in range(count)]


def _windowed(part: dict[str, Any], kind: str, count: int) -> list[LayerKind]:
    """Layer kinds of configurations from before `layer_types`."""
    if kind in ("phi3", "phimoe"):
        return ["full"] * count
    interval = whole(part.get("sliding_window_pattern"))
    interval = interval or {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}.get(kind)
    return _every(interval, count, "sliding") if interval else ["sliding"] * count


def _global_heads(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "global_head_dim": whole(part.get("global_head_dim")),
        "global_kv_heads": whole(part.get("num_global_key_value_heads")),
        "kv_shared_layers": whole(part.get("num_kv_shared_layers")) or 0,
        "per_layer_width": whole(part.get("hidden_size_per_layer_input")) or 0,
    }


def _mlp(part: dict[str, Any], kind: str, hidden: int) -> dict[str, Any]:
    width, _ = first_whole(
        part, "intermediate_size_mlp", "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "inner_dim"
    )
    return {"mlp_width": width or 4 * hidden, "mlp_matrices": 2 if kind in TWO_MATRICES else 3}


def _experts(part: dict[str, Any], kind: str, known: dict[str, Any]) -> dict[str, Any]:
    count = known["experts"]
    if not count or count == 1:
        return {}
    width, _ = first_whole(part, "moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    shared, _ = first_whole(part, "shared_expert_intermediate_size", "shared_intermediate_size")
    if not shared:
        shared = (whole(part.get("n_shared_experts")) or 0) * (width or 0)
    if kind == "llama4_text":
        shared = width
    if kind == "gemma4_text":  # a dense part runs beside the experts
        shared = whole(part.get("intermediate_size"))
    every, _ = first_whole(part, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq")
    return {
        "experts": count,
        "experts_used": known["experts_used"] or 1,
        "expert_width": width or 0,
        "shared_width": shared or 0,
        "dense_layers": whole(part.get("first_k_dense_replace")) or 0,
        "moe_every": every or 1,
    }


def _latent(part: dict[str, Any]) -> dict[str, Any]:
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    rank, rope, nope, value = (whole(part.get(name)) for name in names)
    if not (rank and rope and nope and value):
        return {}
    latent = Latent(kv_rank=rank, q_rank=whole(part.get("q_lora_rank")) or 0, rope=rope, nope=nope, value=value)
    return {"latent": latent, "indexer_bytes": 132 if whole(part.get("index_topk")) else 0}


def _rope(part: dict[str, Any], kind: str, head_dim: int, kinds: list[LayerKind]) -> dict[str, Any]:
    """Rows and width of the rotary tables. Linear and YaRN scaling make the table as much longer."""
    rows, _ = first_whole(part, *hf_config.CONTEXT_KEYS)
    if not rows or kind == "opt":
        return {}
    scaling = obj(part.get("rope_scaling")) or obj(part.get("rope_parameters"))
    local = obj(scaling.get("full_attention"))
    scaling = local or scaling
    name = clean(scaling.get("rope_type") or scaling.get("type"), 40)
    factor = scaling.get("factor")
    longer = rows
    if isinstance(factor, int | float) and 1 < factor < 1e4:
        if name == "linear":
            longer = int(rows * factor)
        elif name == "yarn":
            longer = int((whole(scaling.get("original_max_position_embeddings")) or rows / factor) * factor)
    if kind.startswith(MULTIMODAL_ROPE):
        longer *= 4
    if kind in ("gemma3", "gemma3_text") and "sliding" in kinds:
        longer += rows  # the local layers have a table of their own
    share = part.get("partial_rotary_factor") or scaling.get("partial_rotary_factor")
    if not isinstance(share, int | float) or not 0 < share <= 1:
        share = 0.25 if kind.startswith(QUARTER_ROPE) else 0.4 if kind == "phi" else 1.0
    width = whole(part.get("qk_rope_head_dim")) or int(head_dim * share)
    return {"rope_rows": longer, "rope_width": width}


def _gated_delta(part: dict[str, Any]) -> State | None:
    names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    key_heads, value_heads, key_dim, value_dim = (whole(part.get(name)) for name in names)
    if not (key_heads and value_heads and key_dim and value_dim):
        return None
    keys, values = key_heads * key_dim, value_heads * value_dim
    return State(
        in_width=2 * keys + 2 * values,
        gate_width=2 * value_heads,
        out_width=values,
        conv_width=2 * keys + values,
        conv_steps=whole(part.get("linear_conv_kernel_dim")) or 4,
        elements=value_heads * key_dim * value_dim,
        element_bytes=4 if part.get("mamba_ssm_dtype") == "float32" else 2,
    )


def _mamba(part: dict[str, Any], hidden: int) -> State | None:
    """Mamba 2, as Granite 4, Nemotron-H and Bamba name it."""
    heads, _ = first_whole(part, "mamba_n_heads", "mamba_num_heads")
    width, _ = first_whole(part, "mamba_d_head", "mamba_head_dim")
    depth, _ = first_whole(part, "mamba_d_state", "ssm_state_size")
    groups, _ = first_whole(part, "mamba_n_groups", "n_groups")
    steps, _ = first_whole(part, "mamba_d_conv", "conv_kernel")
    if not (heads and depth):
        return None
    inner = heads * width if width else 2 * hidden
    both = inner + 2 * (groups or 1) * depth
    return State(
        in_width=inner + both,
        gate_width=heads,
        out_width=inner,
        conv_width=both,
        conv_steps=steps or 4,
        elements=inner * depth,
        element_bytes=4 if part.get("mamba_ssm_dtype") == "float32" else 2,
    )


def _vision(config: dict[str, Any], hidden: int) -> dict[str, Any]:
    """The tower that sees: parameters, and what one image costs at most."""
    tower = obj(config.get("vision_config")) or obj(obj(config.get("thinker_config")).get("vision_config"))
    if not tower:
        return {}
    pixels, tokens = IMAGES.get(clean(config.get("model_type")), (0, 0))
    size, patch = whole(tower.get("image_size")), whole(tower.get("patch_size"))
    merge = whole(tower.get("spatial_merge_size")) or whole(config.get("spatial_merge_size")) or 1
    if size and patch and not pixels:
        pixels, tokens = size * size, max(1, (size // patch // merge) ** 2)
    told = whole(tower.get("parameter_count"))
    return {
        "vision_parameters": told or _tower(tower, hidden, merge),
        "image_pixels": pixels,
        "image_tokens": tokens,
    }


def _tower(tower: dict[str, Any], hidden: int, merge: int) -> int:
    """Parameters of a vision transformer and its projector, from its widths; 0 when they are not told."""
    layers, _ = first_whole(tower, "num_hidden_layers", "depth", "layers")
    width, _ = first_whole(tower, "hidden_size", "embed_dim", "width")
    if not layers or not width:
        return 0
    inner = whole(tower.get("intermediate_size")) or 4 * width
    gated = "silu" in clean(tower.get("hidden_act")) or "pixtral" in clean(tower.get("model_type"))
    patch = whole(tower.get("patch_size")) or 14
    merged = width * merge * merge
    blocks = layers * (4 * width * width + (3 if gated else 2) * width * inner)
    return blocks + 3 * patch * patch * width + merged * hidden + (merged * merged if merge > 1 else hidden * hidden)
