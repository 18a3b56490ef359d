"""From config.json to the shape of a model (facts.Geometry): what its memory depends on. Pure: dicts in, values out.

Where a configuration leaves a value out, the default of the model's own class in `transformers` holds.
"""

from __future__ import annotations

from typing import Any

from models_catalog.facts import Geometry, Latent, LayerKind
from models_catalog.inspect import hf_config, hf_state
from models_catalog.inspect.reading import clean, first_whole, obj, texts, whole

# Model types (of the language part) whose layout was checked. Others are read like a plain decoder, and marked.
KNOWN = frozenset({
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_moe",
    "qwen3_next", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5", "qwen3_5_text", "qwen3_5_moe",
    "qwen3_5_moe_text", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text", "phi", "phi3",
    "phimoe", "opt", "granite", "granitemoe", "granitemoehybrid", "deepseek", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "kimi_k2", "minimax_m2", "gpt_oss", "llama4_text", "olmo", "olmo2", "olmo3", "olmoe",
    "starcoder2", "smollm3", "glm", "glm4", "glm4_moe", "internlm2", "internlm3", "exaone", "exaone4", "cohere",
    "cohere2", "stablelm", "seed_oss", "ministral", "mistral4", "yi", "baichuan", "nemotron", "nemotron_h", "bamba",
    "jamba", "lfm2", "kimi_linear", "glm_moe_dsa", "glm4_moe_lite", "ernie4_5", "ernie4_5_moe", "exaone_moe",
    "granitemoeshared", "cohere2_moe", "ministral3", "solar_open", "minicpm3", "helium", "arcee", "apertus", "bloom",
    "hyperclovax", "flex_olmo", "persimmon", "jais2", "falcon", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "mpt",
    "qwen2_vl", "qwen2_5_vl", "bert", "roberta", "xlm-roberta", "camembert",
})  # fmt: skip
TIED = frozenset({
    "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text", "opt", "gpt2", "falcon", "bloom",
    "cohere", "cohere2", "starcoder2", "mpt", "gpt_bigcode", "lfm2", "bert", "roberta", "xlm-roberta", "camembert",
})  # fmt: skip
TWO_MATRICES = frozenset({
    "opt", "phi", "gpt2", "gpt_neox", "gpt_bigcode", "gptj", "starcoder2", "falcon", "bloom", "mpt", "nemotron",
    "nemotron_h", "arcee", "apertus", "jais2", "codegen", "gpt_neo", "nanochat", "persimmon", "bert", "roberta",
    "xlm-roberta", "camembert",
})  # fmt: skip
BIASED = frozenset({
    "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "gpt_oss", "phi", "opt",
    "starcoder2",
})  # fmt: skip
# Each layer is one thing alone: attention, a recurrent layer, or a feed-forward part.
SINGLE = frozenset({"nemotron_h"})
LEARNED_POSITIONS = frozenset({"opt", "gpt2", "gpt_bigcode", "gpt_neo", "bert", "roberta", "xlm-roberta", "camembert"})
NO_CACHE = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})  # they read a text at once, and write none
# Rotary tables four times as long, for the positions of pictures and films.
MULTIMODAL_ROPE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
GATED = ("qwen3_next", "qwen3_5")  # full attention with a gate on what it gives, by their class's default
NO_ROPE = frozenset({"nemotron_h", "jamba"})  # recurrent layers tell them where a word stands
QUARTER_ROPE = ("qwen3_next", "qwen3_5")  # they turn a quarter of each head, by their class's default
KINDS: dict[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "conv": "linear",  # a short convolution, which keeps its last columns
    "moe": "mlp",
    "mlp": "mlp",
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
        "attention_gate": bool(part.get("attn_output_gate", kind.startswith(GATED))),
        "attention_bias": bool(part.get("attention_bias", kind in BIASED)),
        "element_bytes": 4 if hf_config.dtype(config) == "float32" else 2,
        **_global_heads(part),
        **_mlp(part, kind, hidden),
        **_experts(part, kind, known),
        **_latent(part),
        **_rope(part, kind, head_dim, kinds),
        **_vision(config, hidden),
        "single_layers": kind in SINGLE,
    }
    if kind in NO_CACHE:
        values["kv_shared_layers"] = layers
    values["state"] = hf_state.state(part, hidden)
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
    told = [KINDS.get(name) for name in texts(part.get("layer_types") or part.get("layers_block_type"), MAX_LAYERS)]
    pattern = clean(part.get("hybrid_override_pattern"), MAX_LAYERS)
    if pattern and all(sign in HYBRID_SIGNS for sign in pattern):
        kinds: list[LayerKind] = [HYBRID_SIGNS[sign] for sign in pattern]
    elif len(told) == count and None not in told:
        kinds = [name for name in told if name]
    elif interval := whole(part.get("full_attention_interval")):
        kinds = _every(interval, count, "linear")
    elif (full := _full_layers(part)) is not None:
        kinds = ["full" if index in full else "mamba" for index in range(count)]
    elif chunk:
        kinds = _every(4, count, "chunked")
    elif window:
        kinds = _windowed(part, kind, count)
    else:
        kinds = ["full"] * count
    if "sliding" in kinds and not window:
        kinds = ["full" if name == "sliding" else name for name in kinds]
    return kinds, chunk if "chunked" in kinds else window if "sliding" in kinds else None


def _full_layers(part: dict[str, Any]) -> set[int] | None:
    """Which layers of a mostly recurrent model attend (Bamba, Jamba, Kimi Linear); None where no key says so."""
    told = obj(part.get("linear_attn_config")).get("full_attn_layers")
    if isinstance(told, list):  # counted from one
        return {number - 1 for item in told[:MAX_LAYERS] if (number := whole(item))}
    listed = part.get("attn_layer_indices")
    if isinstance(listed, list):
        return {number for item in listed[:MAX_LAYERS] if (number := whole(item, low=0)) is not None}
    period, offset = whole(part.get("attn_layer_period")), whole(part.get("attn_layer_offset"), low=0)
    if period and offset is not None:
        return set(range(offset, MAX_LAYERS, period))
    return None


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
    each = [number for item in _list(part.get("intermediate_size")) if (number := whole(item))]
    if each:
        width = sum(each) // len(each)
    if width and part.get("block_auto_adjust_ff_dim"):  # LFM2: two thirds, in whole multiples
        step = whole(part.get("block_multiple_of")) or 256
        width = -(-int(2 * width / 3) // step) * step
    return {"mlp_width": width or 4 * hidden, "mlp_matrices": 2 if kind in TWO_MATRICES else 3}


def _experts(part: dict[str, Any], kind: str, known: dict[str, Any]) -> dict[str, Any]:
    count = known["experts"]
    if not count or count == 1:
        return {}
    width, _ = first_whole(part, "moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    shared, _ = first_whole(
        part, "shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"
    )
    if not shared:
        number, _ = first_whole(part, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        shared = (number or 0) * (width or 0)
    if kind == "llama4_text":
        shared = width
    if kind == "gemma4_text":  # a dense part runs beside the experts
        shared = whole(part.get("intermediate_size"))
    every, _ = first_whole(
        part, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "expert_layer_period"
    )
    dense, _ = first_whole(part, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    listed = texts(part.get("mlp_layer_types"), MAX_LAYERS)
    if "sparse" in listed:
        dense = listed.index("sparse")
    return {
        "experts": count,
        "experts_used": known["experts_used"] or 1,
        "expert_width": width or 0,
        "shared_width": shared or 0,
        "dense_layers": dense or 0,
        "moe_every": every or 1,
    }


def _latent(part: dict[str, Any]) -> dict[str, Any]:
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    rank, rope, nope, value = (whole(part.get(name)) for name in names)
    if not (rank and rope and nope and value):
        return {}
    latent = Latent(kv_rank=rank, q_rank=whole(part.get("q_lora_rank")) or 0, rope=rope, nope=nope, value=value)
    if not whole(part.get("index_topk")):
        return {"latent": latent}
    heads, dim = whole(part.get("index_n_heads")) or 64, whole(part.get("index_head_dim")) or 128
    return {"latent": latent, "indexer_bytes": 132, "indexer_heads": heads, "indexer_dim": dim}


def _rope(part: dict[str, Any], kind: str, head_dim: int, kinds: list[LayerKind]) -> dict[str, Any]:
    """Rows and width of the rotary tables. Linear and YaRN scaling make the table as much longer."""
    rows, _ = first_whole(part, *hf_config.CONTEXT_KEYS)
    if not rows or kind in NO_ROPE:
        return {}
    if kind in LEARNED_POSITIONS:  # a table of positions in place of turned ones
        return {"rope_rows": rows, "rope_width": whole(part.get("hidden_size")) or head_dim}
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


def _list(value: object) -> list[Any]:
    return value[:MAX_LAYERS] if isinstance(value, list) else []


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
