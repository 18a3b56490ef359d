"""vLLM on a processor, llama.cpp, Ollama, SGLang."""

import pytest

from models_catalog.estimate import Gpu, Options
from models_catalog.estimate.offload import cache_bytes
from models_catalog.facts import Quantisation
from models_catalog.inspect.config_only import facts_of_config
from tests.models_catalog.estimate.builders import GEMMA_4, SMOL, cache_of_plan, codes, facts, plan

CPU = Gpu("cpu", total_gib=16.0, cpu=True)
MIB = 2**20


@pytest.mark.parametrize(("context", "requests"), [(1024, 45.50), (2048, 22.75)])
def test_vllm_on_a_processor_has_exactly_the_logged_tokens(context: int, requests: float) -> None:
    found = plan(facts_of_config(SMOL), "0.32.0", CPU, kv_gib=1.0, context=context)
    assert (found.kv_tokens.value, found.concurrency.value) == (46_592, requests)
    assert found.kv_tokens.low == found.kv_tokens.high == 46_592
    assert found.verdict == "fits"


def test_on_a_processor_the_machine_s_memory_is_the_limit() -> None:
    found = plan(facts_of_config(SMOL), "0.32.0", CPU, kv_gib=20.0)
    assert found.verdict == "does_not_fit"
    assert "ram.too_small" in codes(found)


def test_llama_cpp_s_cache_is_the_logged_one() -> None:
    """DeepSeek-R1 at 16k: 1,098 MiB."""
    geometry = facts("deepseek-ai--DeepSeek-R1").geometry
    assert geometry is not None
    assert cache_bytes(geometry, Options(kv_type="f16"), 16384) / MIB == pytest.approx(1098.0)


def test_llama_cpp_puts_some_layers_on_the_gpu() -> None:
    model = facts("Qwen--Qwen3-8B", torch_dtype="bfloat16")
    gpu = Gpu("RTX 3090", 23.57)
    full, half = (plan(model, "", gpu, engine="llama.cpp", gpu_layers=n, context=8192) for n in (36, 18))
    assert half.ranks[0].weights.value == pytest.approx((full.ranks[0].weights.value or 0) / 2)
    assert cache_of_plan(half) == pytest.approx(cache_of_plan(full) / 2)
    assert "engine.less_certain" in codes(full)


def test_llama_cpp_s_quantised_cache_is_smaller() -> None:
    model, gpu = facts("Qwen--Qwen3-8B"), Gpu("RTX 3090", 23.57)
    sizes = [
        cache_of_plan(plan(model, "", gpu, engine="llama.cpp", kv_type=t, context=8192))
        for t in ("f16", "q8_0", "q4_0")
    ]
    assert sizes[1] / sizes[0] == pytest.approx(34 / 64)
    assert sizes[2] / sizes[0] == pytest.approx(18 / 64)
    slow = plan(model, "", gpu, engine="llama.cpp", context=32768, flash_attention=False)
    fast = plan(model, "", gpu, engine="llama.cpp", context=32768)
    assert (slow.ranks[0].activation.value or 0) > (fast.ranks[0].activation.value or 0) + 1


def test_ollama_needs_a_context_for_each_request_at_once() -> None:
    model, gpu = facts("Qwen--Qwen3-8B"), Gpu("RTX 3090", 23.57)
    one, four = (plan(model, "", gpu, engine="ollama", parallel=n, context=4096, scheme="q4_k_m") for n in (1, 4))
    assert cache_of_plan(four) == pytest.approx(4 * cache_of_plan(one))
    assert four.concurrency.value == 4
    assert (four.ranks[0].weights.value or 0) < 6


def test_a_file_too_large_for_the_gpu_does_not_fit_and_the_longest_context_is_named() -> None:
    model = facts("Qwen--Qwen3-8B")
    assert plan(model, "", Gpu("T4"), engine="llama.cpp").verdict == "does_not_fit"
    found = plan(model, "", Gpu("RTX 3090", 23.57), engine="llama.cpp", context=4096)
    longest = int(found.max_len.value or 0)
    assert plan(model, "", Gpu("RTX 3090", 23.57), engine="llama.cpp", context=longest).verdict != "does_not_fit"


def test_an_unknown_packing_leaves_the_cache_known() -> None:
    found = plan(facts("Qwen--Qwen3-8B"), "", Gpu("RTX 3090", 23.57), engine="llama.cpp", scheme="IQ9", context=4096)
    assert found.ranks[0].weights.value is None
    assert cache_of_plan(found) > 0
    assert found.verdict == "unknown"


def test_sglang_gives_more_cache_than_vllm_and_is_less_certain() -> None:
    model = facts("Qwen--Qwen3-8B")
    theirs = plan(model, "0.5.0", engine="sglang", static_share=0.9)
    ours = plan(model, "0.19.0", utilisation=0.9)
    assert cache_of_plan(theirs) > cache_of_plan(ours) + 2
    assert "engine.less_certain" in codes(theirs)
    assert (theirs.ranks[0].kv.high or 0) - (theirs.ranks[0].kv.low or 0) > 2


def test_sglang_refuses_what_cannot_be_divided_and_says_when_the_gpu_is_unknown() -> None:
    assert plan("Qwen--Qwen3-14B", "", engine="sglang", tp=5).verdict == "does_not_fit"
    assert plan("Qwen--Qwen3-14B", "", Gpu(), engine="sglang").verdict == "unknown"


def test_llama_cpp_keeps_a_window_only_where_layers_have_one() -> None:
    model = facts_of_config(GEMMA_4)
    short, long = (plan(model, "", Gpu("H200"), engine="llama.cpp", context=n, scheme="q4_k_m") for n in (8192, 65536))
    assert cache_of_plan(long) < 6 * cache_of_plan(short)  # not 8: 50 of 60 layers do not grow


def test_headers_of_a_packed_file_give_its_weights() -> None:
    """A GGUF in vLLM: no formula for its packing, but the file's size."""
    model = facts("Qwen--Qwen3-8B").model_copy(
        update={
            "weight_bytes": 5_027_783_488,
            "quantisation": Quantisation(method="gguf", bits=4, label="Q4_K_M"),
            "format": "gguf",
        }
    )
    found = plan(model, "0.19.0", context=8192)
    assert found.ranks[0].weights.value == pytest.approx(5_027_783_488 / 2**30, rel=0.02)
    assert found.verdict == "fits"


def test_adapters_take_memory_from_the_start() -> None:
    """Two of rank 16 on Llama 8B: 0.16 GiB."""
    plain, adapted = (plan("meta-llama--Llama-3.1-8B-Instruct", loras=n, lora_rank=16) for n in (0, 2))
    more = (adapted.ranks[0].weights.value or 0) - (plain.ranks[0].weights.value or 0)
    assert more == pytest.approx(0.156, abs=0.001)


def test_a_drafter_is_a_layer_more() -> None:
    model = facts("Qwen--Qwen3.6-27B")
    plain, drafted = (plan(model, "0.26.0", draft_full_layers=n, draft_tokens=2 * n) for n in (0, 1))
    more = (drafted.ranks[0].weights.value or 0) - (plain.ranks[0].weights.value or 0)
    assert more == pytest.approx(0.8, abs=0.1)
    assert (drafted.concurrency.value or 0) < (plain.concurrency.value or 0)


def test_files_that_hold_more_than_the_shape_widen_the_range() -> None:
    model = facts("Qwen--Qwen3-0.6B").model_copy(update={"weight_bytes": 1_503_300_328})  # tied words stored twice
    found = plan(model, context=8192)
    weights = found.ranks[0].weights
    assert weights.value == plan("Qwen--Qwen3-0.6B", context=8192).ranks[0].weights.value
    assert weights.high == pytest.approx(1.4, abs=0.05)
    assert "weights.differ" in codes(found)


def test_a_method_s_flag_keeps_the_layout_that_the_files_have() -> None:
    model = facts("Qwen--Qwen3-8B", quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    own, told = plan(model), plan(model, scheme="gptq_marlin")
    assert own.ranks[0].weights == told.ranks[0].weights
    assert (own.ranks[0].weights.value or 0) > (plan(model, scheme="gptq-int4-g128").ranks[0].weights.value or 0)
