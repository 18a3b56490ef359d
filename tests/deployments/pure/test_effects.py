"""What another value of a setting would change, said beside it: the same as planning with it would say."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.pages.effects import said, texts
from deployments.placement import HostView
from deployments.planner import Effect, Estimator, Need, Outlook, outlook
from tests.deployments.pure.plans import PYTHON, card, lab, model, place, spec

TWO = (card("l40s"), card("l40s", index=1))


def look(*cards: Any, of: dict[str, Any] | None = None, host: HostView | None = None, **values: Any) -> Outlook:
    facts = of or model()
    return outlook(spec(**values), [host or lab(*cards)], facts, Need(), Estimator.of(facts))


def by_name(around: Outlook) -> dict[str, Effect]:
    return {effect.name: effect for effect in around.effects}


@pytest.mark.parametrize("name", ["Qwen--Qwen3-8B", "google--gemma-3-27b-it", "Qwen--Qwen3-30B-A3B"])
def test_an_effect_is_the_difference_of_two_plans(name: str) -> None:
    facts = model(name)
    around = look(card("h100"), of=facts)
    found = by_name(around)
    assert {"kv_cache_dtype", "enforce_eager", "max_num_seqs", "max_num_batched_tokens", "block_size"} <= set(found)
    said_share = {"gpu_memory_utilization": around.spot.share if around.spot else 0.9}
    before = place(lab(card("h100")), of=facts, options=said_share)
    for option, effect in found.items():
        after = place(lab(card("h100")), of=facts, options={**said_share, option: effect.value})
        assert before.plan is not None and after.plan is not None, option
        for kind, part in zip("wagok", ("weights", "activation", "graphs", "overhead", "kv"), strict=True):
            old, new = (getattr(found_.plan.ranks[0], part).value for found_ in (before, after))
            assert effect.parts.get(kind, 0.0) == pytest.approx(new - old, abs=0.051), (option, kind)
        assert before.people is not None and after.people is not None
        assert effect.people == (int(before.people.value or 0), int(after.people.value or 0)), option


def test_words_of_effects() -> None:
    found = {name: said(effect) for name, effect in by_name(look(card("l40s"))).items()}
    assert found["kv_cache_dtype"].startswith("fp8 instead of auto: room for about ")
    assert (
        found["enforce_eager"].startswith("On: CUDA graphs \u2212\xa0") and "KV cache +\xa0" in found["enforce_eager"]
    )
    assert found["max_num_seqs"].startswith("64 instead of 256: ")
    assert found["disable_hybrid_kv_cache_manager"] == "On: changes nothing of the memory here."


def test_two_gpus_hold_half_of_the_weights_each_and_one_that_cannot_is_said() -> None:
    found = by_name(look(*TWO))["gpu_count"]
    assert (found.value, found.now, found.fits) == (2, 1, True) and found.parts["w"] < -5
    around = look(*TWO, of=model("Qwen--Qwen3-30B-A3B", torch_dtype="bfloat16"), gpu_count=2)
    one = by_name(around)["gpu_count"]
    assert (one.value, one.fits) == (1, False)
    assert texts(around)["tensor_parallel_size"] == "1 instead of 2: not possible there now."
    assert "gpu_count" not in by_name(look(card("l40s")))  # there is no second one


def test_what_stands_among_the_flags_or_has_no_numbers_is_left_alone() -> None:
    assert "kv_cache_dtype" not in by_name(look(card("l40s"), extra_args=["--kv-cache-dtype", "fp8"]))
    assert not look(card("l40s"), of={"format": "hf", "tasks": ["generate"]}).effects


def test_adapters_have_effects_once_they_are_used() -> None:
    assert "max_loras" not in by_name(look(card("l40s")))
    found = by_name(look(card("l40s"), options={"enable_lora": True}))
    assert found["enable_lora"].value is False and {"max_loras", "max_lora_rank"} <= set(found)


def test_on_a_processor_one_gib_more_holds_more_conversations() -> None:
    around = look(of=model("Qwen--Qwen2.5-1.5B-Instruct"), host=lab(), device="cpu", kv_cache_gib=2)
    (found,) = around.effects
    assert (found.name, found.value, found.now) == ("kv_cache_gib", 3, 2)
    assert found.people is not None and found.people[1] > found.people[0]


def test_the_share_says_what_a_hundredth_is_worth_and_what_is_free() -> None:
    told = texts(look(card("l40s")))["gpu_memory_utilization"]
    assert told == "Now 0.90; at most 0.97 is free there. Each 0.01 is about 0.4 GiB of KV cache."


def test_what_would_fit_without_the_others_is_known() -> None:
    shared = look(card("l40s", used_mib=10_000, others=(PYTHON,)))
    assert shared.alone is not None and shared.spot is not None and shared.spot.fit.people is not None
    assert (shared.alone.value or 0) > (shared.spot.fit.people.value or 0)
    assert look(card("l40s")).alone is None


def test_where_nothing_fits_the_words_say_what_would() -> None:
    facts = model()
    around = outlook(
        spec(options={"max_model_len": 40_960}), [lab(card("l40s"))], facts, Need(people=6), Estimator.of(facts)
    )
    found = by_name(around)
    assert found["kv_cache_dtype"].helps and said(found["kv_cache_dtype"]).endswith("then it fits.")
    assert not found["enforce_eager"].helps and found["enforce_eager"].fits
