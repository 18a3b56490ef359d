"""Each rule on its own: it knows its examples, not its near misses, and nothing before it in the order takes them."""

from __future__ import annotations

import re

import pytest

from deployments.diagnosis import phases, rules, words
from deployments.diagnosis.offers import CALCULATIONS
from deployments.diagnosis.reader import match
from deployments.diagnosis.rule import Rule, literals_of
from deployments.diagnosis.rules import ALL, BY_CODE, BY_ENGINE

BY_PHASE = {"mem.oom_graph", "mem.oom_runtime"}  # the same words as mem.oom_profile; the phase tells
KINDS = {"set", "drop", "runtime", "package", "repair", "permission", "host", "model", "env"}
ROLES = {"cause", "weak", "quiet", "request", "end", "peer", "echo"}
# Values that only a person knows: a token, an address, a path.
OPEN = {"model", "path", "path_with_config", "base_model", "template", "tool_parser", "interface", "host_ip", "cpu_bind",
        "json", "architectures", "first_split", "spec_tokens", "name", "longer", "cpu_moe", "gfx", "free_port",
        "free_host"}  # fmt: skip


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_it_knows_its_examples_and_not_its_near_misses(rule: Rule) -> None:
    assert len(rule.examples) >= 2 and rule.near
    for example in rule.examples:
        assert rule.match(example), example
        first, _groups = match(rule.engine, example)
        assert first is rule or rule.code in BY_PHASE, (example, first and first.code)
        assert any(word in example.encode() for word in words.ERROR_WORDS), example
    for near in rule.near:
        assert not rule.match(near), near


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_its_words_are_whole(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z0-9_]+", rule.code)
    assert rule.role in ROLES
    assert not rule.phase or rule.phase in phases.ORDER
    assert rule.title[0].isupper() and not rule.title.endswith(".") and rule.why.endswith(".")
    assert rule.doc.startswith("https://")
    for fix in rule.remedies:
        assert fix.kind in KINDS and 0 < fix.chance <= 100
        for value in (fix.to, fix.name):
            if value.startswith("="):
                assert value[1:] in CALCULATIONS or value[1:] in OPEN, (rule.code, value)


def test_a_rule_without_fixes_is_an_echo_or_no_failure() -> None:
    bare = {rule.code for rule in ALL if not rule.remedies}
    assert bare <= {rule.code for rule in ALL if rule.role in ("echo", "end")} | {
        "config.invalid_config",
        "run.shm_wait",
    }
    assert BY_CODE["run.startup_wrapper"].role == "echo"


def test_texts_by_which_patterns_are_skipped_stand_in_every_match() -> None:
    for rule in ALL:
        for literals, pattern in rule.tests:
            assert min(map(len, literals)) >= 2, (rule.code, pattern.pattern)
        for example in rule.examples:
            for literals, pattern in rule.tests:
                assert not pattern.search(example) or any(text in example for text in literals), pattern.pattern


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("abc", ("abc",)), ("a+bcd", ("bcd",)), ("ab|cde", ("ab", "cde")), ("(?:one|two)x", ("one", "two")), (".*", ("",)),
     ("(?<!no)yes", ("yes",)), ("x[yz]w", ("x",))],
)  # fmt: skip
def test_literals_of_a_pattern(pattern: str, expected: tuple[str, ...]) -> None:
    assert set(literals_of(pattern)) == set(expected)


def test_words_that_are_looked_for_cover_the_marks_of_all_phases() -> None:
    shown = ("INFO: +", "KV", "Capturing", "n_ctx", "api_server.py: error", "listening")
    for code, pattern in phases._MARKERS:
        for text in literals_of(pattern.pattern):
            covered = any(word in text.encode() for word in words.MARK_WORDS + words.ERROR_WORDS)
            assert covered or any(word in pattern.pattern for word in shown), (code, text)


@pytest.mark.parametrize("engine", BY_ENGINE)
def test_looking_up_pieces_finds_what_trying_all_would(engine: str) -> None:
    texts = {text for rule in ALL for text in (*rule.examples, *rule.near)}
    texts |= {"", "x", "no", "an error occurred", "Killed", "错误"}
    for text in sorted(texts):
        tried = (rule for literal, pattern, rule in rules.tests_of(engine) if literal in text and pattern.search(text))
        assert match(engine, text)[0] is next(tried, None), text
