"""A conversation longer than the model was made for: what the engine would refuse, said before memory is counted. Pure.

The check before a start and the planner ask here, so that both say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from deployments.engines.base import Reason
from deployments.planner.asked import Asked
from models_catalog.estimate.longest import Longest, longest
from models_catalog.facts import ModelFacts

CODE = "context.beyond_model"
OPTION = "max_model_len"


@dataclass(frozen=True)
class TooLong:
    """`sure`: the engine refuses it; otherwise something in the settings or files may allow it."""

    context: int
    longest: int
    sure: bool
    source: str = ""

    @property
    def reason(self) -> Reason:
        params = {"context": self.context, "longest": self.longest, "source": self.source}
        return Reason(CODE if self.sure else "check.context_beyond", params, OPTION)


def too_long(asked: Asked, facts: ModelFacts | None, version: str = "") -> TooLong | None:
    """None where the wish is within what the model takes, or nobody knows what that is."""
    end = ends(asked, facts, version)
    if asked.context is None or end is None or asked.context <= end.tokens:
        return None
    return TooLong(asked.context, end.tokens, end.sure, end.source)


def ends(asked: Asked, facts: ModelFacts | None, version: str) -> Longest | None:
    """What one conversation may have with these settings."""
    own = longest(facts, version)
    if own is None or facts is None:
        return None
    if asked.no_window and facts.sliding_window and facts.sliding_window < own.tokens:
        own = replace(own, tokens=facts.sliding_window, source="config.json: sliding_window")
    return replace(own, sure=own.sure and not asked.stretches)
