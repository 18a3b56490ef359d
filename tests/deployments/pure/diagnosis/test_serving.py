"""Findings while an engine serves: begun by what lasts, kept over a wobble, ended by what is known to be well."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from deployments.diagnosis import serving_log, serving_memory
from deployments.diagnosis.rules import BY_CODE
from deployments.diagnosis.serving import judge
from deployments.diagnosis.serving_window import Facts, Symptom, Window, rough
from panel.fleet.wire_serving import Point

NOW = 1_764_000_000.0
QUIET = Point(
    NOW, health=200, running=1, waiting=0, kv_usage=0.2, preemptions=0, prompt_tokens=100, generation_tokens=100,
    steps=100, done=10, failed=0, aborted=0, http_ok=10, http_4xx=0, http_5xx=0, rss_mib=4000, processes=3,
)  # fmt: skip


def minutes(count: float, *, until: float = NOW, **values: Any) -> list[Point]:
    """Points each 10 s that end at `until`; a value may be a function of the seconds since the first one."""
    ages = [10.0 * n for n in range(int(count * 6), -1, -1)]
    return [
        replace(
            QUIET,
            at=until - age,
            **{name: value(ages[0] - age) if callable(value) else value for name, value in values.items()},
        )
        for age in ages
    ]


def facts(**values: Any) -> Facts:
    return Facts(**{"now": NOW, "ready_at": NOW - 7200, **values})


def codes(found: Iterable[Symptom]) -> list[str]:
    return [finding.code for finding in found]


def look(points: list[Point], before: Iterable[Symptom] = (), base: dict[str, Any] | None = None, **more: Any):
    return judge(points, facts(**more), before, base or {})


def test_a_quiet_engine_has_none() -> None:
    assert look(minutes(25)) == []
    assert look([]) == []


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "kv": ({"kv_usage": 0.97}, {}, "serve.kv_full", "warn"),
    "waiting": ({"waiting": 4}, {}, "serve.waiting", "warn"),
    "waiting-full": ({"waiting": 4, "kv_usage": 0.89}, {}, "serve.waiting_memory", "warn"),
    "waiting-limit": ({"waiting": 4, "running": 8}, {"max_num_seqs": 8}, "serve.waiting_limit", "warn"),
    # Some looks fall between two answers.
    "waiting-limit-of-one": (
        {"waiting": 4, "running": lambda s: int(s % 50 != 0)},
        {"max_num_seqs": 1},
        "serve.waiting_limit",
        "warn",
    ),
    "waiting-below": ({"waiting": 4, "running": 1}, {"max_num_seqs": 2}, "serve.waiting", "warn"),
    "preempting": ({"preemptions": lambda s: s // 60}, {}, "serve.preempting", "warn"),
    "5xx": ({"http_5xx": lambda s: s // 60}, {}, "serve.errors", "bad"),
    "failed": ({"http_5xx": None, "failed": lambda s: s // 60}, {}, "serve.errors", "bad"),
    "4xx": ({"http_4xx": lambda s: s // 10}, {}, "serve.refused", "note"),
    "dead": ({"health": 503}, {}, "serve.dead", "bad"),
    "mute": ({"health": None, "problem": "timeout"}, {}, "serve.mute", "bad"),
    "slow": ({"gpu_pct": 12.0, "generation_tokens": lambda s: s}, {"on_gpu": True}, "serve.slow", "warn"),
    "silent": ({}, {"silent_since": NOW - 90, "silent_times": 3}, "serve.silent", "bad"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_what_lasts_is_found_and_what_has_just_begun_is_not(case: str) -> None:
    values, more, code, level = CASES[case]
    found = look(minutes(10, **values), **more)
    assert [(each.code, each.level) for each in found] == [(code, level)]
    assert found[0].since <= NOW and found[0].family == ("serve.waiting" if "waiting" in code else code)
    if case not in ("silent", "dead"):
        assert codes(look([*minutes(9, until=NOW - 20), *minutes(0, **values)], **more)) == []


@pytest.mark.parametrize("case", [name for name in CASES if name != "silent"])
def test_nothing_is_known_without_a_newer_point(case: str) -> None:
    values, more, code, _level = CASES[case]
    old = minutes(10, until=NOW - 120, **values)
    if case not in ("preempting", "5xx", "failed", "4xx"):  # what was counted was counted
        assert look(old, **more) == []
    known = look(minutes(10, **values), **more)
    assert codes(look([], known, **more)) == [code], "and nothing is taken back"


@pytest.mark.parametrize("case", list(CASES))
def test_it_stays_over_a_wobble_and_ends_when_all_is_well(case: str) -> None:
    values, more, code, _level = CASES[case]
    known = look(minutes(10, **values), **more)
    if case in ("kv", "waiting", "slow"):
        wobble = [*minutes(9, until=NOW - 30, **values), *minutes(0)]
        assert codes(look(wobble, known, **more)) == [code]
    ended = look(minutes(10), known, **{name: value for name, value in more.items() if not name.startswith("silent")})
    assert ended == []


def test_the_words_and_the_beginning_stay_while_the_numbers_move() -> None:
    first = look(minutes(10, waiting=4))
    second = judge(minutes(10, until=NOW + 300, waiting=44, kv_usage=0.99), facts(now=NOW + 300), first, {})
    waiting = next(each for each in second if each.family == "serve.waiting")
    assert (waiting.code, waiting.since) == ("serve.waiting", first[0].since)
    assert waiting.params["waiting"] == 44


def test_a_number_at_its_limit_does_not_flap() -> None:
    """An hour of use around 90 %: the finding comes once and stays."""
    known: list[Symptom] = []
    seen = []
    points = minutes(75, kv_usage=lambda s: 0.95 if s < 600 else 0.86 + 0.08 * ((s // 10) % 2))
    for step in range(60, len(points)):
        known = judge(points[:step], facts(now=points[step - 1].at), known, {})
        seen.append(bool(known))
    changes = sum(a != b for a, b in itertools.pairwise(seen))
    assert changes <= 1


def test_one_request_in_the_queue_now_and_then_is_none() -> None:
    assert look(minutes(20, waiting=lambda s: (s // 10) % 2)) == []


def test_a_restarted_counter_is_no_error() -> None:
    assert look([*minutes(9, until=NOW - 20, http_5xx=500, preemptions=90), *minutes(0)]) == []


def test_a_busy_engine_with_a_full_gpu_is_not_slow() -> None:
    assert look(minutes(10, gpu_pct=97.0, running=30), on_gpu=True) == []
    quick = minutes(10, gpu_pct=20.0, generation_tokens=lambda s: 80 * s)
    assert look(quick, on_gpu=True) == [], "a small model that is quick with little work"
    assert look(minutes(10, gpu_pct=5.0, running=0), on_gpu=True) == [], "nobody asks"


# --- main memory ------------------------------------------------------------------------------------------------------


def test_memory_that_creeps() -> None:
    base = {"at": NOW - 6000, "rss_mib": 8000}
    creeping = minutes(25, rss_mib=lambda s: int(11_000 + s))
    found = look(creeping, base=base)
    assert codes(found) == ["serve.creeping"]
    assert found[0].params["from_mib"] == 8000 and found[0].params["to_mib"] > 12_000
    assert look(minutes(25, rss_mib=12_500), base=base) == [], "it has levelled off"
    assert look(creeping, base={}) == [], "nobody knows what it was"
    assert look(creeping, base=base, planned_rss_mib=16_000) == [], "on a CPU the cache fills what was set aside"
    assert codes(look(minutes(25, rss_mib=12_500), found, base)) == ["serve.creeping"], "not given back yet"
    assert look(minutes(25, rss_mib=8100), found, base) == []


def test_gpu_memory_that_creeps() -> None:
    base = {"at": NOW - 6000, "rss_mib": 4000, "gpu_mib": 20_000}
    creeping = minutes(25, gpu_mib=lambda s: int(20_400 + s))
    card = {"on_gpu": True, "planned_gpu_mib": 20_000, "cards_mib": 24_576}
    found = look(creeping, base=base, **card)
    assert [(each.code, each.level) for each in found] == [("serve.creeping_gpu", "warn")]
    assert found[0].params == {"from_mib": 20_000, "to_mib": 21_760}
    assert look(minutes(25, gpu_mib=21_900), base=base, **card) == [], "it has levelled off"
    assert look(creeping, base={"at": NOW - 6000, "rss_mib": 4000}, **card) == [], "nobody knows what it was"
    assert look(creeping, base=base, **{**card, "planned_gpu_mib": 21_500}) == [], "it is meant to take that much"
    assert look(creeping, base=base, **{**card, "cards_mib": 81_920}) == [], "3 % of a large card"
    assert look(minutes(25, gpu_mib=None), base=base, **card) == [], "an older agent does not tell"
    assert codes(look(minutes(25, gpu_mib=20_900), found, base, **card)) == ["serve.creeping_gpu"], "not given back yet"
    assert look(minutes(25, gpu_mib=20_100), found, base, **card) == []


def test_the_base_is_taken_once_when_memory_has_settled() -> None:
    w = Window(minutes(10, rss_mib=5000), NOW)
    assert serving_memory.base_of(w, facts(ready_at=NOW - 300), {}) == {}
    base = serving_memory.base_of(w, facts(), {})
    assert base == {"at": NOW, "rss_mib": 5000}
    both = {"at": NOW, "rss_mib": 5000, "gpu_mib": 700}
    assert serving_memory.base_of(Window(minutes(10, gpu_mib=700), NOW), facts(), base) == both, "told by a newer agent"
    assert serving_memory.base_of(Window(minutes(10, rss_mib=9000), NOW), facts(), base) == base


def test_the_first_refusals_count_though_their_number_was_not_told_before() -> None:
    first = [*minutes(2, until=NOW - 10, http_ok=None, http_4xx=None), *minutes(0, http_ok=4, http_4xx=12)]
    (one,) = look(first)
    assert (one.code, one.params) == ("serve.refused", {"count": 12, "all": 16})
    gap = [*minutes(2, until=NOW - 10, problem="timeout", http_4xx=None), *minutes(0, http_4xx=12)]
    assert "serve.refused" not in codes(look(gap)), "what was not seen is not new"


def test_a_mark_in_its_answers_is_of_the_whole_start() -> None:
    slip = {"marker": "[INST]", "answer": "42 [INST]"}
    found = look([], slip=slip, slip_since=NOW - 7000)
    assert found == [Symptom("serve.role_markers", "serve.role_markers", "warn", NOW - 7000, slip)]
    assert codes(look([], found, slip=slip)) == ["serve.role_markers"]
    assert look([], found) == [], "the next start answered well"


# --- the log ----------------------------------------------------------------------------------------------------------

LONG = b"ValueError: This model's maximum context length is 8192 tokens. However, you requested %d tokens\n"
OOM = b"(EngineCore pid=9) ERROR 11-30 14:02:15 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
ACCESS = b'INFO:     10.0.0.7:41200 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def counted(data: bytes, before: dict[str, Any] | None = None, now: float = NOW) -> dict[str, Any]:
    return serving_log.count(data, before or {}, "vllm", now)


def test_requests_that_are_too_long() -> None:
    classes = counted(b"".join(LONG % n for n in (9000, 9100, 12_000)))
    found = look(minutes(1), classes=classes)
    assert codes(found) == ["serve.long"] and found[0].params == {"count": 3, "asked": 12_000}
    assert look(minutes(1), classes=counted(LONG % 9000)) == []
    assert look(minutes(1), found, classes=counted(b"", classes, NOW + 700)) == [], "ten minutes later"


def test_memory_that_runs_out_under_load_counts_once_for_each_failure() -> None:
    one = OOM + b"(APIServer pid=8) " + OOM
    assert look(minutes(1), classes=counted(one)) == []
    classes = counted(one + ACCESS * 100 + one)
    found = look(minutes(1, running=6), classes=classes)
    assert codes(found) == ["serve.memory_short"] and found[0].params == {"count": 2, "most": 6}


def test_other_classes_speak_for_themselves() -> None:
    rule = BY_CODE["run.not_multimodal"]
    lines = b"".join(f"{rule.examples[0]} {n}\n".encode() for n in range(4))
    found = look(minutes(1), classes=counted(lines))
    assert codes(found) == ["serve.logged"]
    assert (found[0].params["title"], found[0].params["count"]) == (rule.title, 4)


def test_a_healthy_log_and_a_flood_count_nothing_and_stay_small() -> None:
    assert counted(ACCESS * 5000) == {}
    flood = b"".join(b"ERROR something of kind %d failed with Exception\n" % n for n in range(20_000))
    assert counted(flood) == {}
    classes: dict[str, Any] = {}
    for minute in range(200):
        classes = counted(LONG % 9000, classes, NOW + 60 * minute)
    assert len(classes) == 1 and len(classes[serving_log.TOO_LONG]["counts"]) <= 11


def test_half_a_line_waits_for_its_end() -> None:
    line = LONG % 9000
    assert counted(line[:-1]) == {} and len(counted(line)) == 1


def test_old_preemptions_are_told_by_the_log_where_there_are_no_numbers() -> None:
    line = b"WARNING 01-01 10:00:00 [scheduler.py:1] Sequence group %d is preempted by PreemptionMode.RECOMPUTE mode\n"
    classes = counted(b"".join(line % n for n in range(5)))
    assert codes(look(minutes(1, preemptions=None), classes=classes)) == ["serve.preempting"]


def test_numbers_are_said_to_two_digits() -> None:
    assert [rough(n) for n in (0, 7.4, 19, 44, 123, 8765)] == [0, 7, 19, 44, 120, 8800]
