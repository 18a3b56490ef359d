"""Launches that engines logged, each for one rule that the tables of reports do not show. GiB unless said otherwise."""

from typing import Any

import pytest

from models_catalog.estimate import Gpu, Options
from models_catalog.estimate.files import file_bytes
from models_catalog.estimate.offload import cache_bytes, compute_bytes
from models_catalog.estimate.schemes import PLAIN
from models_catalog.estimate.versions import parse
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config
from tests.models_catalog.estimate.builders import cache_layout, cache_of_plan, case, codes, facts, plan, weights_of

MIB, BILLION = 2**20, 10**9
LLAMA_3 = facts("meta-llama--Llama-3.1-8B-Instruct")
NEMOTRON: dict[str, Any] = {  # NVIDIA-Nemotron-3-Nano-4B
    "model_type": "nemotron_h", "hidden_size": 3136, "intermediate_size": 12544, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 96, "mamba_head_dim": 80, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "vocab_size": 131072, "max_position_embeddings": 262144,
    "hybrid_override_pattern": "M-" * 17 + "M*" * 4, "torch_dtype": "bfloat16",
}  # fmt: skip
LFM: dict[str, Any] = {  # LFM2.5-1.2B
    "model_type": "lfm2", "hidden_size": 2048, "intermediate_size": 12288, "block_auto_adjust_ff_dim": True,
    "block_multiple_of": 256, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "conv_L_cache": 3, "vocab_size": 65536, "max_position_embeddings": 128000, "torch_dtype": "bfloat16",
    "layer_types": ["conv"] * 10 + ["full_attention"] * 6,
}  # fmt: skip
KIMI: dict[str, Any] = {  # Kimi-Linear-48B-A3B
    "model_type": "kimi_linear", "hidden_size": 2304, "intermediate_size": 9216, "moe_intermediate_size": 1024,
    "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32, "num_experts": 256,
    "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 163840,
    "model_max_length": 1048576, "torch_dtype": "bfloat16",
    "linear_attn_config": {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
                           "full_attn_layers": [4, 8, 12, 16, 20, 24, 27]},
}  # fmt: skip
GLM: dict[str, Any] = {  # GLM-5.1
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
    "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048,
    "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "vocab_size": 154880,
    "max_position_embeddings": 202752, "index_topk": 2048, "index_n_heads": 32,
    "index_head_dim": 128, "torch_dtype": "bfloat16",
}  # fmt: skip


def counted(found: ModelFacts, of: Gpu | None = None, **asked: Any) -> tuple[float | None, float]:
    """(tokens, requests at once) with a cache of a known size."""
    version = asked.pop("version")
    result = plan(found, version, of or Gpu("H100"), **asked)
    return result.kv_tokens.value, round(result.concurrency.value or 0, 2)


def test_layers_that_are_one_thing_alone() -> None:
    """Nemotron-H in 0.13, 11.15 GiB: blocks of 992 tokens, seven groups, 208,320 tokens and 98.20 requests."""
    model = facts_of_config(NEMOTRON)
    assert cache_layout(model, "0.13.0", kv_type="fp8").groups[0].block == 992
    found = counted(model, version="0.13.0", kv_gib=11.15, kv_type="fp8", context=8192)
    assert found == (208_320, pytest.approx(98.20, abs=0.01))
    assert weights_of(plan(model)) * 2**30 / 2 == pytest.approx(3.97 * BILLION, rel=0.01)


def test_short_convolutions_keep_their_last_columns() -> None:
    """LFM2.5 in 0.26 with a saved state, 13.33 GiB: 70.93 requests of 32,768 tokens."""
    asked = {"kv_gib": 13.326, "kv_type": "fp8", "block_size": 16, "context": 32768, "state_checkpoints": True}
    assert counted(facts_of_config(LFM), version="0.26.0", **asked)[1] == pytest.approx(70.93, abs=0.01)
    assert file_bytes(facts_of_config(LFM).geometry, PLAIN) / 2**30 == pytest.approx(2.18, abs=0.01)  # type: ignore[arg-type]


def test_kimis_delta_attention_beside_a_latent_one() -> None:
    """0.11.1 on two GPUs: blocks of 960 tokens, 1.89 % of a state's page is padding."""
    layout = cache_layout(facts_of_config(KIMI), "0.11.1", tp=2)
    assert layout.groups[0].block == 960
    state = 32 * 128 * 128 * 4 / 2 + 3 * 32 * 128 * 3 * 2 / 2
    assert 960 * 576 * 2 / state == pytest.approx(1.0189, abs=0.0001)


def test_an_indexer_beside_a_latent_vector() -> None:
    """GLM-5.1 on eight H200, 32.11 GiB: 344,192 tokens."""
    model = facts_of_config(GLM)
    found = counted(model, version="0.19.1", kv_gib=32.11, context=202752, block_size=64, tp=8)
    assert found == (pytest.approx(344_192, rel=0.0005), pytest.approx(1.70, abs=0.005))
    whole = weights_of(plan(model, "0.19.1", tp=8))
    without = weights_of(plan(facts_of_config({**GLM, "index_topk": None}), "0.19.1", tp=8))
    assert whole - without == pytest.approx(78 * 9.4e6 * 2 / 2**30, rel=0.01)  # the indexer is whole on every GPU


def test_states_are_saved_by_default_from_0_27_on() -> None:
    """Qwen3.5 27B, 19.54 GiB without any flag: 313,650 tokens are 1.1965 requests of 262,144."""
    model = facts("Qwen--Qwen3.6-27B")
    assert counted(model, version="0.28.0", kv_gib=19.54, context=262144)[0] == pytest.approx(313_650, rel=0.001)
    assert cache_layout(model, "0.26.0").request_blocks(784) < cache_layout(model, "0.27.0").request_blocks(784)
    assert not cache_layout(model, "0.28.0", state_checkpoints=False).state_checkpoints


def test_the_second_runner_meets_no_sorting_and_keeps_counts_of_words() -> None:
    """Qwen2.5 1.5B in 0.28 without graphs: 3.25 consumed, 0.5 at the peak, 17.36 left of 21.12."""
    found = plan("Qwen--Qwen2.5-1.5B-Instruct", "0.28.1rc1.dev50", Gpu("TITAN RTX", 23.47), utilisation=0.9,
                 batched_tokens=8192, sequences=256, eager=True, context=4096)  # fmt: skip
    rank = found.ranks[0]
    assert (rank.weights.value or 0) + (rank.overhead.value or 0) == pytest.approx(3.25, abs=0.03)
    assert rank.activation.value == pytest.approx(0.5, abs=0.05)
    assert cache_of_plan(found) == pytest.approx(17.36, abs=0.05)
    first, second = (
        plan("Qwen--Qwen2.5-1.5B-Instruct", version, Gpu("H100"), batched_tokens=8192, sequences=1024).ranks[0]
        for version in ("0.24.0", "0.29.0")
    )
    assert (first.activation.value or 0) > (second.activation.value or 0) + 0.4


def test_two_cards_without_fast_links_cost_each_other_little() -> None:
    """Qwen3 32B on two RTX PRO 6000 in 0.27: 30.59 loaded, 8.22 left of 40.47."""
    gpu = Gpu("RTX PRO 6000", 95.0)
    found = plan("Qwen--Qwen3-32B", "0.27.1", gpu, tp=2, utilisation=0.426, context=32768)
    assert weights_of(found) == pytest.approx(30.59, abs=0.01)
    assert cache_of_plan(found) == pytest.approx(8.22, abs=0.2)


def test_the_second_runner_came_family_by_family() -> None:
    """Llama 3.1 8B on an A40 in 0.26 has it: 195,760 tokens."""
    found = plan(LLAMA_3, "0.26.0", Gpu("A40"), utilisation=0.9, context=4096, sequences=256)
    assert found.kv_tokens.value == pytest.approx(195_760, rel=0.002)
    qwen, other = facts("Qwen--Qwen3-8B"), facts("microsoft--phi-4")
    assert [case(qwen, f"0.{minor}.0").runner_v2 for minor in (21, 22)] == [False, True]
    assert [case(LLAMA_3, f"0.{minor}.0").runner_v2 for minor in (22, 23)] == [False, True]
    assert [case(other, f"0.{minor}.0").runner_v2 for minor in (24, 25)] == [False, True]
    assert [case(qwen, f"0.{minor}.0", scheme="fp8-channel").runner_v2 for minor in (23, 24)] == [False, True]
    moe = facts("Qwen--Qwen3-30B-A3B")
    assert [case(moe, f"0.{minor}.0").runner_v2 for minor in (28, 29)] == [False, True]


def test_gpt_oss_is_not_padded_on_intel() -> None:
    """20b on an Arc Pro B60 in 0.29: 12.87, and one request of 131,072 tokens fits."""
    found = plan(
        "openai--gpt-oss-20b", "0.29.0", Gpu("Arc Pro B60", 22.71), utilisation=0.8, context=131072, eager=True
    )
    assert weights_of(found) == pytest.approx(12.87, rel=0.01)
    assert found.concurrency.value == pytest.approx(1.01, abs=0.15)


def test_graphs_are_taken_out_in_0_20_already() -> None:
    assert case(LLAMA_3, "0.20.0").charges_graphs
    assert not case(LLAMA_3, "0.19.1").charges_graphs
    assert not case(LLAMA_3, "0.27.0").charges_graphs  # the second runner did not estimate them at first
    assert case(LLAMA_3, "0.28.0").charges_graphs


def test_a_gpu_whose_driver_tells_no_size_gets_small_batches() -> None:
    """A GB10 has 2,048 tokens a step and 256 requests by default (0.13), though it has 120 GiB."""
    found = case(LLAMA_3, "0.13.0", Gpu("NVIDIA GB10", 119.6))
    assert (found.batched_tokens, found.sequences) == (2048, 256)


def test_replicas_share_the_experts() -> None:
    """Qwen3 30B, two replicas in 0.12: 29.88 each, of 56.9."""
    assert weights_of(plan("Qwen--Qwen3-30B-A3B", "0.12.0", dp=2)) == pytest.approx(29.88, abs=0.1)
    whole = plan("Qwen--Qwen3-30B-A3B", "0.5.0", engine="sglang", dp=2)
    assert weights_of(whole) == pytest.approx(56.9, abs=0.2)


def test_the_first_engine_on_cards_of_any_kind() -> None:
    """R1-Distill-Qwen 7B on a V100 in 0.7.3: 14.27, 1.40 and 0.09; 12.80 left of 28.57."""
    model = facts("Qwen--Qwen2.5-7B-Instruct")
    found = plan(model, "0.7.3", Gpu("V100-32GB", 31.74), utilisation=0.9, context=2048)
    assert cache_of_plan(found) == pytest.approx(12.80, abs=0.1)


def test_a_gguf_packs_words_too() -> None:
    """Llama 3.2 3B in Q8_0: 3.26."""
    model = facts("meta-llama--Llama-3.2-1B-Instruct", hidden_size=3072, intermediate_size=8192, num_hidden_layers=28,
                  num_attention_heads=24, head_dim=128)  # fmt: skip
    assert weights_of(plan(model, "0.8.2 (V0)", scheme="q8_0")) == pytest.approx(3.26, abs=0.02)


def test_the_files_own_packing_decides_on_the_cache_s_format() -> None:
    packed = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    model = facts("Qwen--Qwen3-8B", quantization_config=packed)
    assert model.kv_scheme == "fp8"
    own, told, before = (plan(model, v, kv_gib=10.0, kv_type=t).kv_tokens.value or 0
                         for v, t in (("0.20.0", "auto"), ("0.20.0", "bfloat16"), ("0.10.0", "auto")))  # fmt: skip
    assert own == pytest.approx(2 * told, rel=0.001)
    assert before == told


def test_a_model_that_keeps_nothing_needs_no_cache() -> None:
    model = facts_of_config({
        "model_type": "xlm-roberta", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "vocab_size": 250002, "max_position_embeddings": 8194, "torch_dtype": "float16",
    })  # fmt: skip
    found = plan(model, "0.19.0", Gpu("L4"))
    assert weights_of(found) == pytest.approx(1.06, abs=0.03)  # 0.57 billion parameters
    assert "kv.unneeded" in codes(found)
    assert found.verdict == "fits"


@pytest.mark.parametrize(
    ("model", "context", "flash", "logged"),
    [
        (LLAMA_3, 8192, True, 258.5),
        (LLAMA_3, 8192, False, 560.0),
        (facts("llama-2-7b"), 4096, False, 296.0),
        (facts("mistralai--Mistral-7B-Instruct-v0.2"), 32768, False, 2144.0),
        (facts("Qwen--Qwen3.5-9B"), 262144, True, 808.02),
    ],
    ids=["flash", "plain", "llama 2", "long", "recurrent"],
)
def test_llama_cpp_s_compute_buffer(model: ModelFacts, context: int, flash: bool, logged: float) -> None:
    """MiB, as builds of 2024 and 2025 log them."""
    assert model.geometry is not None
    size = compute_bytes(model.geometry, Options(flash_attention=flash), context)
    assert size / MIB == pytest.approx(logged, abs=0.1)


def test_llama_cpp_keeps_a_state_for_each_request() -> None:
    """Qwen3.5 9B, two requests, q8_0: 4,352 MiB of keys and values and 100.50 of states."""
    geometry = facts("Qwen--Qwen3.5-9B").geometry
    assert geometry is not None
    size = cache_bytes(geometry, Options(kv_type="q8_0", parallel=2), 262144)
    assert size / MIB == pytest.approx(4352 + 100.5)


def test_sglang_s_share_is_of_what_is_free_when_it_loads() -> None:
    """QwQ 32B on four cards of 23.5 GiB by default: 15.54 loaded, 46,611 tokens."""
    qwq = facts("Qwen--Qwen2.5-14B-Instruct", num_hidden_layers=64, intermediate_size=27648)
    found = plan(qwq, "0.4.3", Gpu("RTX 4090", 23.53), engine="sglang", tp=4)
    assert weights_of(found) == pytest.approx(15.54, abs=0.2)
    assert found.kv_tokens.value == pytest.approx(46_611, rel=0.1)


@pytest.mark.parametrize(
    ("text", "minor"), [("0.19.1rc1", 19), ("v0.9.2", 9), ("0.13.0+faa43dbf.nv26.01", 13), ("0.19.2rc1.dev8+g4b7", 19)]
)
def test_versions_as_builds_call_themselves(text: str, minor: int) -> None:
    found = parse(text)
    assert found is not None
    assert found.minor == minor
