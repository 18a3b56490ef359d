"""How much PyTorch's caching allocator really takes for a tensor.

Large tensors live in segments of whole 2 MiB; the rest of a segment is split off only when it is more than 1 MiB.
From vLLM 0.22 on (a split limit of 20 MiB while loading) the whole segment of a larger one counts.
"""

from __future__ import annotations

from models_catalog.estimate.units import MIB, round_up

SMALLEST, LARGE, SEGMENT, SPLIT_LIMIT = 512, 10 * MIB, 2 * MIB, 20 * MIB


def allocated(size: float, *, whole_segments: bool) -> int:
    """Bytes that a tensor of `size` bytes occupies."""
    block = round_up(size, SMALLEST)
    if block < LARGE:
        return block
    segment = round_up(block, SEGMENT)
    if whole_segments and block >= SPLIT_LIMIT:
        return segment
    return segment if segment - block <= MIB else block
