"""More than the model was made for: said as what it is, before memory, and by check and planner alike."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.checklist import static
from deployments.placement import HostView, NoPlacement
from deployments.planner import Estimator, Need, longest_context, nearest, outlook, plan
from deployments.planner.asked import asked_of
from deployments.planner.length import too_long
from models_catalog.facts import ModelFacts
from tests.deployments.pure.plans import card, codes, lab, model, none, place, spec

QWEN = model("Qwen--Qwen3-8B")  # made for 40,960 tokens
GEMMA = model("google--gemma-2-9b-it")  # 8,192, every other layer by a window of 4,096


def asks(facts: dict[str, Any], version: str = "0.32.0", **values: Any) -> tuple[int, bool] | None:
    found = too_long(asked_of(spec(**values)), ModelFacts.from_dict(facts), version)
    return (found.longest, found.sure) if found is not None else None


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, None),
        ({"options": {"max_model_len": 40_960}}, None),
        ({"options": {"max_model_len": "40k"}}, None),
        ({"options": {"max_model_len": "auto"}}, None),
        ({"options": {"max_model_len": -1}}, None),
        ({"options": {"max_model_len": 40_961}}, (40_960, True)),
        ({"extra_args": ["--max-model-len", "41k"]}, (40_960, True)),
        ({"options": {"max_model_len": 999_999}, "task": "embed"}, (40_960, True)),
        ({"options": {"max_model_len": 131_072, "hf_overrides": {"max_position_embeddings": 131_072}}}, (40_960, False)),
        ({"extra_args": ["--max-model-len=131072", '--rope-scaling={"rope_type":"yarn"}']}, (40_960, False)),
        ({"options": {"max_model_len": 131_072}, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}, (40_960, False)),
        ({"options": {"max_model_len": 131_072}, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}}, (40_960, True)),
        (
            {"options": {"max_model_len": 131_072}, "env_secrets": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "x"}},
            (40_960, False),
        ),
    ],
)  # fmt: skip
def test_what_is_said_against_what_the_model_names(values: dict[str, Any], wanted: tuple[int, bool] | None) -> None:
    assert asks(QWEN, **values) == wanted


def test_a_window_that_is_not_used_ends_the_conversation() -> None:
    without = {"max_model_len": 8192, "disable_sliding_window": True}
    assert asks(GEMMA, options=without) == (4096, True) and asks(GEMMA, options={"max_model_len": 8192}) is None


@pytest.mark.parametrize(
    "host", [lab(card("h100")), lab(card("t4")), lab()], ids=["room for it", "no room for it", "a processor"]
)
def test_the_planner_says_so_before_memory(host: HostView) -> None:
    found = none(host, of=QWEN, options={"max_model_len": 999_999})
    assert codes(found) == ["context.beyond_model"] and not found.retryable
    assert dict(found.reasons[0].reason.params) | {"source": ""} == {
        "context": 999_999, "longest": 40_960, "source": "",
    }  # fmt: skip


def test_nobody_waits_for_a_host_that_comes_back() -> None:
    found = none(lab(card("h100")), lab(number=2, lost=True), of=QWEN, options={"max_model_len": 999_999})
    assert set(codes(found)) == {"context.beyond_model", "host.lost"} and not found.retryable


@pytest.mark.parametrize(
    ("facts", "kind", "wanted"),
    [(QWEN, "h100", 40_960), (GEMMA, "h100", 8192), (model("facebook--opt-2.7b"), "h100", 2048)],
    ids=["qwen", "gemma", "opt"],
)
def test_one_click_sets_the_models_own_length(facts: dict[str, Any], kind: str, wanted: int) -> None:
    asked = spec(options={"max_model_len": 999_999, "seed": 1})
    found = plan(asked, [lab(card(kind))], facts)
    assert isinstance(found, NoPlacement)
    (change,) = nearest(asked, [lab(card(kind))], facts, found)
    assert change.patch == {"options": {"max_model_len": wanted, "seed": 1}}
    (finding,) = static.of_length(asked, facts, "0.32.0", [change])
    assert (finding.level, finding.code, finding.option) == ("error", "context.beyond_model", "max_model_len")
    assert [fix.patch for fix in finding.fixes] == [change.patch]


def test_one_click_sets_what_fits_where_that_is_less() -> None:
    asked, hosts = spec(options={"max_model_len": 999_999}), [lab(card("4090"))]
    found = plan(asked, hosts, QWEN, Need(people=4))
    assert isinstance(found, NoPlacement)
    (change,) = nearest(asked, hosts, QWEN, found, Need(people=4))
    longest = change.patch["options"]["max_model_len"]
    assert 2048 <= longest < 40_960
    place(*hosts, of=QWEN, need=Need(people=4), options={"max_model_len": longest})


def test_the_check_says_it_where_there_is_no_place_at_all() -> None:
    asked = spec(extra_args=["--max-model-len", "999999"])
    (finding,) = static.of_length(asked, QWEN, "", ())
    assert finding.level == "error"
    assert finding.fixes[0].patch == {"options": {"max_model_len": 40_960}, "extra_args": []}
    allowed = spec(options={"max_model_len": 50_000}, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    (note,) = static.of_length(allowed, QWEN, "0.32.0", ())
    assert (note.level, note.code, note.fixes) == ("note", "check.context_beyond", ())
    assert static.of_length(spec(options={"max_model_len": 40_960}), QWEN, "", ()) == []


def test_what_may_be_allowed_is_planned() -> None:
    more = {"max_model_len": 60_000, "hf_overrides": {"max_position_embeddings": 131_072}}
    assert place(lab(card("h100")), of=QWEN, options=more).gpu_uuids


def test_sliders_end_at_the_models_own_length() -> None:
    """Also where that is no multiple of 1,024: the mark for what fits is one that the engine takes."""
    for longest in (40_960, 40_000, 700):
        facts = {**QWEN, "context_length": longest, "context_named": longest}
        hosts, asks_ = [lab(card("h100"))], Estimator.of(facts)
        around = outlook(spec(), hosts, facts, Need(), asks_)
        best = longest_context(spec(), hosts, facts, estimator=asks_)
        assert (around.model_longest, best.value if best else 0) == (longest, longest)
        assert around.numbers is not None and around.numbers["longest"] == longest
        place(*hosts, of=facts, options={"max_model_len": longest})
        none(*hosts, of=facts, options={"max_model_len": longest + 1})


def test_stretched_by_yarn_the_engines_version_decides() -> None:
    facts = {**QWEN, "context_length": 131_072, "context_named": 32_768,
             "rope": {"scaling": "yarn", "factor": 4.0, "original_context": 32_768}}  # fmt: skip
    assert asks(facts, "0.32.0", options={"max_model_len": 65_536}) == (32_768, True)
    assert asks(facts, "0.31.0", options={"max_model_len": 65_536}) is None
    assert asks(facts, "", options={"max_model_len": 65_536}) is None
