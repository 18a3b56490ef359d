"""When a serving engine is asked, and when its silence counts: never while it is merely busy, or out of reach."""

from dataclasses import replace
from typing import Any

import pytest

from deployments.serving import liveness
from deployments.serving.liveness import Rhythm
from panel.fleet.wire_serving import Point

NOW = 1_764_000_000.0
PACE = Rhythm(every_s=60, timeout_s=30, hung_s=180)
READY = NOW - 3600
POINT = Point(
    NOW, health=200, running=0, waiting=0, prompt_tokens=50, generation_tokens=90, steps=40, done=7, http_ok=7
)


def seen(seconds: float = 300, **values: Any) -> list[Point]:
    """Points each 10 s until now; a value may be a function of how long ago it is."""
    ages = [10.0 * n for n in range(int(seconds // 10), -1, -1)]
    return [
        replace(POINT, at=NOW - age, **{name: v(age) if callable(v) else v for name, v in values.items()})
        for age in ages
    ]


def silent(**more: Any) -> dict[str, Any]:
    """Noted of an engine that gave no answer three times, since 200 s ago."""
    return {"asked_at": NOW - 40, "done_at": NOW - 10, "failing_since": NOW - 200, "misses": 3, **more}


# --- when to ask ------------------------------------------------------------------------------------------------------


def test_it_is_asked_when_nobody_else_asks() -> None:
    assert liveness.wants_question(seen(), {}, READY, PACE, NOW)
    assert liveness.wants_question([], {}, READY, PACE, NOW), "an older agent tells nothing"


@pytest.mark.parametrize(
    "points",
    [
        seen(done=lambda age: 100 - age // 10, http_ok=lambda age: 100 - age // 10),
        seen(steps=lambda age: 1000 - age, running=1),
        seen(done=lambda age: 7 if age > 50 else 8),
    ],
    ids=["answers", "one long answer", "one answer lately"],
)
def test_traffic_that_succeeds_is_proof_enough(points: list[Point]) -> None:
    assert not liveness.wants_question(points, {}, READY, PACE, NOW)


def test_the_pace() -> None:
    asked = {"asked_at": NOW - 50, "done_at": NOW - 49, "ok_at": NOW - 49}
    assert not liveness.wants_question(seen(), asked, READY, PACE, NOW)
    assert liveness.wants_question(seen(), {name: at - 30 for name, at in asked.items()}, READY, PACE, NOW)
    assert not liveness.wants_question(seen(), {}, NOW - 20, PACE, NOW), "its start has just asked it"
    assert not liveness.wants_question(seen(), {}, READY, replace(PACE, every_s=0), NOW), "switched off"
    assert not liveness.wants_question(seen(), {"asked_at": NOW - 5}, READY, PACE, NOW), "somebody asks"
    assert liveness.wants_question(seen(), {"asked_at": NOW - 100}, READY, PACE, NOW), "that worker was killed"
    assert liveness.wants_question(seen(), silent(done_at=NOW - 16), READY, PACE, NOW), "silence is looked into sooner"


# --- what an answer means ---------------------------------------------------------------------------------------------


def test_what_is_noted() -> None:
    first = liveness.after({"asked_at": 10.0}, "silent", {"status": 0}, 40.0)
    assert first == {"asked_at": 10.0, "done_at": 40.0, "failing_since": 10.0, "misses": 1, "last": {"status": 0}}
    second = liveness.after({**first, "asked_at": 60.0}, "silent", {"status": 0}, 90.0)
    assert (second["misses"], second["failing_since"]) == (2, 10.0)
    third = liveness.after({**second, "asked_at": 100.0}, "unknown", {}, 101.0)
    assert (third["misses"], third["done_at"]) == (2, 101.0), "the way there failed: that says nothing of the engine"
    assert liveness.after({**third, "asked_at": 120.0}, "ok", {}, 121.0) == {
        "asked_at": 120.0, "done_at": 121.0, "ok_at": 121.0,
    }  # fmt: skip


def test_what_was_noted_before_it_was_ready_again_or_by_another_clock_says_nothing() -> None:
    assert liveness.of_this(silent(), NOW - 30, NOW) == {}
    assert liveness.of_this(silent(), NOW - 300, NOW) == silent()
    assert liveness.of_this(silent(), NOW - 9000, NOW - 3600) == {}, "the clock was put back"


# --- hung or busy -----------------------------------------------------------------------------------------------------


def test_an_engine_that_hangs() -> None:
    stuck = seen(running=2)
    assert liveness.hung(stuck, silent(), PACE, NOW, near=True)
    assert liveness.hung(stuck, silent(), PACE, NOW, near=False)
    assert liveness.hung(seen(problem="timeout", health=None, running=None), silent(), PACE, NOW, near=False)
    assert liveness.hung(seen(health=503), silent(), PACE, NOW, near=False)
    assert not liveness.hung(stuck, silent(misses=2), PACE, NOW, near=True)
    assert not liveness.hung(stuck, silent(failing_since=NOW - 100), PACE, NOW, near=True), "not for long enough"
    assert not liveness.hung(stuck, {"ok_at": NOW}, PACE, NOW, near=True)
    assert not liveness.hung(stuck, silent(), replace(PACE, every_s=0), NOW, near=True), "switched off"


@pytest.mark.parametrize(
    "points",
    [
        seen(running=4, waiting=30, generation_tokens=lambda age: 9000 - age),
        seen(running=1, steps=lambda age: 500 - age // 60),
        seen(running=8, prompt_tokens=lambda age: 10_000 - age),
        seen(done=lambda age: 7 if age > 90 else 8),
    ],
    ids=["a long queue", "slow steps", "long prompts", "an answer to somebody else"],
)
def test_a_busy_engine_is_never_taken_for_one_that_hangs(points: list[Point]) -> None:
    live = silent(misses=30, failing_since=NOW - 3000)
    longer = [replace(points[0], at=NOW - 3100), *points]
    assert liveness.recovered(points, silent())
    assert not liveness.hung(longer, live, PACE, NOW, near=True)


def test_a_question_that_got_lost_on_the_way_is_no_fault_of_the_engine() -> None:
    idle = seen()
    assert not liveness.hung(idle, silent(), PACE, NOW, near=False)
    assert not liveness.hung(idle, silent(misses=50), PACE, NOW, near=False)
    assert liveness.hung(idle, silent(misses=5), PACE, NOW, near=True), "on loopback nothing gets lost"


def test_without_a_newer_look_nothing_is_concluded() -> None:
    old = [replace(point, at=point.at - 120) for point in seen(running=2)]
    assert not liveness.hung(old, silent(misses=9), PACE, NOW, near=True)


def test_an_engine_without_numbers_has_to_be_silent_for_longer() -> None:
    for points in ([], seen(prompt_tokens=None, generation_tokens=None, steps=None, done=None, http_ok=None)):
        assert not liveness.hung(points, silent(), PACE, NOW, near=False)
        assert liveness.hung(points, silent(misses=5), PACE, NOW, near=False)


def test_numbers_that_come_and_go_are_no_sign_of_life() -> None:
    flicker = seen(running=2, steps=lambda age: None if int(age) % 20 else 40)
    assert liveness.sign_of_life(flicker, NOW - 250) is None


def test_for_how_long_it_was_silent() -> None:
    live = silent(hung_at=NOW, failing_since=NOW - 200)
    assert liveness.hung_minutes(live, READY, NOW) == 3
    assert liveness.hung_minutes(live, NOW - 30, NOW) is None, "that was before contact was lost"
    assert liveness.hung_minutes(silent(), READY, NOW) is None
