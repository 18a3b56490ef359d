"""From a GGUF header to the shape of a model (facts.Geometry). Pure."""

from __future__ import annotations

from models_catalog.facts import Geometry, Latent, LayerKind, Rope, State
from models_catalog.inspect.gguf import GgufHeader
from models_catalog.inspect.reading import clean, real, whole

MAX_LAYERS = 1000
EVERY = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "llama4": 4}  # full attention in each nth
TWO_MATRICES = frozenset({"gpt2", "gptneox", "starcoder2", "falcon", "phi2", "bloom", "mpt", "nemotron"})
MAMBA = ("mamba", "nemotron_h", "granitehybrid", "falcon-h1", "jamba", "plamo2")  # their other layers are no delta nets


def gguf_geometry(header: GgufHeader, *, tied: bool) -> Geometry | None:
    """`tied`: there is no output tensor. None when layers, widths or heads are not told."""
    arch = clean(header.text("general.architecture"), 60)

    def number(name: str) -> int:
        return largest(header.values.get(f"{arch}.{name}")) or 0

    layers, hidden, heads = layer_count(header, arch), number("embedding_length"), number("attention.head_count")
    vocab = header.lists.get("tokenizer.ggml.tokens", 0) or number("vocab_size")
    if not (0 < layers <= MAX_LAYERS and hidden and heads and vocab):
        return None
    key, local = number("attention.key_length"), number("attention.key_length_swa")
    head_dim = local or key or hidden // heads
    window = number("attention.sliding_window")
    expert_width = number("expert_feed_forward_length")
    return Geometry(
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        layers=_layers(header, arch, layers, window),
        heads=heads,
        kv_heads=number("attention.head_count_kv") or heads,
        head_dim=head_dim,
        global_head_dim=key if local and key != local else None,
        kv_shared_layers=number("attention.shared_kv_layers"),
        window=window or None,
        mlp_width=number("feed_forward_length") or 4 * hidden,
        mlp_matrices=2 if arch in TWO_MATRICES else 3,
        experts=number("expert_count"),
        experts_used=number("expert_used_count"),
        expert_width=expert_width,
        shared_width=number("expert_shared_feed_forward_length") or number("expert_shared_count") * expert_width,
        dense_layers=number("leading_dense_block_count"),
        moe_every=number("interleave_moe_layer_step") or 1,
        latent=latent(header, arch),
        state=_state(header, arch),
        per_layer_width=number("embedding_length_per_layer_input"),
        rope_rows=number("context_length"),
        rope_width=number("rope.dimension_count") or head_dim,
    )


def largest(value: object) -> int | None:
    """A number, or the largest of a per-layer list; None when it is neither."""
    if isinstance(value, tuple):
        return max((n for item in value if (n := whole(item))), default=None)
    return whole(value)


def layer_count(header: GgufHeader, arch: str) -> int:
    """Layers of the model itself, without those behind them that only guess ahead. 0: not told."""
    blocks = largest(header.values.get(f"{arch}.block_count")) or 0
    ahead = whole(header.values.get(f"{arch}.nextn_predict_layers")) or 0
    return blocks - ahead if 0 < ahead < blocks else blocks


def per_layer(header: GgufHeader, arch: str, name: str) -> list[int]:
    """A list of one whole number a layer; [] when the value is a single number or no such list."""
    value = header.values.get(f"{arch}.{name}")
    if not isinstance(value, tuple) or not 0 < len(value) <= MAX_LAYERS:
        return []
    numbers = [n for item in value if (n := whole(item, low=0)) is not None]
    return numbers if len(numbers) == len(value) else []


def _layers(header: GgufHeader, arch: str, count: int, window: int) -> list[LayerKind]:
    """By lists of one value a layer, else by the architecture: with a window, most layers are local."""
    kv_heads = per_layer(header, arch, "attention.head_count_kv")[:count]
    widths = per_layer(header, arch, "feed_forward_length")[:count]
    interval = whole(header.values.get(f"{arch}.full_attention_interval"))
    if len(kv_heads) == count and 0 in kv_heads:  # a layer without heads for keys keeps a state, or nothing
        other: LayerKind = "mamba" if arch.startswith(MAMBA) else "linear"
        alone = len(widths) == count and 0 in widths  # feed-forward layers stand by themselves
        return [
            "full" if heads else "mlp" if alone and widths[index] else other for index, heads in enumerate(kv_heads)
        ]
    if interval:
        return ["full" if (index + 1) % interval == 0 else "linear" for index in range(count)]
    if not window:
        return ["full"] * count
    pattern = header.values.get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple) and len(pattern) >= count:
        return ["sliding" if local else "full" for local in pattern[:count]]
    every = whole(pattern) or EVERY.get(arch)
    return ["full" if not every or (index + 1) % every == 0 else "sliding" for index in range(count)]


def latent(header: GgufHeader, arch: str) -> Latent | None:
    """Ranks and widths of multi-head latent attention."""
    values = header.values
    rank, rope = (whole(values.get(f"{arch}.{name}")) for name in ("attention.kv_lora_rank", "rope.dimension_count"))
    key, value = (whole(values.get(f"{arch}.attention.{name}_length_mla")) for name in ("key", "value"))
    key = key or whole(values.get(f"{arch}.attention.key_length"))
    value = value or whole(values.get(f"{arch}.attention.value_length"))
    if not (rank and rope and key and value and key > rope):
        return None
    queries = whole(values.get(f"{arch}.attention.q_lora_rank")) or 0
    return Latent(kv_rank=rank, q_rank=queries, rope=rope, nope=key - rope, value=value)


def rope_of(header: GgufHeader, arch: str) -> Rope | None:
    """Base and stretching of the positions; None when nothing is said."""
    values = header.values
    scaling = clean(values.get(f"{arch}.rope.scaling.type"), 40)
    factor = real(values.get(f"{arch}.rope.scaling.factor"))
    found = Rope(
        base=real(values.get(f"{arch}.rope.freq_base")),
        scaling="" if scaling == "none" else scaling,
        factor=factor,
        original_context=whole(values.get(f"{arch}.rope.scaling.original_context_length")),
    )
    return found if found != Rope() else None


def _state(header: GgufHeader, arch: str) -> State | None:
    """Recurrent layers: a gated delta net (Qwen3-Next) or Mamba 2."""

    def number(name: str) -> int:
        return whole(header.values.get(f"{arch}.ssm.{name}")) or 0

    inner, depth, heads, groups = (number(n) for n in ("inner_size", "state_size", "time_step_rank", "group_count"))
    steps = number("conv_kernel") or 4
    if not (inner and depth and heads):
        return None
    if arch.startswith(MAMBA):
        both = inner + 2 * (groups or 1) * depth
        return State(
            in_width=inner + both, gate_width=heads, out_width=inner, conv_width=both, conv_steps=steps,
            elements=inner * depth,
        )  # fmt: skip
    keys = groups * depth
    return State(
        in_width=2 * keys + 2 * inner, gate_width=2 * heads, out_width=inner, conv_width=2 * keys + inner,
        conv_steps=steps, elements=inner * depth,
    )  # fmt: skip
