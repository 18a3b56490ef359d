"""llama.cpp, and Ollama which runs it: some layers on the GPU, the rest in the machine's memory. Less certain.

Cache sizes, and the compute buffers of builds up to 2025, agree with logged ones to the MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from models_catalog.estimate import gpus
from models_catalog.estimate.files import file_bytes as shape_bytes
from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.options import Options
from models_catalog.estimate.plan import Amount, Plan, Rank, Reason
from models_catalog.estimate.schemes import FILE_BITS, Scheme, scheme_of
from models_catalog.estimate.units import GIB, round_up
from models_catalog.estimate.verdict import Judge
from models_catalog.facts import Geometry, ModelFacts

TYPE_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "auto": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
CONTEXT_GIB = (0.3, 0.4, 0.5)  # of CUDA
DEFAULT_CONTEXT, OLLAMA_CONTEXT = 4096, 4096
MASK = 6.0  # bytes of the attention mask for each token of the context
FLASH_WIDTHS, PLAIN_WIDTHS = 5, 4  # hidden states alive inside a layer, with flash attention and without
CACHE_STEP = 256  # cells of a sliding cache come in such steps
DOUBT = 0.1
MOST_CONTEXT = 2**20


@dataclass(frozen=True)
class Shares:
    """Bytes on each GPU."""

    weights: float
    cache: float
    compute: float


def llamacpp(facts: ModelFacts, options: Options, gpu: Gpu, version: str) -> Plan:
    """llama-server with these layers on the GPUs. Several GPUs hold a part of the layers each."""
    context = options.context or min(facts.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    return _plan("llama.cpp", facts, options, gpu, version, context, slots=1)


def ollama(facts: ModelFacts, options: Options, gpu: Gpu, version: str) -> Plan:
    """The same, with a context for each request at once."""
    context = options.context or OLLAMA_CONTEXT
    return _plan("ollama", facts, options, gpu, version, context, slots=options.parallel)


def cache_bytes(geometry: Geometry, options: Options, context: int) -> float:
    """All layers' cache for one context. A recurrent layer keeps a state for each request, whatever the context."""
    key = TYPE_BYTES.get(options.kv_type.lower(), 2.0)
    value = TYPE_BYTES.get((options.kv_value_type or options.kv_type).lower(), 2.0)
    if geometry.latent is not None:
        return len(geometry.layers) * context * (geometry.latent.kv_rank + geometry.latent.rope) * key
    token = geometry.kv_heads * geometry.head_dim * (key + value)
    wide = (geometry.global_kv_heads or geometry.kv_heads) * (geometry.global_head_dim or geometry.head_dim)
    size = 0.0
    for kind in geometry.layers:
        if kind == "full":
            size += context * wide * (key + value)
        elif kind in ("sliding", "chunked"):
            window = geometry.window or context
            size += min(context, round_up(window + options.micro_batch, CACHE_STEP)) * token
        elif geometry.state is not None:
            state = geometry.state
            size += options.parallel * 4 * (state.elements + state.conv_width * (state.conv_steps - 1))
    return size


def compute_bytes(geometry: Geometry, options: Options, context: int) -> float:
    """The buffer of one micro batch: the larger of the logits and of what attention keeps inside a layer.

    Logged for Llama 3 8B with 8,192 tokens: 258.5 MiB, and 560 without flash attention; for Qwen3.5 9B with 262,144:
    808. Builds of 2026 keep logits of a few tokens only, so the range goes far down.
    """
    batch = options.micro_batch
    logits = batch * 4.0 * (geometry.vocab + geometry.hidden)
    if options.flash_attention:  # the mask, in 32 and in 16 bits
        inside = batch * (MASK * context + 4.0 * FLASH_WIDTHS * geometry.hidden)
    else:
        inside = batch * 4.0 * ((geometry.heads + 1) * context + PLAIN_WIDTHS * geometry.hidden)
    return max(logits, inside)


def file_bytes(facts: ModelFacts, asked: str) -> float | None:
    """Bytes of all tensors: counted from the headers, else from shape and packing; None when neither tells."""
    if facts.weight_bytes:
        return float(facts.weight_bytes)
    if facts.geometry is None:
        return None
    bits = FILE_BITS.get(asked.strip().lower())
    scheme = Scheme(asked, weight=bits / 8, exact=False, words=True) if bits else scheme_of(facts, asked)
    return shape_bytes(facts.geometry, scheme) if scheme else None


def _plan(name: str, facts: ModelFacts, options: Options, gpu: Gpu, version: str, context: int, slots: int) -> Plan:
    judge = Judge(certain=facts.geometry is not None)
    judge.note("engine.less_certain", engine=name)
    size = file_bytes(facts, options.scheme)
    if facts.geometry is None:
        return _unknown(name, version, context, judge)
    shares = _shares(facts.geometry, size or 0.0, options, context * slots)
    rank = _rank(shares, len(facts.geometry.layers))
    if size is None:  # the cache is known all the same
        judge.certain = False
        judge.note("scheme.unknown", scheme=options.scheme)
        rank = replace(rank, weights=Amount.unknown(Reason("scheme.unknown", {"scheme": options.scheme})))
    free = gpu.free_gib if gpu.free_gib is not None else gpus.total_gib(gpu)
    need = sum(amount.value or 0.0 for amount in rank.amounts().values())
    longest = _longest(facts, size, options, free, slots)
    if free is None:
        judge.certain = False
        judge.note("gpu.unknown", gpu=gpu.name)
    elif need > free:
        judge.fail("offload.too_large", need=round(need, 2), free=round(free, 2))
    elif need > (1 - DOUBT) * free:
        judge.warn("offload.little", need=round(need, 2), free=round(free, 2))
    told = Reason("kv.context", {"context": context, "slots": slots})
    return Plan(
        name, version, (rank,), Amount(context * slots, context * slots, context * slots, told),
        Amount(float(slots), float(slots), float(slots), told), longest, judge.verdict(), tuple(judge.reasons),
        context, need,
    )  # fmt: skip


def _unknown(name: str, version: str, context: int, judge: Judge) -> Plan:
    judge.certain = False
    judge.note("model.unknown")
    nothing = Amount.unknown(Reason("model.unknown"))
    return Plan(name, version, (), nothing, nothing, nothing, judge.verdict(), tuple(judge.reasons), context)


def _shares(geometry: Geometry, size: float, options: Options, context: int) -> Shares:
    """What each GPU holds. The table of word vectors stays in the machine's memory."""
    count = len(geometry.layers)
    on_gpu = count if options.gpu_layers is None else min(options.gpu_layers, count)
    part, gpus_used = on_gpu / count, options.tp * options.pp
    inner = size - embedding_bytes(geometry, size)
    return Shares(
        weights=inner * part / gpus_used,
        cache=cache_bytes(geometry, options, context) * part / gpus_used,
        compute=compute_bytes(geometry, options, context) if on_gpu else 0.0,
    )


def embedding_bytes(geometry: Geometry, size: float) -> float:
    """The word vectors' share of the file. Tied ones are the output head too, and that is on the GPU."""
    if geometry.tied:
        return 0.0
    table = geometry.vocab * geometry.hidden
    rest = sum(
        2 * geometry.hidden * (geometry.heads + geometry.kv_heads) * geometry.head_dim
        + (
            3 * geometry.hidden * geometry.expert_width * geometry.experts
            if geometry.experts
            else geometry.mlp_matrices * geometry.hidden * geometry.mlp_width
        )
        for _kind in geometry.layers
    )
    return size * table / (2 * table + rest)


def _rank(shares: Shares, layers: int) -> Rank:
    low, usual, high = CONTEXT_GIB
    weights, cache, compute = (part / GIB for part in (shares.weights, shares.cache, shares.compute))
    return Rank(
        stage=0,
        weights=Amount.near(weights, 0.05 * weights, reason=Reason("weights.files")),
        activation=Amount.near(compute, 0.75 * compute, 0.5 * compute, reason=Reason("activation.buffer")),
        overhead=Amount(usual, low, high, Reason("overhead.context")),
        graphs=Amount(0.0, 0.0, 0.0, Reason("graphs.none")),
        kv=Amount.near(cache, 0.01 * cache, reason=Reason("kv.layers")),
        layers=layers,
    )


def _longest(facts: ModelFacts, size: float | None, options: Options, free: float | None, slots: int) -> Amount:
    """The largest context that fits into what is free."""
    geometry = facts.geometry
    reason = Reason("kv.longest", {"limit": facts.context_length})
    if free is None or geometry is None or size is None:
        return Amount.unknown(reason)

    def fits(context: int, *, room: float) -> bool:
        shares = _shares(geometry, size, options, context * slots)
        return (shares.weights + shares.cache + shares.compute) / GIB + CONTEXT_GIB[1] <= room

    most = facts.context_length or MOST_CONTEXT
    best, careful = (_search(partial(fits, room=room), most) for room in (free, free * (1 - DOUBT)))
    return Amount(best, careful, best, reason)


def _search(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which `fits` holds; it holds for all smaller ones too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
