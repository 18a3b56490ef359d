"""From a GGUF header to the shape of a model (facts.Geometry). Pure."""

from __future__ import annotations

from models_catalog.facts import Geometry, Latent, LayerKind
from models_catalog.inspect.gguf import GgufHeader
from models_catalog.inspect.reading import clean, whole

MAX_LAYERS = 1000
EVERY = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "llama4": 4}  # full attention in each nth
TWO_MATRICES = frozenset({"gpt2", "gptneox", "starcoder2", "falcon", "phi2", "bloom", "mpt", "nemotron"})


def gguf_geometry(header: GgufHeader, *, tied: bool) -> Geometry | None:
    """`tied`: there is no output tensor. None when layers, widths or heads are not told."""
    arch = clean(header.text("general.architecture"), 60)

    def number(name: str) -> int:
        return _largest(header.values.get(f"{arch}.{name}"))

    layers, hidden, heads = number("block_count"), number("embedding_length"), number("attention.head_count")
    vocab = header.lists.get("tokenizer.ggml.tokens", 0) or number("vocab_size")
    if not (0 < layers <= MAX_LAYERS and hidden and heads and vocab):
        return None
    head_dim = number("attention.key_length") or hidden // heads
    window = number("attention.sliding_window")
    kv_heads = header.values.get(f"{arch}.attention.head_count_kv")
    return Geometry(
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        layers=_layers(arch, layers, kv_heads, window),
        heads=heads,
        kv_heads=_largest(kv_heads) or heads,
        head_dim=head_dim,
        window=window or None,
        mlp_width=number("feed_forward_length") or 4 * hidden,
        mlp_matrices=2 if arch in TWO_MATRICES else 3,
        experts=number("expert_count"),
        experts_used=number("expert_used_count"),
        expert_width=number("expert_feed_forward_length"),
        shared_width=number("expert_shared_feed_forward_length"),
        dense_layers=number("leading_dense_block_count"),
        latent=_latent(header, arch),
        rope_rows=number("context_length"),
        rope_width=number("rope.dimension_count") or head_dim,
    )


def _largest(value: object) -> int:
    """A number, or the largest of a per-layer list; 0 when it is neither."""
    if isinstance(value, tuple):
        return max((n for item in value if (n := whole(item))), default=0)
    return whole(value) or 0


def _layers(arch: str, count: int, kv_heads: object, window: int) -> list[LayerKind]:
    """A layer without heads for keys is recurrent; with a window, most layers are local."""
    if isinstance(kv_heads, tuple) and len(kv_heads) == count:
        return ["full" if whole(number) else "linear" for number in kv_heads]
    every = EVERY.get(arch)
    if not window or not every:
        return ["full"] * count
    return ["full" if (index + 1) % every == 0 else "sliding" for index in range(count)]


def _latent(header: GgufHeader, arch: str) -> Latent | None:
    values = header.values
    rank, rope = (whole(values.get(f"{arch}.{name}")) for name in ("attention.kv_lora_rank", "rope.dimension_count"))
    key, value = (whole(values.get(f"{arch}.attention.{name}_length_mla")) for name in ("key", "value"))
    key = key or whole(values.get(f"{arch}.attention.key_length"))
    value = value or whole(values.get(f"{arch}.attention.value_length"))
    if not (rank and rope and key and value and key > rope):
        return None
    queries = whole(values.get(f"{arch}.attention.q_lora_rank")) or 0
    return Latent(kv_rank=rank, q_rank=queries, rope=rope, nope=key - rope, value=value)
