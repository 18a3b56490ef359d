"""What must hold for every model, flag and GPU."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from models_catalog.estimate import Gpu, Options, Plan, estimate
from models_catalog.estimate.allocator import allocated
from models_catalog.estimate.kv_cache import cache_of
from models_catalog.estimate.weights import weight_bytes
from tests.models_catalog.estimate.builders import DATA, case, facts

MODELS = sorted(path.stem for path in (DATA / "configs").glob("*.json"))
models = st.sampled_from(MODELS)
versions = st.sampled_from(["0.6.4", "0.8.5", "0.11.0", "0.16.0", "0.19.0", "0.21.0", "0.26.0", "0.32.0", ""])
gpus = st.sampled_from([Gpu("H100-80GB", 79.19), Gpu("RTX 3090", 23.57), Gpu("H200", 139.81), Gpu("GB10", 119.0)])
contexts = st.integers(1, 300_000)
batches = st.integers(1, 2048)


def caches(plan: Plan) -> list[float]:
    return [rank.kv.value for rank in plan.ranks if rank.kv.value is not None]


@settings(max_examples=150, deadline=None)
@given(models, versions, gpus, contexts, contexts)
def test_more_context_never_frees_memory(model: str, version: str, gpu: Gpu, one: int, other: int) -> None:
    less, more = (estimate(facts(model), Options(context=n), gpu, version) for n in sorted((one, other)))
    assert all(a >= b for a, b in zip(caches(less), caches(more), strict=True))
    assert (less.concurrency.value or 0) >= (more.concurrency.value or 0)
    order = ["fits", "tight", "unknown", "does_not_fit"]
    assert order.index(less.verdict) <= order.index(more.verdict)


@settings(max_examples=100, deadline=None)
@given(models, contexts, contexts, st.sampled_from(["llama.cpp", "ollama"]))
def test_more_context_never_frees_memory_with_offloading(model: str, one: int, other: int, engine: str) -> None:
    less, more = (
        estimate(facts(model), Options(engine=engine, context=n), Gpu("H200"), "") for n in sorted((one, other))
    )
    assert (less.need_gib or 0) <= (more.need_gib or 0)


@settings(max_examples=150, deadline=None)
@given(models, st.sampled_from(["0.11.0", "0.19.0", "0.32.0"]), st.sampled_from([1, 2, 4]))
def test_more_gpus_never_need_more_on_each(model: str, version: str, tp: int) -> None:
    """Of weights, of working memory and of cache for a request; what GPUs cost each other is counted apart."""
    few, many = (case(facts(model), version, tp=n) for n in (tp, 2 * tp))
    if few.geometry.heads % (2 * tp):
        return
    assert weight_bytes(many, 0) <= weight_bytes(few, 0)
    need = [cache_of(c, 0).request_blocks(4096) * cache_of(c, 0).block_bytes for c in (few, many)]
    assert need[1] <= need[0] * 1.02  # blocks beside a recurrent state are rounded to 16 tokens


@settings(max_examples=100, deadline=None)
@given(models, st.integers(1, 4))
def test_more_stages_never_hold_more_on_each(model: str, pp: int) -> None:
    few, many = (case(facts(model), pp=n) for n in (pp, pp + 1))
    largest = [max(weight_bytes(c, stage) for stage in range(c.options.pp)) for c in (few, many)]
    assert largest[1] <= largest[0]
    layers = [len(many.stage_layers(stage)) for stage in range(pp + 1)]
    assert sum(layers) == len(many.geometry.layers)


@settings(max_examples=150, deadline=None)
@example("Qwen--Qwen3.6-27B", "0.26.0", Gpu("H100-80GB", 79.19), 32, 33)
@given(models, versions, gpus, batches, batches)
def test_more_sequences_never_leave_more_cache(model: str, version: str, gpu: Gpu, one: int, other: int) -> None:
    less, more = (
        estimate(facts(model), Options(sequences=n, batched_tokens=8192, context=4096), gpu, version)
        for n in sorted((one, other))
    )
    assert all(a >= b for a, b in zip(caches(less), caches(more), strict=True))


@settings(max_examples=150, deadline=None)
@given(models, st.sampled_from(["0.11.0", "0.19.0", "0.26.0", "0.32.0"]), contexts, st.floats(0.01, 40))
def test_the_longest_request_fits_and_one_token_more_does_not(
    model: str, version: str, context: int, kv_gib: float
) -> None:
    def asked(tokens: int) -> Plan:
        return estimate(facts(model), Options(context=tokens, kv_gib=kv_gib, batched_tokens=2048), Gpu("H200"), version)

    longest = int(asked(context).max_len.value or 0)
    if longest < 1:
        return
    assert asked(longest).verdict != "does_not_fit"
    if longest < max(context, facts(model).context_length or 0):  # memory is the limit, not the model
        assert asked(longest + 1).verdict == "does_not_fit"


@settings(max_examples=200, deadline=None)
@given(models, versions, gpus, contexts, st.booleans(), st.sampled_from(["", "fp8-block128", "awq", "nvfp4", "none"]))
def test_numbers_lie_in_their_ranges(
    model: str, version: str, gpu: Gpu, context: int, eager: bool, scheme: str
) -> None:
    plan = estimate(facts(model), Options(context=context, eager=eager, scheme=scheme), gpu, version)
    amounts = [amount for rank in plan.ranks for amount in rank.amounts().values()]
    for amount in (*amounts, plan.kv_tokens, plan.concurrency, plan.max_len):
        if amount.value is not None:
            assert amount.low is None or amount.low <= amount.value
            assert amount.high is None or amount.value <= amount.high
    assert plan.reasons
    assert plan.to_dict()["verdict"] in ("fits", "tight", "does_not_fit", "unknown")


@given(st.integers(1, 2**32), st.booleans())
def test_the_allocator_never_takes_less_nor_much_more(size: int, whole: bool) -> None:
    taken = allocated(size, whole_segments=whole)
    assert size <= taken < size + 2 * 2**20
    assert allocated(size + 1, whole_segments=whole) >= taken
