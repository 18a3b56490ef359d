"""What an inspector hands back for one model. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from models_catalog.facts import ModelFacts, Problem


@dataclass
class Found:
    facts: ModelFacts
    name: str
    problems: list[Problem] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def blocked(self) -> bool:
        """True when something found stands in the way of serving it."""
        return any(problem.blocking for problem in self.problems)
