"""All rules, in the order in which they are tried: one file per engine and family."""

import re
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
