"""Where a model goes by what it needs: shares, cards, links, what a card can compute, and the processor."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from deployments.engines.base import Reason, RuntimeFacts
from deployments.placement import Claim, GpuUser, RuntimeView
from deployments.planner import Need
from deployments.planner.rules import fast_link
from tests.deployments.pure.plans import CPU, CUDA, PYTHON, card, codes, lab, model, none, place

AWQ = {
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
}
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}


def test_each_placement_has_its_plan_and_the_run_keeps_it() -> None:
    done = place(lab(card()))
    assert done.plan is not None and done.people is not None and done.longest is not None
    assert (done.level, done.context, done.utilisation) == ("fits", 8192, 0.9)
    kept = json.loads(json.dumps(done.as_dict()))
    assert kept["level"] == "fits" and kept["estimate"]["weights_gib"] == pytest.approx(15.3, abs=0.2)


def test_a_stranger_on_the_card_leaves_a_smaller_share_when_that_is_enough() -> None:
    beside = card("l40s", used_mib=10_000, others=(replace(PYTHON, used_mib=9_500),))
    done = place(lab(beside))
    assert done.utilisation == 0.76 and done.level == "fits"
    assert done.reserve[0][1] + 9_500 < beside.total_mib


def test_a_stranger_that_leaves_too_little_is_named_with_what_is_needed() -> None:
    found = none(lab(card(used_mib=10_035, others=(PYTHON,))))
    (reason,) = (candidate.reason for candidate in found.reasons)
    assert reason.code == "gpu.used_by_others" and found.retryable
    assert reason.params["need_mib"] == pytest.approx(17_900, rel=0.01)
    assert reason.params["users"][0]["name"] == "python3"


def test_two_runs_share_a_card_by_what_each_needs() -> None:
    first = place(lab(card("l40s")), need=Need(priority="fit"))
    (_uuid, mib), *_rest = first.reserve
    assert mib < 22_000
    held = card("l40s", reserved_mib=mib, used_mib=mib + 400, claims=(Claim("r1", "one", mib, mib + 400),))
    second = place(lab(held), need=Need(priority="fit"))
    assert mib + second.reserve[0][1] + 1_000 < held.total_mib, "and both drivers' contexts have room"


def test_a_context_that_the_usual_share_does_not_hold_gets_a_larger_one() -> None:
    done = place(lab(card()), options={"max_model_len": 40_960})
    assert done.utilisation == 0.95 and done.level == "tight"
    assert [note.code for note in done.notes] == ["estimate.tight"]


def test_what_no_card_can_hold_is_said_of_each_card() -> None:
    found = none(lab(card(), card("t4", 1)), need=Need(context=16_384, people=8))
    assert codes(found) == ["gpu.too_small", "gpu.too_small"] and not found.retryable
    assert found.reasons[0].reason.params["need_mib"] == pytest.approx(36_000, rel=0.01)


def test_a_share_that_a_person_chose_is_kept_or_refused() -> None:
    assert place(lab(card()), options={"gpu_memory_utilization": 0.8}).utilisation == 0.8
    assert codes(none(lab(card()), options={"gpu_memory_utilization": 0.5})) == ["gpu.share_too_small"]
    # free < total × share is what the engine refuses at its start; the driver's context is taken before it looks
    assert codes(none(lab(card()), options={"gpu_memory_utilization": 0.98})) == ["gpu.busy"]


def test_between_the_number_and_its_doubt_a_start_is_allowed_and_doubted() -> None:
    done = place(lab(card()), options={"max_model_len": 34_816, "gpu_memory_utilization": 0.9})
    assert done.level == "unlikely"
    assert done.notes[-1].code == "estimate.unlikely" and done.notes[-1].params["longest"] == 31_744
    assert done.notes[-1].params["because"]["code"] == "context.too_long"


@pytest.mark.parametrize(
    ("changes", "asked", "code", "because"),
    [
        ({}, {"options": {"max_model_len": 30_720, "gpu_memory_utilization": 0.9}}, "tight", "context.close"),
        ({}, {"options": {"gpu_memory_utilization": 0.9}, "people": 5, "context": 6_144}, "tight", "requests.fit"),
        ({"model_type": "novel", "architectures": ["NovelForCausalLM"]}, {}, "unknown", "model.unchecked"),
    ],
)
def test_what_is_not_sure_says_why(changes: dict[str, Any], asked: dict[str, Any], code: str, because: str) -> None:
    need = Need(people=asked.get("people"), context=asked.get("context"))
    note = place(lab(card()), of=model(**changes), need=need, options=asked.get("options", {})).notes[-1]
    assert (note.code, note.params["because"]["code"]) == (f"estimate.{code}", because)


@pytest.mark.parametrize(
    ("version", "starts"), [("0.13.0", False), ("0.14.0", True)], ids=["its whole context", "what fits"]
)
def test_an_engine_that_cannot_shorten_the_context_must_hold_the_models_own(version: str, starts: bool) -> None:
    host = lab(card(), runtimes=(RuntimeView(1, "vllm", RuntimeFacts("/opt/a/vllm", version, "cuda")),))
    long = model("Qwen--Qwen3-8B", max_position_embeddings=131_072)
    if starts:
        assert place(host, of=long).longest is not None
    else:
        assert codes(none(host, of=long)) == ["gpu.too_small"]


def test_the_priority_decides_among_places_that_fit() -> None:
    hosts = (lab(card("l40s")), lab(card("h100"), number=2), lab(card("4090", used_mib=1_500), number=3))
    assert place(*hosts, need=Need(priority="speed")).host_id == 2
    assert place(*hosts, need=Need(priority="fit")).host_id == 3
    best = place(*hosts, need=Need(priority="speed"))
    assert [found.host_id for found in (best, *best.others)] == [2, 1, 3], "the newer, then the emptier"


@pytest.mark.parametrize(
    ("priority", "better", "worse", "why"),
    [
        ("quality", {"used_mib": 300}, {"used_mib": 1_000}, "fuller"),
        ("quality", {}, {"used_mib": 5_000, "others": (GpuUser(1, "x", "", 4_700),)}, "squeezed"),
        ("fit", {"used_mib": 3_000}, {"used_mib": 300}, "emptier"),
        ("fit", {}, {"name": "NVIDIA L40S", "total_mib": 46_068}, "larger"),
        ("speed", {}, {"capability": (8, 6)}, "older"),
        ("speed", {}, {}, "same"),
    ],
)
def test_what_comes_after_the_best_is_told_with_what_puts_it_behind(
    priority: Any, better: dict[str, Any], worse: dict[str, Any], why: str
) -> None:
    hosts = [lab(card(uuid="a", **better)), lab(card(uuid="b", **worse), number=2)]
    small = model("Qwen--Qwen2.5-1.5B-Instruct")
    for order in (hosts, hosts[::-1]):
        best = place(*order, of=small, need=Need(context=4096, priority=priority))
        (other,) = best.others
        assert (best.host_id, other.host_id) == (1, 2) and best.why == Reason(f"first.{priority}")
        assert other.why == Reason(f"behind.{why}", {"gpus": 1})
        assert other.plan is not None and other.people is not None and best.rivals == 1


def test_the_next_three_are_told_and_how_many_there_are() -> None:
    best = place(*(lab(card(uuid=f"GPU-{n}"), number=n + 1) for n in range(6)))
    assert [other.host_id for other in best.others] == [2, 3, 4] and best.rivals == 5
    alone = place(lab(card()))
    assert (alone.others, alone.rivals, alone.why) == ((), 0, Reason("first.only"))
    assert place(lab(card()), lab(card(), number=2), host_id=1).why == Reason("first.picked")
    assert not {"others", "why", "rivals", "elsewhere"} & set(best.as_dict())


def test_a_place_on_the_processor_comes_after_a_gpu() -> None:
    both = place(lab(card()), lab(number=2, runtimes=(CPU,)), of=model("Qwen--Qwen2.5-1.5B-Instruct"))
    assert [other.why.code for other in both.others if other.why] == ["behind.cpu"]


def test_a_place_that_surely_fits_comes_before_one_that_may() -> None:
    close = {"options": {"max_model_len": 40_960}}
    assert place(lab(card()), lab(card("l40s", used_mib=20_000), number=2), **close).host_id == 2


@pytest.mark.parametrize(
    ("kind", "changes", "values", "what"),
    [
        ("t4", {}, {"options": {"dtype": "bfloat16"}}, "bfloat16"),
        ("t4", {}, {"options": {"kv_cache_dtype": "fp8"}}, "fp8 KV cache"),
        ("t4", {}, {}, None),
        ("3090", AWQ, {}, None),
    ],
    ids=["bfloat16", "fp8 cache", "auto falls back to float16", "awq"],
)
def test_what_a_card_cannot_compute(
    kind: str, changes: dict[str, Any], values: dict[str, Any], what: str | None
) -> None:
    small = model("Qwen--Qwen2.5-1.5B-Instruct", **changes)
    if what is None:
        assert place(lab(card(kind)), of=small, **values)
        return
    found = none(lab(card(kind)), of=small, **values)
    assert codes(found) == ["gpu.capability"] and found.reasons[0].reason.params["what"] == what


def test_cards_before_volta_and_old_engines_with_bfloat16() -> None:
    assert codes(none(lab(card(capability=(6, 1))))) == ["gpu.capability"]
    old = RuntimeView(1, "vllm", RuntimeFacts("/opt/a/vllm", "0.8.5", "cuda"))
    found = none(
        lab(card("t4"), runtimes=(old,)), of=model("Qwen--Qwen2.5-1.5B-Instruct"), options={"max_model_len": 4096}
    )
    assert found.reasons[0].reason.params["what"] == "bfloat16"


def test_fp8_on_older_cards_saves_memory_only_and_says_so() -> None:
    done = place(lab(card("3090")), of=model(**FP8))
    assert [note.code for note in done.notes] == ["gpu.fp8_unpacked"]
    assert place(lab(card("4090")), of=model(**FP8)).notes == ()


@pytest.mark.parametrize(
    ("changes", "count", "code"),
    [
        ({}, 3, "parallel.heads"),
        ({"num_attention_heads": 30, "num_key_value_heads": 10}, 5, "parallel.vocabulary"),
        ({"num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 3 * 2**15}, 3, "parallel.kv_heads"),
        ({"intermediate_size": 11_008, **AWQ}, 4, "parallel.groups"),
        ({"intermediate_size": 12_288, **AWQ}, 4, None),
    ],
    ids=["heads", "vocabulary", "kv heads", "groups", "groups that divide"],
)
def test_a_model_is_cut_only_where_it_divides(changes: dict[str, Any], count: int, code: str | None) -> None:
    host = lab(*(card("h100", index) for index in range(8)))
    if code is None:
        assert len(place(host, of=model(**changes), gpu_count=count).gpu_uuids) == count
    else:
        assert codes(none(host, of=model(**changes), gpu_count=count)) == [code]


def test_joined_cards_go_together_and_others_are_said_to_be_slow() -> None:
    pairs = {0: "3", 1: "2", 2: "1", 3: "0"}
    cards = [card("a100", i, nvlink=frozenset({f"GPU-a100-{pairs[i]}"}), used_mib=300 * (i + 1)) for i in range(4)]
    done = place(lab(*cards), of=model("Qwen--Qwen3-32B"), gpu_count=2)
    assert set(done.gpu_uuids) == {"GPU-a100-0", "GPU-a100-3"} and not done.notes
    slow = place(lab(card("l40s"), card("l40s", 1)), of=model("Qwen--Qwen3-14B"), gpu_count=2)
    assert [note.code for note in slow.notes] == ["gpu.slow_link"]


def test_names_tell_of_links_where_a_host_does_not() -> None:
    assert fast_link([card("h100"), card("h100", 1)]) is True
    assert fast_link([card("4090"), card("4090", 1)]) is False
    assert fast_link([card("a100"), card("a100", 1)]) is True
    plain = {"name": "NVIDIA A100 80GB PCIe"}
    assert fast_link([card("a100", **plain), card("a100", 1, **plain)]) is None, "there are bridges for it"


def test_unlike_cards_are_counted_by_the_smallest() -> None:
    done = place(lab(card("l40s"), card("4090", 1)), gpu_count=2)
    assert done.plan is not None and done.plan.need_gib == pytest.approx(24_564 / 1024 * done.utilisation)
    assert "gpu.mixed_kinds" in [note.code for note in done.notes]


def test_adapters_cost_memory_on_each_card() -> None:
    plain = place(lab(card()))
    tuned = place(lab(card()), options={"enable_lora": True, "max_loras": 4, "max_lora_rank": 64})
    assert plain.plan is not None and tuned.plan is not None
    weights = [done.plan.ranks[0].weights.value or 0 for done in (plain, tuned) if done.plan]
    assert weights[1] - weights[0] > 0.5


def test_flags_and_options_are_read_alike() -> None:
    by_flags = place(lab(card()), extra_args=["--max-model-len 40k --kv-cache-dtype=fp8", "--max-num-seqs", "64"])
    by_options = place(lab(card()), options={"max_model_len": 40_000, "kv_cache_dtype": "fp8", "max_num_seqs": 64})
    assert by_flags.plan == by_options.plan and by_flags.context == 40_000


# --- the processor ----------------------------------------------------------------------------------------------------


def test_the_cache_on_a_cpu_is_as_large_as_the_need() -> None:
    small = {**model("Qwen--Qwen2.5-1.5B-Instruct"), "weight_bytes": 3 << 30}
    host = lab(runtimes=(CPU,))
    assert place(host, of=small).kv_cache_gib == 4
    assert place(host, of=small, need=Need(context=32_768, people=8)).kv_cache_gib == 7
    assert place(replace(host, ram_available_mib=7_500), of=small).kv_cache_gib == 1, "less where memory is short"
    assert place(host, of=small, kv_cache_gib=2).kv_cache_gib == 2
    found = none(host, of=small, kv_cache_gib=1, need=Need(context=32_768, people=8))
    assert codes(found) == ["host.kv_too_small"]


def test_a_cpu_is_said_to_be_for_tests() -> None:
    done = place(lab(runtimes=(CPU,)), of=model("Qwen--Qwen2.5-1.5B-Instruct"))
    assert done.notes[0].code == "cpu.for_tests" and done.level == "fits"


def test_a_gpu_comes_before_a_cpu_that_also_fits() -> None:
    small = model("Qwen--Qwen2.5-1.5B-Instruct")
    assert place(lab(runtimes=(CPU,)), lab(card(), number=2, runtimes=(CUDA,)), of=small).host_id == 2


def test_a_process_without_a_size_counts_for_all_that_nobody_claimed() -> None:
    unknown = card(used_mib=12_000, others=(GpuUser(9, "python3", "ada", None),))
    (reason,) = (candidate.reason for candidate in none(lab(unknown)).reasons)
    assert reason.code == "gpu.used_by_others" and reason.params["used_mib"] == 12_000
