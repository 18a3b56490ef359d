"""The twelve cases that simple calculators get wrong, one test each. GiB unless said otherwise."""

import pytest

from models_catalog.estimate import Gpu
from models_catalog.estimate.activation import sampler_bytes
from models_catalog.estimate.gpus import total_gib
from models_catalog.inspect.config_only import facts_of_config
from tests.models_catalog.estimate.builders import (
    GEMMA_4,
    H100,
    cache_layout,
    cache_of_plan,
    case,
    codes,
    facts,
    plan,
    weights_of,
)

GIB = 2**30


def test_01_the_sampler_costs_gigabytes_for_many_sequences_and_words() -> None:
    qwen = facts("Qwen--Qwen3-8B")
    assert sampler_bytes(case(qwen, "0.16.0", sequences=1024)) / GIB == pytest.approx(5.4, abs=0.1)
    assert sampler_bytes(case(qwen, "0.19.0", sequences=1024)) / GIB == pytest.approx(2.1, abs=0.1)
    many, few = plan(qwen, sequences=1024), plan(qwen, sequences=64)
    assert cache_of_plan(few) - cache_of_plan(many) > 1.3
    shared = plan(qwen, tp=4, sequences=1024)
    assert shared.ranks[0].activation.value == many.ranks[0].activation.value  # not divided by GPUs


def test_02_versions_count_differently_by_gigabytes() -> None:
    caches = {
        v: cache_of_plan(plan("Qwen--Qwen3-14B", v, utilisation=0.9)) for v in ("0.16.0", "0.17.0", "0.18.0", "0.21.0")
    }
    assert caches["0.17.0"] - caches["0.16.0"] == pytest.approx(3.4, abs=0.2)  # the new sampler
    assert caches["0.17.0"] - caches["0.18.0"] == pytest.approx(0.12, abs=0.02)  # more workspaces
    assert caches["0.18.0"] - caches["0.21.0"] == pytest.approx(0.9, abs=0.2)  # graphs are charged


def test_03_more_gpus_than_kv_heads_divide_no_further() -> None:
    moe = facts("Qwen--Qwen3-30B-A3B")  # 4 heads for keys and values
    assert cache_layout(moe, tp=4).block_bytes == cache_layout(moe, tp=8).block_bytes
    assert cache_layout(moe, tp=2).block_bytes == 2 * cache_layout(moe, tp=4).block_bytes
    assert "kv.copied" in codes(plan(moe, tp=8))


def test_04_latent_attention_keeps_one_small_vector_on_every_gpu() -> None:
    latent = facts("deepseek-ai--DeepSeek-R1")
    assert cache_layout(latent, tp=1).block_bytes == 61 * 16 * 576 * 2
    assert cache_layout(latent, tp=8).block_bytes == cache_layout(latent, tp=1).block_bytes


def test_05_windows_are_grouped_padded_and_keep_what_is_in_flight() -> None:
    gemma = facts("google--gemma-3-27b-it")  # 52 layers with a window, 10 without
    layout = cache_layout(gemma)
    assert len(layout.groups) == 7  # 1 of full attention, 6 × 10 places for 52 layers
    assert layout.block_bytes == 10 * 16 * 2 * 16 * 128 * 2
    assert layout.request_blocks(131072) == 131072 // 16 + 6 * (-(-(1023 + 8192) // 16) + 1)
    big = facts_of_config(GEMMA_4)
    needs = [cache_layout(big, v, batched_tokens=32768) for v in ("0.25.0", "0.26.0")]
    sizes = [need.request_blocks(131072) * need.block_bytes / GIB for need in needs]
    assert sizes == pytest.approx([45.79, 70.79], abs=0.005)  # as two versions logged it


def test_06_recurrent_layers_keep_a_state_in_large_blocks() -> None:
    hybrid = facts("Qwen--Qwen3.5-9B")
    assert cache_layout(hybrid).groups[0].block == 528
    assert cache_layout(facts("Qwen--Qwen3.6-27B")).groups[0].block == 784
    assert cache_layout(facts("Qwen--Qwen3.6-35B-A3B")).groups[0].block == 1056
    assert cache_layout(facts("Qwen--Qwen3.6-35B-A3B"), kv_type="fp8").groups[0].block == 2096
    plain, saved = cache_layout(hybrid), cache_layout(hybrid, state_checkpoints=True)
    assert saved.request_blocks(528) - plain.request_blocks(528) == 3  # one more state in each of three groups
    drafted = cache_layout(facts("Qwen--Qwen3.6-35B-A3B"), draft_tokens=2, draft_full_layers=1)
    assert [group.kind for group in drafted.groups] == ["full", "state", "state", "state"]  # of 11 layers each
    wide = cache_layout(
        facts("Qwen--Qwen3.6-27B"), "0.32.0", draft_tokens=7, draft_sliding_layers=5, draft_window=2048,
        batched_tokens=2048, state_checkpoints=True,
    )  # fmt: skip
    assert [sum(g.kind == kind for g in wide.groups) for kind in ("full", "state", "sliding")] == [4, 10, 1]
    assert wide.request_blocks(262144) * wide.block_bytes / GIB == pytest.approx(21.63, abs=0.005)  # as logged


def test_07_a_gpu_is_smaller_than_its_label() -> None:
    labels = {"H100-80GB": 79.19, "A100-40GB": 39.39, "RTX 4090": 23.53, "A10G": 22.06, "T4": 14.56, "H200": 139.81}
    assert {name: total_gib(Gpu(name)) for name in labels} == labels
    assert total_gib(Gpu("H100-80GB", 79.18)) == 79.18  # what was measured comes first
    label, real = plan("Qwen--Qwen3-8B", gpu=Gpu("H100", 80.0)), plan("Qwen--Qwen3-8B", gpu=H100)
    assert cache_of_plan(label) - cache_of_plan(real) == pytest.approx(0.81 * 0.9, abs=0.001)


def test_08_quantised_models_keep_words_heads_and_vision_in_16_bits() -> None:
    assert weights_of(plan("Qwen--Qwen3-8B", scheme="awq-int4-g128")) == pytest.approx(5.69, abs=0.02)  # not 4.1
    assert weights_of(plan("Qwen--Qwen3-14B", "0.23.0", scheme="nvfp4")) == pytest.approx(9.95, abs=0.03)  # not 7


def test_09_all_experts_are_in_memory() -> None:
    small = Gpu("RTX 5080", 15.47)
    found = plan("Qwen--Qwen3-30B-A3B", "0.23.0", small, scheme="nvfp4")
    assert weights_of(found) == pytest.approx(16.9, abs=0.4)
    assert found.verdict == "does_not_fit"
    assert "kv.none" in codes(found)


def test_10_rotary_tables_tied_words_and_padded_vocabulary() -> None:
    gemma, llama4 = case(facts("google--gemma-3-12b-it")), case(facts("meta-llama--Llama-4-Scout-17B-16E-Instruct"))
    tables = [c.geometry.rope_rows * c.geometry.rope_width * 2 / GIB for c in (gemma, llama4)]
    assert tables == pytest.approx([0.5625, 2.5])
    own = weights_of(plan(facts("Qwen--Qwen3-0.6B", tie_word_embeddings=False)))
    assert own - weights_of(plan("Qwen--Qwen3-0.6B")) == pytest.approx(151936 * 1024 * 2 / GIB, abs=0.003)
    assert case(facts("ibm-granite--granite-3.1-8b-instruct")).vocab == 49216
    refused = plan("Qwen--Qwen3-14B", tp=5)
    assert refused.verdict == "does_not_fit"
    assert codes(refused)[0] == "tp.vocabulary"


def test_11_graphs_lie_beside_the_budget_and_later_inside() -> None:
    before, after = plan("Qwen--Qwen3-8B", "0.19.0"), plan("Qwen--Qwen3-8B", "0.21.0", utilisation=0.9)
    assert cache_of_plan(before) - cache_of_plan(after) == pytest.approx(after.ranks[0].graphs.value, abs=0.01)
    assert "graphs.outside" in codes(before)
    full = plan("Qwen--Qwen3-8B", "0.19.0", Gpu("RTX 3090", 23.57), utilisation=0.99)
    assert "graphs.no_room" in codes(full)
    assert full.verdict == "tight"
    assert cache_of_plan(plan("Qwen--Qwen3-8B", "0.21.0", utilisation=0.9, eager=True)) == cache_of_plan(before)
    adapters = plan("Qwen--Qwen3-8B", "0.30.0", Gpu("RTX 3090", 23.52), loras=4, lora_rank=16, context=4096)
    assert "graphs.lora" in codes(adapters)


def test_12_gpus_together_cost_each_other_memory_and_free_memory_is_a_hard_limit() -> None:
    one, two, stages = plan("Qwen--Qwen3-8B"), plan("Qwen--Qwen3-8B", tp=2), plan("Qwen--Qwen3-8B", pp=2)
    overheads = [found.ranks[0].overhead.value for found in (one, two, stages)]
    assert overheads == [0.25, 2.07, 0.07]
    assert (stages.ranks[1].kv.value or 0) < (stages.ranks[0].kv.value or 0)  # the last stage samples
    busy = plan("Qwen--Qwen3-8B", gpu=Gpu("H100-80GB", 79.19, free_gib=60.0), utilisation=0.9)
    assert busy.verdict == "does_not_fit"
    assert codes(busy)[0] == "free.too_small"
