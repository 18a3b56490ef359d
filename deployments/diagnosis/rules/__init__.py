"""All rules, in the order in which they are tried: one file per engine and family."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

from deployments.diagnosis.rule import Rule
from deployments.diagnosis.rules import (
    llamacpp,
    ollama,
    sglang,
    vllm_args,
    vllm_config,
    vllm_env,
    vllm_extras,
    vllm_host,
    vllm_memory,
    vllm_parallel,
    vllm_quant,
    vllm_run,
)
from deployments.diagnosis.rules.more import CAUSES, DOCS
from deployments.diagnosis.rules.versions import VERSIONS

# What names a thing precisely comes first; what many failures have in common comes last.
COMMON: tuple[Rule, ...] = (
    *vllm_quant.RULES,
    *vllm_memory.RULES,
    *vllm_parallel.RULES,
    *vllm_extras.RULES,
    *vllm_args.RULES,
    *vllm_config.RULES,
    *vllm_host.RULES,
    *vllm_env.RULES,
    *vllm_run.RULES,
)
BY_ENGINE: dict[str, tuple[Rule, ...]] = {
    "vllm": COMMON,
    "sglang": (*sglang.RULES, *COMMON),
    "llamacpp": (*llamacpp.RULES, *COMMON),
    "ollama": (*ollama.RULES, *llamacpp.RULES, *COMMON),
}
ALL: tuple[Rule, ...] = (*COMMON, *sglang.RULES, *llamacpp.RULES, *ollama.RULES)
BY_CODE: dict[str, Rule] = {rule.code: rule for rule in ALL}


@cache
def tests_of(engine: str) -> tuple[tuple[str, re.Pattern[str], Rule], ...]:
    """(text, pattern, rule) in the order in which they are tried: where the text is absent, the pattern cannot match."""
    return tuple(
        (literal, pattern, rule)
        for rule in BY_ENGINE[engine]
        for literals, pattern in rule.tests
        for literal in literals
    )


GRAM = 4  # characters; of each text that a pattern needs, this many that few other texts hold are looked up


@dataclass(frozen=True)
class Index:
    """Which tests may know a text: by a piece of it, and those without a piece always. Numbers of `tests_of`."""

    by_piece: dict[str, tuple[int, ...]]
    always: frozenset[int]

    def of(self, text: str) -> list[int]:
        """In the order in which they are tried."""
        pieces = {text[at : at + GRAM] for at in range(len(text) - GRAM + 1)}
        found = set(self.always)
        for piece in pieces & self.by_piece.keys():
            found.update(self.by_piece[piece])
        return sorted(found)


@cache
def index_of(engine: str) -> Index:
    """Made once for each engine: some hundred texts are looked for in each line, and most lines hold none of them."""
    often: Counter[str] = Counter()
    for rule in BY_ENGINE[engine]:
        for text in (*rule.examples, *rule.near):
            often.update(_pieces(text))
    by_piece: dict[str, list[int]] = {}
    always: set[int] = set()
    for number, (literal, _pattern, _rule) in enumerate(tests_of(engine)):
        if len(literal) < GRAM:
            always.add(number)
        else:
            by_piece.setdefault(min(_pieces(literal), key=lambda piece: often[piece]), []).append(number)
    return Index({piece: tuple(numbers) for piece, numbers in by_piece.items()}, frozenset(always))


def _pieces(text: str) -> list[str]:
    return [text[at : at + GRAM] for at in range(len(text) - GRAM + 1)]


def versions_of(rule: Rule) -> str:
    """The engine's releases that print it, "" where versions do not apply."""
    return rule.versions or VERSIONS.get(rule.code, "")


def doc_of(rule: Rule) -> str:
    """The address of the engine's own documentation that is about this class or its family."""
    begins = max((begin for begin in DOCS if rule.code.startswith(begin)), key=len, default="")
    return DOCS[begins] if begins else rule.doc


def causes_of(rule: Rule) -> tuple[str, ...]:
    """What it comes from, where that may be several things; else () and `why` says it."""
    return CAUSES.get(rule.code, ())
