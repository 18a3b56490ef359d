"""What an inspector hands back for one model. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from models_catalog.facts import ModelFacts, Problem
from models_catalog.inspect.listing import LocalFile


@dataclass
class Found:
    """`own` are the files that belong to the model; hard and symbolic links to one file count once in its size."""

    facts: ModelFacts
    name: str
    problems: list[Problem] = field(default_factory=list)
    own: list[LocalFile] = field(default_factory=list)

    @property
    def blocked(self) -> bool:
        """True when something found stands in the way of serving it."""
        return any(problem.blocking for problem in self.problems)

    @property
    def size_bytes(self) -> int:
        return sum({file.identity: file.size for file in self.own}.values())
