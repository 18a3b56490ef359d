"""Weights on one GPU: every tensor as the engine fuses and shards it, each through the allocator. Bytes.

Source: vLLM's layers (linear.py, fused_moe, vocab_parallel_embedding.py) and model classes; checked against
"Model loading took" lines.
"""

from __future__ import annotations

from collections.abc import Iterator

from models_catalog.estimate.allocator import allocated
from models_catalog.estimate.case import Case
from models_catalog.estimate.schemes import PLAIN, Scheme
from models_catalog.estimate.units import round_up
from models_catalog.facts import Geometry

MXFP4_STEP = 256  # experts' width is padded to it
MXFP4_SMALLEST = 512  # from this width on
VISION_TENSORS = 40  # a tower is many middle-sized tensors; how many changes only rounding


class Stage:
    """The tensors of one pipeline stage on one of its GPUs."""

    def __init__(self, case: Case, stage: int, plain_parts: frozenset[str] = frozenset()) -> None:
        self.case, self.stage, self.plain_parts = case, stage, plain_parts
        self.shape: Geometry = case.geometry
        self.tp = case.options.tp
        self.first, self.last = stage == 0, stage == case.options.pp - 1

    def bytes(self) -> int:
        """All that "Model loading took" counts."""
        whole = self.case.version.whole_segments
        tensors = sum(allocated(size, whole_segments=whole) for size in self._beside_layers())
        alike: dict[tuple[str, bool], list[int]] = {}
        for layer in self.case.stage_layers(self.stage):  # of a kind all have the same tensors
            alike.setdefault((self.shape.layers[layer], self.case.has_experts(layer)), []).append(layer)
        for layers in alike.values():
            tensors += len(layers) * sum(allocated(size, whole_segments=whole) for size in self._layer(layers[0]))
        return int(tensors + self.rotary_tables() + self.loras())

    def tensors(self) -> Iterator[float]:
        yield from self._beside_layers()
        for layer in self.case.stage_layers(self.stage):
            yield from self._layer(layer)

    def _layer(self, layer: int) -> Iterator[float]:
        yield from self._mixer(layer)
        if not self.shape.single_layers or self.shape.layers[layer] == "mlp":
            yield from self._feed_forward(layer)
        yield 2 * self.shape.hidden * self.case.plain_bytes  # norms

    def _beside_layers(self) -> Iterator[float]:
        yield from self._ends()
        if self.last and self.case.options.draft_full_layers:
            yield from self._drafter()
        if self.first and self.shape.vision_parameters and not self.case.options.text_only:
            size = self.shape.vision_parameters * self.case.plain_bytes / self.tp / VISION_TENSORS
            yield from [size] * VISION_TENSORS

    def rotary_tables(self) -> int:
        """Cosines and sines of every position, the same on every GPU (0.5 GiB for gemma-3-12b, 2.5 for Llama 4)."""
        return self.shape.rope_rows * self.shape.rope_width * self.case.plain_bytes

    def loras(self) -> float:
        """Buffers for adapters, allocated at the start whether or not any is loaded."""
        options, shape = self.case.options, self.shape
        if not (options.loras and options.lora_rank):
            return 0.0
        heads, kv = shape.heads * shape.head_dim, max(1, shape.kv_heads // self.tp) * self.tp * shape.head_dim
        ends = 4 * shape.hidden + 2 * (heads + kv) / self.tp + 3 * shape.hidden + 3 * shape.mlp_width / self.tp
        return len(self.case.stage_layers(self.stage)) * ends * options.lora_rank * options.loras * 2

    # --- parts --------------------------------------------------------------------------------------------------------
    def _scheme(self, part: str) -> Scheme:
        """How a part's linear layers are packed."""
        scheme = self.case.scheme
        if part in self.plain_parts or (scheme.experts_only and part != "experts"):
            return PLAIN
        return scheme

    def _ends(self) -> Iterator[float]:
        """Embedding and output head; one copy does for both when they are tied and on one GPU."""
        size: float = self.case.vocab // self.tp * self.shape.hidden * self.case.plain_bytes
        if self.case.scheme.words:
            size = sum(self.case.scheme.linear(self.case.vocab // self.tp, self.shape.hidden))
        if self.first:
            yield size
            if self.shape.per_layer_width:
                width = self.shape.per_layer_width * len(self.shape.layers)
                yield self.case.vocab // self.tp * width * self.case.plain_bytes
        if self.last and not (self.shape.tied and self.first):
            yield size

    def _mixer(self, layer: int) -> Iterator[float]:
        kind = self.shape.layers[layer]
        if kind == "mlp":
            return
        if kind in ("linear", "mamba"):
            yield from self._recurrent()
        elif self.shape.latent is not None:
            yield from self._latent()
        else:
            yield from self._attention(full=kind == "full")

    def _attention(self, *, full: bool) -> Iterator[float]:
        shape, scheme = self.shape, self._scheme("attention")
        wide = full and shape.global_head_dim
        head_dim = shape.global_head_dim if wide and shape.global_head_dim else shape.head_dim
        kv_heads = (shape.global_kv_heads or shape.kv_heads) if wide else shape.kv_heads
        heads, kv = shape.heads // self.tp, max(1, kv_heads // self.tp)
        width = ((2 if shape.attention_gate else 1) * heads + 2 * kv) * head_dim
        yield from scheme.linear(width, shape.hidden)
        yield from scheme.linear(shape.hidden, heads * head_dim)
        if shape.attention_bias:
            yield width * self.case.plain_bytes

    def _latent(self) -> Iterator[float]:
        """Multi-head latent attention, with the two copies in 16 bits that decoding multiplies by."""
        latent, scheme, hidden = self.shape.latent, self._scheme("attention"), self.shape.hidden
        if latent is None:
            return
        heads = self.shape.heads // self.tp
        queries = heads * (latent.nope + latent.rope)
        if latent.q_rank:
            yield from scheme.linear(latent.q_rank + latent.kv_rank + latent.rope, hidden)
            yield from scheme.linear(queries, latent.q_rank)
        else:
            yield from scheme.linear(queries, hidden)
            yield from scheme.linear(latent.kv_rank + latent.rope, hidden)
        yield from scheme.linear(heads * (latent.nope + latent.value), latent.kv_rank)
        yield from scheme.linear(hidden, heads * latent.value)
        yield latent.kv_rank * heads * latent.nope * 2
        yield latent.kv_rank * heads * latent.value * 2
        if self.shape.indexer_heads:  # whole on every GPU
            yield from scheme.linear(self.shape.indexer_heads * self.shape.indexer_dim, latent.q_rank or hidden)
            yield (self.shape.indexer_heads + self.shape.indexer_dim) * hidden * self.case.plain_bytes

    def _recurrent(self) -> Iterator[float]:
        state, scheme, hidden = self.shape.state, self._scheme("recurrent"), self.shape.hidden
        if state is None:
            return
        plain = self.case.plain_bytes
        yield from scheme.linear(state.in_width // self.tp, hidden)
        yield state.gate_width // self.tp * hidden * plain
        yield from scheme.linear(hidden, state.out_width // self.tp)
        yield state.conv_width // self.tp * state.conv_steps * plain

    def _feed_forward(self, layer: int) -> Iterator[float]:
        shape = self.shape
        if self.case.has_experts(layer):
            yield from self._experts()
            return
        width, scheme = shape.mlp_width // self.tp, self._scheme("mlp")
        yield from scheme.linear((shape.mlp_matrices - 1) * width, shape.hidden)
        yield from scheme.linear(shape.hidden, width)
        if shape.per_layer_width:
            yield 2 * shape.hidden * shape.per_layer_width * self.case.plain_bytes

    def _experts(self) -> Iterator[float]:
        """All experts are in memory, whichever a token uses (edge case 9). Expert parallelism only moves them; data
        parallel replicas hold a part each, with it or without (fused_moe/config.py: they count as one group)."""
        shape, scheme = self.shape, self._scheme("experts")
        width = self.shape.expert_width // (self.tp * self.case.options.dp)
        if scheme.experts_only and width >= MXFP4_SMALLEST and not self.case.traits.intel:
            width = round_up(width, MXFP4_STEP)
        inward = shape.mlp_matrices - 1  # gate and up, or up alone
        yield from scheme.linear(inward * width, shape.hidden, shape.experts)
        yield from scheme.linear(shape.hidden, width, shape.experts)
        if scheme.experts_only:
            yield shape.experts * (2 * width + shape.hidden) * 2  # biases
        yield shape.experts * shape.hidden * self.case.plain_bytes  # router
        if shape.shared_width:
            shared = self._scheme("shared_experts")
            yield from shared.linear(inward * shape.shared_width // self.tp, shape.hidden)
            yield from shared.linear(shape.hidden, shape.shared_width // self.tp)

    def _drafter(self) -> Iterator[float]:
        """Multi-token prediction: one more decoder layer, behind a projection of two hidden states into one."""
        full = [index for index, kind in enumerate(self.shape.layers) if kind == "full"]
        layer = full[-1] if full else len(self.shape.layers) - 1
        for _ in range(self.case.options.draft_full_layers):
            yield from self._mixer(layer)
            yield from self._feed_forward(layer)
            yield 2 * self.shape.hidden * self.shape.hidden * self.case.plain_bytes


def weight_bytes(case: Case, stage: int, plain_parts: frozenset[str] = frozenset()) -> int:
    """Bytes that one GPU of a stage holds after loading."""
    return Stage(case, stage, plain_parts).bytes()


def parameters(geometry: Geometry, case: Case) -> float:
    """Parameters of the whole model as its files hold them, counted from its shape."""
    plain = Case(**{**case.__dict__, "scheme": PLAIN, "options": type(case.options)()})
    count = sum(Stage(plain, 0).tensors()) / 2
    if geometry.latent is not None:
        copies = geometry.latent.kv_rank * geometry.heads * (geometry.latent.nope + geometry.latent.value)
        count -= len(geometry.layers) * copies
    padding = (case.vocab - geometry.vocab) * geometry.hidden * (1 if geometry.tied else 2)
    return count - padding
