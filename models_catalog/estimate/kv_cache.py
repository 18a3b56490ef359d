"""The KV cache: bytes of a block, blocks of a request, and what follows: tokens, requests at once, longest request.

Source: vLLM's kv_cache_utils.py, kv_cache_interface.py and single_type_kv_cache_manager.py.

Layers are put into groups of equal size; a block is one page in every layer of a group, and one pool serves all groups.
A request takes blocks for each group: as long as the request for full attention, as long as the window (and what is in
flight) for sliding ones, one for a recurrent state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Literal

from models_catalog.estimate import kv_types
from models_catalog.estimate.case import Case
from models_catalog.estimate.units import ceil_div, pages, round_up

BLOCK = 16  # tokens of a block, by default
CPU_BLOCK = 128
STATE_BLOCK_STEP = 16  # blocks beside recurrent states are multiples of it
LATENT_BLOCK_STEP = 64  # with latent attention
EVEN = 1.5  # groups are padded to the largest kind of layers when it is less than this many times the smallest
MOST_TOKENS = 10**8
FP8_LATENT_BYTES = 656  # per token and layer of the packed format for sparse latent attention

Kind = Literal["full", "sliding", "chunked", "state"]


@dataclass(frozen=True)
class Group:
    """Layers that share their blocks. `block` is tokens; `window` what a local layer sees."""

    kind: Kind
    block: int
    window: int = 0


@dataclass(frozen=True)
class Bucket:
    """All layers of one stage that keep the same: `page` is bytes of one layer's page of `block` tokens."""

    kind: Kind
    layers: int
    block: int
    page: int
    window: int = 0


@dataclass(frozen=True)
class Cache:
    """How one GPU lays out its cache."""

    block_bytes: int
    groups: tuple[Group, ...]
    batches_in_flight: int
    batched_tokens: int
    draft_tokens: int
    state_checkpoints: bool

    def blocks(self, gib_bytes: float) -> int:
        """Blocks of a pool of so many bytes."""
        return pages(gib_bytes, self.block_bytes)

    def request_blocks(self, tokens: int) -> int:
        """Blocks that one request of so many tokens must be able to take."""
        return sum(count * self._group_blocks(group, tokens) for group, count in self._counted)

    @cached_property
    def _counted(self) -> tuple[tuple[Group, int], ...]:
        """Many groups are alike, and this is asked often."""
        return tuple(Counter(self.groups).items())

    def _group_blocks(self, group: Group, tokens: int) -> int:
        flight = self.batches_in_flight * self.batched_tokens
        if group.kind == "full":
            return ceil_div(tokens, group.block)
        if group.kind == "state":
            return (2 if self.state_checkpoints else 1) + self.draft_tokens
        if group.kind == "chunked":
            return ceil_div(min(group.window + flight, tokens), group.block)
        return ceil_div(min(group.window - 1 + flight, tokens), group.block) + 1

    def longest(self, blocks: int) -> int:
        """Tokens of the longest request that fits into so many blocks; 0 when none does."""
        low, high = 0, MOST_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_blocks(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def logged_tokens(self, blocks: int, context: int, *, by_context: bool) -> int:
        """The number that the engine's log calls the size of the cache, whichever way the version counts it."""
        if not self.groups:
            return 0
        if by_context:
            return int(blocks / self.request_blocks(context) * context)
        return blocks // len(self.groups) * self.groups[0].block


def element_bytes(case: Case) -> float:
    """Bytes of one number in the cache; 16 bits are taken for a type that is not known (and said so)."""
    own = case.options.kv_default if case.version.own_kv_types else ""
    size, _known = kv_types.number_bytes(case.options.kv_type, own)
    return case.plain_bytes if size is None else size


def cache_of(case: Case, stage: int) -> Cache:
    """The layout on the GPUs of one pipeline stage."""
    buckets = _buckets(case, stage)
    size, groups = _grouped(buckets)
    options = case.options
    return Cache(
        block_bytes=size,
        groups=groups,
        batches_in_flight=_in_flight(case),
        batched_tokens=case.batched_tokens,
        draft_tokens=options.draft_tokens,
        state_checkpoints=case.saves_states,
    )


def _in_flight(case: Case) -> int:
    """Batches that are on their way at once: one a stage, and one more where scheduling runs ahead."""
    stages = case.options.pp
    if case.version.batches_in_flight == 1:
        return 1
    return stages + 1 if case.runner_v2 or stages == 1 else stages


def state_bytes(case: Case) -> int:
    """What one recurrent layer keeps for one request: the columns of its convolution, and its state."""
    state = case.geometry.state
    if state is None:
        return 0
    columns = state.conv_width * (state.conv_steps - 1 + case.options.draft_tokens) * 2
    return ceil((columns + state.elements * state.element_bytes) / case.options.tp)


def token_bytes(case: Case, *, wide: bool = False) -> int:
    """Keys and values of one token in one layer; heads are copied when there are fewer than GPUs (edge case 3)."""
    shape, number = case.geometry, element_bytes(case)
    if shape.latent is not None:  # one latent vector, the same on every GPU (edge case 4)
        if case.options.kv_type == "fp8_ds_mla":
            return FP8_LATENT_BYTES + shape.indexer_bytes
        return int((shape.latent.kv_rank + shape.latent.rope) * number) + shape.indexer_bytes
    head_dim = (shape.global_head_dim if wide else None) or shape.head_dim
    kv_heads = (shape.global_kv_heads if wide else None) or shape.kv_heads
    scale = kv_types.scale_bytes(case.options.kv_type)
    return int(2 * max(1, kv_heads // case.options.tp) * (head_dim * number + scale))


def _buckets(case: Case, stage: int) -> list[Bucket]:
    shape, options = case.geometry, case.options
    kinds = [kind for index, kind in zip(case.stage_layers(stage), case.kinds(stage), strict=True)
             if index < len(shape.layers) - shape.kv_shared_layers]  # fmt: skip
    local = case.version.hybrid_cache and options.hybrid_cache
    counts = {"full": kinds.count("full"), "sliding": kinds.count("sliding"), "chunked": kinds.count("chunked")}
    states = kinds.count("linear") + kinds.count("mamba")
    if not local:
        counts = {"full": sum(counts.values()), "sliding": 0, "chunked": 0}
    if stage == options.pp - 1:
        counts["full"] += options.draft_full_layers
    block, page = _block(case), state_bytes(case)
    if states and counts["full"]:  # attention blocks grow until one holds a state; then both have one size
        step = LATENT_BLOCK_STEP if shape.latent is not None else STATE_BLOCK_STEP
        block = max(_block(case), round_up(ceil_div(page, token_bytes(case)), step))
        page = block * token_bytes(case)
    found = [
        Bucket("full", counts["full"], block, block * token_bytes(case, wide=True)),
        Bucket("state", states, block, page),
        Bucket("sliding", counts["sliding"], block, block * token_bytes(case), shape.window or 0),
        Bucket("chunked", counts["chunked"], block, block * token_bytes(case), shape.window or 0),
    ]
    if options.draft_sliding_layers and stage == options.pp - 1:
        found.append(
            Bucket("sliding", options.draft_sliding_layers, block, block * token_bytes(case), options.draft_window)
        )
    return [bucket for bucket in found if bucket.layers]


def _block(case: Case) -> int:
    return case.options.block_size or (CPU_BLOCK if case.gpu.cpu else BLOCK)


def _grouped(buckets: list[Bucket]) -> tuple[int, tuple[Group, ...]]:
    """(bytes of a block, groups). All pages are as large as the largest: smaller sliding ones hold more tokens."""
    if not buckets:
        return 0, ()
    page = max(bucket.page for bucket in buckets)
    counts = [bucket.layers for bucket in buckets]
    size = max(counts) if max(counts) < EVEN * min(counts) else min(counts)
    groups: list[Group] = []
    for bucket in buckets:
        block = bucket.block
        if bucket.kind == "sliding" and page % bucket.page == 0:
            block *= page // bucket.page
        groups += [Group(bucket.kind, block, bucket.window)] * ceil_div(bucket.layers, size)
    return size * page, tuple(groups)
