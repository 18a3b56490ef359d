"""The page's own arithmetic of a plan (static/panel/fit.js) says what the planner says, and at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page

from deployments.placement import HostView, NoPlacement
from deployments.planner import Estimator, Need, outlook, plan
from tests.deployments.pure.plans import card, lab, model, spec

FIT = Path(__file__).parents[2] / "static" / "panel" / "fit.js"
# Full attention, sliding windows beside it, experts, recurrent layers, a latent vector, few key heads.
MODELS = ["Qwen--Qwen3-8B", "google--gemma-3-27b-it", "Qwen--Qwen3-30B-A3B", "openai--gpt-oss-20b", "Qwen--Qwen2.5-1.5B-Instruct",
          "Qwen--Qwen3.5-9B", "deepseek-ai--DeepSeek-V2-Lite-Chat", "google--gemma-2-9b-it"]  # fmt: skip
CONTEXTS = [None, 1024, 2048, 5000, 8192, 16_384, 20_000, 32_768, 40_960]
PEOPLE = [None, 1, 3, 8, 40, 300]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page()
    opened.add_script_tag(path=str(FIT))
    yield opened
    opened.close()


def at_page(page: Page, numbers: dict[str, Any], asks: list[tuple[int | None, int | None]]) -> list[dict[str, Any]]:
    return page.evaluate(
        "([d, asks]) => asks.map(([c, p]) => { const said = Fit.answer(d, c, p); return { ...said, room: Fit.room(d, said) } })",
        [numbers, asks],
    )


def same(page: Page, host: HostView, facts: dict[str, Any], asks: list[Any], priority: Any, **values: Any) -> int:
    """How many of the questions the page answered; each answer is compared with the planner's."""
    asks_of = Estimator.of(facts)
    numbers = outlook(spec(**values), [host], facts, Need(priority=priority), asks_of).numbers
    if numbers is None:
        return 0
    for (context, people), said in zip(asks, at_page(page, numbers, asks), strict=True):
        options = {**values.get("options", {}), **({"max_model_len": context} if context else {})}
        asked = spec(**{**values, "options": options})
        found = plan(asked, [host], facts, Need(people=people, priority=priority), estimator=asks_of)
        where = (facts.get("model_type"), context, people, priority, said)
        if isinstance(found, NoPlacement):
            assert said["level"] == "no", where
            continue
        assert (said["level"], said["context"]) == (found.level, found.context), where
        assert found.plan is not None and found.people is not None and found.people.value is not None
        if found.device == "gpu":
            assert said["share"] == pytest.approx(found.utilisation, abs=1e-9), where
        else:
            assert said["kv"][0] == found.kv_cache_gib, where
        assert said["kv"] == pytest.approx([rank.kv.value for rank in found.plan.ranks], abs=1e-6), where
        # One block more or less: both sides round a float that is a sum of many.
        assert said["people"][0] == pytest.approx(found.people.value, abs=1.01 / said["one"]), where
        assert found.at_once is not None and found.at_once.value is not None
        assert abs(said["room"] - int(found.at_once.value)) <= (0 if said["room"] < int(said["people"][0]) else 1), (
            where
        )
    return len(asks)


GRID = [(context, people) for context in CONTEXTS for people in PEOPLE]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("priority", ["quality", "fit"])
def test_the_page_says_what_the_planner_says(page: Page, name: str, priority: Any) -> None:
    answered = 0
    for kind in ("4090", "l40s", "h100"):
        answered += same(page, lab(card(kind)), model(name), GRID, priority)
        busy = card(kind, used_mib=9_000, reserved_mib=8_000)
        answered += same(page, lab(busy), model(name), GRID, priority)
    assert answered >= len(GRID)


def test_on_several_gpus_by_a_share_that_was_said_and_on_a_processor(page: Page) -> None:
    two = [card("l40s", index=n) for n in (0, 1)]
    assert same(page, lab(*two), model(), GRID, "quality", gpu_count=2)
    said = {"gpu_memory_utilization": 0.7, "enforce_eager": True}
    assert same(page, lab(card("l40s")), model(), GRID, "quality", options=said)
    stages = {"pipeline_parallel_size": 2}
    assert same(page, lab(*two), model(), GRID, "speed", options=stages)
    few = [(context, people) for context, people in GRID if not people or people * (context or 8192) < 20_000]
    assert same(page, lab(), model("Qwen--Qwen2.5-1.5B-Instruct"), few, "quality", device="cpu", kv_cache_gib=2)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(MODELS),
    kind=st.sampled_from(["3090", "4090", "l40s", "a100", "h100"]),
    used=st.integers(200, 30_000),
    options=st.fixed_dictionaries(
        {},
        optional={
            "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
            "enforce_eager": st.booleans(),
            "max_num_seqs": st.integers(1, 512),
            "block_size": st.sampled_from([16, 32, 64]),
        },
    ),
    asks=st.lists(st.tuples(st.none() | st.integers(256, 40_960), st.none() | st.integers(1, 500)), min_size=1, max_size=8),
    priority=st.sampled_from(["fit", "quality", "speed"]),
)  # fmt: skip
def test_for_any_card_and_any_settings(
    page: Page, name: str, kind: str, used: int, options: dict[str, Any], asks: list[Any], priority: Any
) -> None:
    assume(used < card(kind).total_mib)
    same(page, lab(card(kind, used_mib=used)), model(name), asks, priority, options=options)


def test_an_answer_is_a_few_hundred_small_sums(page: Page) -> None:
    """Each count of a request's blocks reads the groups once: that many are the work of one move of a slider."""
    numbers = outlook(spec(), [lab(card("h100"))], model(), Need(), Estimator.of(model())).numbers
    counts = page.evaluate(
        """numbers => ['quality', 'fit'].map(priority => {
             let reads = 0;
             const d = { ...numbers, priority };
             Object.defineProperty(d, 'groups', { get() { reads++; return numbers.groups } });
             Fit.answer(d, 40960, 2000); Fit.longest(d, 8); Fit.most(d, 4096);
             return reads })""",
        numbers,
    )
    assert all(0 < count < 500 for count in counts), counts


def test_no_more_people_are_counted_than_the_engine_answers_at_once(page: Page) -> None:
    for values in ({"device": "cpu", "kv_cache_gib": 8}, {"options": {"max_num_seqs": 3}}):
        host = lab() if "device" in values else lab(card("h100"))
        facts = model("Qwen--Qwen2.5-1.5B-Instruct")
        found = outlook(spec(**values), [host], facts, Need(context=1024), Estimator.of(facts))
        most = page.evaluate("d => [Fit.most(d, 1024), Fit.room(d, Fit.answer(d, 1024, null))]", found.numbers)
        assert found.most is not None and most == [found.most.value] * 2 == [8 if "device" in values else 3] * 2


def test_more_context_never_leaves_room_for_more_people(page: Page) -> None:
    numbers = outlook(
        spec(), [lab(card("l40s"))], model("google--gemma-3-27b-it"), Need(), Estimator.of(model())
    ).numbers
    numbers = numbers or outlook(spec(), [lab(card("l40s"))], model(), Need(), Estimator.of(model())).numbers
    said = at_page(page, numbers or {}, [(1024 * n, None) for n in range(1, 40)])
    people = [one["people"][0] for one in said]
    assert people == sorted(people, reverse=True)
