"""The peak of working memory beside weights and cache, as vLLM's profiling run meets it. Bytes.

The run sends `batched_tokens` tokens through the layers and then samples for `sequences` requests at once; the larger
of the two counts. The sampler works on the whole vocabulary for every sequence (gathered from all GPUs, so tensor
parallelism does not help): 2 to 6 GiB on large GPUs (edge case 1). The context's length plays no part.
"""

from __future__ import annotations

from models_catalog.estimate.case import Case
from models_catalog.estimate.units import GIB

DENSE_WIDTHS, EXPERT_WIDTHS = 3.25, 4.0  # hidden states alive at the peak of a forward pass
MLP_WIDTHS = 3  # gate, up and their product
BASE_TOKENS = 8192  # Version.base_gib is for so many tokens
RUNNER_V2_SAMPLING = 4.0  # bytes per sequence and word: 16-bit logits, and what gathers them
COUNTS = 4 + 1 / 8  # bytes per sequence and word that stay: counted words (int32), and a bit for those of the prompt
STATE_CHUNK = 64  # tokens after which recurrent layers write a state down, during a forward pass
FILM_PEAK = int(0.5 * GIB)  # towers that take pictures of any size: profiled with the largest
PIXEL_CHANNELS, FLOAT32_SAMPLING = 3, 2.0


def activation_bytes(case: Case, stage: int) -> float:
    """Peak on one GPU of a pipeline stage."""
    options, version = case.options, case.version
    hidden = hidden_bytes(case)
    peak = forward_bytes(case)
    if stage == options.pp - 1:
        staying = workspace_bytes(case) if version.workspace_stays else 0.0
        images = image_bytes(case) if stage == 0 else 0.0
        peak = max(peak, sampler_bytes(case) + hidden + staying + images)
    peak += version.base_gib * GIB * case.batched_tokens / BASE_TOKENS
    if options.pp > 1:
        peak += 2 * hidden  # sent and received
    return peak


def counts_bytes(case: Case, stage: int) -> float:
    """What the second model runner keeps for penalties on the last stage, used or not (penalties.py: two tensors)."""
    if not case.runner_v2 or stage != case.options.pp - 1:
        return 0.0
    return COUNTS * case.sequences * case.geometry.vocab


def hidden_bytes(case: Case) -> float:
    """The hidden states of one step."""
    return case.batched_tokens * case.geometry.hidden * case.plain_bytes


def sampler_bytes(case: Case) -> float:
    """Logits, their copies in float32, and what sorting or selecting them takes.

    The second model runner's trial run asks for no sorting, so it meets the logits alone.
    """
    version = case.version
    if case.runner_v2:
        return RUNNER_V2_SAMPLING * case.sequences * case.vocab
    each = version.sampler_bytes + (FLOAT32_SAMPLING if case.plain_bytes == 4 else 0.0)
    kernel = version.sampler_per_multiprocessor * case.traits.multiprocessors * case.vocab
    return each * case.sequences * case.vocab + kernel


def workspace_bytes(case: Case) -> float:
    """Where tokens wait for their experts. MXFP4 kernels need none."""
    shape = case.geometry
    if not shape.experts or case.scheme.experts_only:
        return 0.0
    width = shape.expert_width // case.options.tp
    return case.batched_tokens * shape.experts_used * (max(2 * width, shape.hidden) + width) * 2


def forward_bytes(case: Case) -> float:
    """The peak inside a layer."""
    shape = case.geometry
    if shape.experts and not case.scheme.experts_only:
        return max(workspace_bytes(case), recurrent_bytes(case)) + EXPERT_WIDTHS * hidden_bytes(case)
    width = shape.expert_width if shape.experts else shape.mlp_width
    inner = case.batched_tokens * MLP_WIDTHS * (width // case.options.tp) * case.plain_bytes
    return max(inner, recurrent_bytes(case)) + DENSE_WIDTHS * hidden_bytes(case)


def recurrent_bytes(case: Case) -> float:
    """Inside a recurrent layer: its projections, their convolved copies, three outputs; and a float32 state a chunk
    (fla/ops/chunk_delta_h.py). Matters when a step has tens of thousands of tokens."""
    state = case.geometry.state
    if state is None:
        return 0.0
    widths = state.in_width + 2 * state.conv_width + 3 * state.out_width
    each = widths * case.plain_bytes + state.elements / STATE_CHUNK * 4
    return case.batched_tokens * each / case.options.tp


def image_bytes(case: Case) -> float:
    """The encoder's cache, and the pixels of as many images as one step can hold."""
    shape = case.geometry
    if not shape.vision_parameters or case.options.text_only:
        return 0.0
    size = hidden_bytes(case)
    if shape.image_tokens:
        images = case.batched_tokens // shape.image_tokens
        return size + images * PIXEL_CHANNELS * shape.image_pixels * case.plain_bytes
    return size + (FILM_PEAK if case.hybrid else 0)
