"""What would make it fit, and the inverse questions: each answer is true when it is planned with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deployments.placement import Change, Claim, CopyView, GpuView, HostView, NoPlacement, Placement
from deployments.planner import Need, Twin, longest_context, most_people, nearest, plan
from tests.deployments.pure.plans import CPU, PYTHON, card, codes, lab, model, none, place, spec

AWQ = {
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
}


def changes(
    *hosts: HostView, of: dict[str, Any] | None = None, need: Need | None = None, twins: list[Twin] | None = None,
    **values: Any,
) -> dict[str, Change]:  # fmt: skip
    known = of or model()
    found = nearest(spec(**values), hosts, known, none(*hosts, of=known, need=need, **values), need, twins=twins or [])
    return {change.reason.code: change for change in found}


def test_a_shorter_context_is_the_longest_that_fits() -> None:
    need = Need(people=8)
    found = changes(lab(card()), need=need, options={"max_model_len": 16_384})["change.context"]
    length = found.reason.params["context"]
    assert length % 1024 == 0 and found.patch == {"options": {"max_model_len": length}}
    assert place(lab(card()), need=need, options={"max_model_len": length}).level in ("fits", "tight")
    longer = plan(spec(options={"max_model_len": length + 1024}), [lab(card())], model(), need)
    assert not isinstance(longer, Placement) or longer.level == "unlikely"


def test_a_cache_in_eight_bits_where_cards_can() -> None:
    ask: dict[str, Any] = {"options": {"max_model_len": 40_960, "gpu_memory_utilization": 0.85}}
    assert changes(lab(card()), **ask)["change.kv_fp8"].patch["options"]["kv_cache_dtype"] == "fp8"
    assert "change.kv_fp8" not in changes(lab(card("3090")), **ask)


def test_a_chosen_share_that_is_too_small_is_raised() -> None:
    found = changes(lab(card()), options={"gpu_memory_utilization": 0.5})
    assert found["change.share"].patch == {"options": {"gpu_memory_utilization": 0.9}}


def test_two_cards_where_one_is_too_small() -> None:
    found = changes(lab(*pair(joined=True)), of=model("Qwen--Qwen3-14B"))["change.gpus"]
    assert found.patch == {"gpu_count": 2} and found.placement is not None and len(found.placement.gpu_uuids) == 2


def pair(*, joined: bool) -> list[GpuView]:
    """Two cards that NVLink joins, or that talk over PCIe."""
    uuids = ["GPU-4090-0", "GPU-4090-1"]
    links = [frozenset({uuids[1 - n]}) if joined else frozenset[str]() for n in (0, 1)]
    return [card(index=n, nvlink=links[n]) for n in (0, 1)]


@pytest.mark.parametrize("priority", ["fit", "quality", "speed"])
@pytest.mark.parametrize(
    ("joined", "twin", "order"),
    [
        (True, True, ["change.gpus", "change.twin"]),
        (False, True, ["change.twin", "change.gpus_slow"]),
        (False, False, ["change.gpus_slow"]),
    ],
)
def test_more_cards_come_before_a_smaller_form_only_where_a_fast_link_joins_them(
    joined: bool, twin: bool, order: list[str], priority: Any
) -> None:
    awq = Twin(9, "Qwen3-14B-AWQ", model("Qwen--Qwen3-14B", **AWQ), {1: CopyView(70, "/models/awq", 9 << 30)})
    found = changes(
        lab(*pair(joined=joined)),
        of=model("Qwen--Qwen3-14B"),
        need=Need(priority=priority),
        twins=[awq] if twin else [],
    )
    assert [code for code in found if code in ("change.gpus", "change.gpus_slow", "change.twin")] == order


@pytest.mark.parametrize(("asked", "better"), [(3, 2), (5, 4)])
def test_a_number_of_cards_that_divides(asked: int, better: int) -> None:
    host = lab(*(card("h100", index) for index in range(6)))
    assert changes(host, gpu_count=asked)["change.gpus"].patch == {"gpu_count": better}


def test_eager_and_few_sequences_save_what_they_cost() -> None:
    """Just above what fits: graphs or the trial run's memory make the difference, both at once for a little more."""
    small = card(total_mib=20_480)
    found = changes(lab(small), of=model(), options={"max_model_len": 16_384})
    assert {"change.sequences", "change.eager"} & set(found)


def test_a_quantised_twin_that_lies_on_a_host() -> None:
    twin = Twin(
        9, "Qwen3-14B-AWQ (AWQ 4-bit)", model("Qwen--Qwen3-14B", **AWQ), {1: CopyView(70, "/models/awq", 9 << 30)}
    )
    found = changes(lab(card()), of=model("Qwen--Qwen3-14B"), twins=[twin])["change.twin"]
    assert found.patch == {"artifact_id": 9} and found.placement is not None and found.placement.copy_id == 70
    elsewhere = replace(twin, copies={2: CopyView(70, "/models/awq", 9 << 30)})
    assert "change.twin" not in changes(lab(card()), of=model("Qwen--Qwen3-14B"), twins=[elsewhere])


def test_a_form_that_no_host_has_is_named_only_where_it_would_fit_and_none_that_is_there_does() -> None:
    awq = model("Qwen--Qwen3-14B", **AWQ)
    away = Twin(9, "Qwen3-14B-AWQ", awq, size_bytes=9 << 30, model_id=4)
    here = Twin(8, "Qwen3-14B-W4", awq, {1: CopyView(70, "/models/awq", 9 << 30)})
    found = changes(lab(card()), of=model("Qwen--Qwen3-14B"), twins=[away])["change.twin_away"]
    assert found.reason.params == {"name": "Qwen3-14B-AWQ", "artifact": 9, "model": 4}
    assert not found.patch and found.placement is None
    assert "change.twin_away" not in changes(lab(card()), of=model("Qwen--Qwen3-14B"), twins=[here, away])
    assert "change.twin_away" not in changes(lab(card(total_mib=6_000)), of=model("Qwen--Qwen3-14B"), twins=[away])


def test_it_fits_when_a_run_of_ours_stops() -> None:
    runs = [Claim("r1", "small-one", 4_000), Claim("r2", "large-one", 16_000)]
    held = card(reserved_mib=20_000, used_mib=19_000, claims=tuple(runs))
    found = changes(lab(held))["change.stop"]
    assert found.reason.params == {"names": ["large-one"], "host": "lab-1"} and not found.patch
    assert found.placement is not None and found.placement.level == "tight"
    all_of_them = changes(lab(held), need=Need(context=16_384, people=2))["change.stop"]
    assert all_of_them.reason.params["names"] == ["large-one", "small-one"]


def test_it_fits_when_a_stranger_lets_go() -> None:
    found = changes(lab(card(used_mib=10_035, others=(PYTHON,))))
    assert found["change.end_process"].reason.params == {"processes": ["python3 (ada)"], "index": 0, "host": "lab-1"}


def test_memory_of_the_machine_is_held_by_runs_too() -> None:
    small = {**model("Qwen--Qwen2.5-1.5B-Instruct"), "weight_bytes": 3 << 30}
    host = lab(runtimes=(CPU,), ram_reserved_mib=60_000, ram_claims=(Claim("r1", "writer", 60_000),))
    assert changes(host, of=small)["change.stop"].reason.params["names"] == ["writer"]
    chosen = lab(runtimes=(CPU,), ram_available_mib=9_000)
    assert changes(chosen, of=small, kv_cache_gib=8)["change.kv_gib"].patch == {"kv_cache_gib": 1}


def test_nothing_is_proposed_where_memory_is_not_what_is_missing() -> None:
    assert not changes(lab(card(), copies=()))
    assert not changes(lab(card(), lost=True))


def test_an_option_among_the_further_flags_is_not_contradicted() -> None:
    found = changes(lab(card()), need=Need(people=8), extra_args=["--max-model-len", "16384"])
    assert "change.context" not in found


def test_quality_keeps_the_model_and_its_answers_first() -> None:
    ask: dict[str, Any] = {"options": {"max_model_len": 40_960, "gpu_memory_utilization": 0.85}}
    host = lab(card(), card(index=1))
    first = [list(changes(host, need=Need(priority=way), **ask)) for way in ("fit", "quality")]
    assert first[0].index("change.kv_fp8") < first[0].index("change.gpus_slow")
    assert first[1].index("change.kv_fp8") > first[1].index("change.gpus_slow")


# --- the inverse questions --------------------------------------------------------------------------------------------


def test_most_people_at_a_context_is_what_the_best_place_holds() -> None:
    hosts = [lab(card()), lab(card("l40s"), number=2)]
    answer = most_people(spec(), hosts, model(), 8192)
    assert answer is not None and answer.placement.host_id == 2 and answer.low <= answer.value
    assert place(*hosts, need=Need(context=8192, people=answer.value)).host_id == 2
    assert codes(none(*hosts, need=Need(context=8192, people=2 * answer.value))) == ["gpu.too_small"] * 2


@pytest.mark.parametrize(
    ("options", "device", "at_once"),
    [({"max_num_seqs": 3}, "gpu", 3), ({}, "cpu", 8), ({"max_num_seqs": 4}, "cpu", 4), ({}, "gpu", 256)],
)
def test_no_more_people_are_counted_than_the_engine_answers_at_once(
    options: dict[str, Any], device: Any, at_once: int
) -> None:
    facts, host = model("Qwen--Qwen2.5-1.5B-Instruct"), lab(*([card("4090")] if device == "gpu" else []))
    asked = spec(device=device, options=options, **({"kv_cache_gib": 8} if device == "cpu" else {}))
    answer = most_people(asked, [host], facts, 1024)
    assert answer is not None and answer.value == at_once
    found = plan(asked, [host], facts, Need(context=1024))
    assert not isinstance(found, NoPlacement) and found.at_once is not None and found.people is not None
    assert found.at_once.value == at_once < (found.people.value or 0)


def test_the_longest_context_for_so_many_people() -> None:
    hosts = [lab(card())]
    alone, many = (longest_context(spec(), hosts, model(), people) for people in (1, 8))
    assert alone is not None and many is not None and alone.value > many.value and many.value % 1024 == 0
    assert place(*hosts, need=Need(context=many.value, people=8)).level in ("fits", "tight")


def test_no_answer_where_nothing_fits_or_nothing_is_known() -> None:
    assert most_people(spec(), [lab(card("t4"))], model("Qwen--Qwen3-32B"), 8192) is None
    assert longest_context(spec(), [lab(card())], {"format": "hf"}, 1) is None
