"""How many tokens one request may have at most, as vLLM reads it out of a model's files. Pure.

The engine takes the smallest of the lengths that config.json names (`model_max_length` alone, where that is said),
times the factor by which positions are stretched, and refuses to start where more is asked for: so in vLLM 0.6.1 to
0.32 (`_get_and_verify_max_len`). Kinds of stretching whose length is named as stretched are left alone: longrope,
llama3, and since 0.32 YaRN; before, YaRN was counted from `original_max_position_embeddings`.
"""

from __future__ import annotations

from dataclasses import dataclass

from models_catalog.estimate import versions
from models_catalog.facts import ModelFacts

YARN_NAMED_SINCE = 32  # minor version of 0.x


@dataclass(frozen=True)
class Longest:
    """Tokens of one request. `sure`: the engine refuses more, unless it is told to do otherwise.

    `source` is where the files say so.
    """

    tokens: int
    sure: bool
    source: str = ""


def longest(facts: ModelFacts | None, version: str = "") -> Longest | None:
    """By this version of vLLM, or by any where none is said. None where the files name no length."""
    if facts is None or not facts.context_length:
        return None
    tokens, named, source = facts.context_length, facts.context_named, facts.context_source
    if named is not None and facts.rope is not None and "yarn" in facts.rope.scaling:
        told = versions.parse(version)
        since = told is not None and told.minor >= YARN_NAMED_SINCE
        tokens = named if since else tokens if told is not None else max(tokens, named)
    if tokens != facts.context_length:
        source = source.partition(" ×")[0]
    return Longest(tokens, named is not None and _is_plain(facts), source)


def _is_plain(facts: ModelFacts) -> bool:
    """Whether the engine reads these files as Berth does: no code of the model's own, no other form beside."""
    known = facts.geometry is not None and facts.geometry.known
    return known and not facts.needs_remote_code and not facts.config_format
