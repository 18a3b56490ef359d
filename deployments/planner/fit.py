"""The estimate of one model as a search asks it: what the spec says, what launches taught, answers remembered. Pure.

Whether something fits, and how surely, is said by models_catalog/estimate/need.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from deployments.planner.asked import Asked
from models_catalog.estimate import Gpu, Lesson, Options, Plan
from models_catalog.estimate.longest import longest
from models_catalog.estimate.need import Fit, Needs, Setting, Wish
from models_catalog.facts import ModelFacts


@dataclass
class Estimator:
    """One search asks the same of many equal GPUs: `needs` remembers."""

    needs: Needs
    lessons: Mapping[tuple[int, str, str, int], Lesson] = field(default_factory=dict)  # see measured.Kind
    _wishes: dict[tuple[Asked, str], Wish] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model_facts: Mapping[str, Any],
        task: str = "generate",
        lessons: Mapping[tuple[int, str, str, int], Lesson] | None = None,
    ) -> Estimator:
        """Facts that cannot be read, and models without a conversation, have no estimate."""
        if task != "generate":
            return cls(Needs(None))
        try:
            return cls(Needs(ModelFacts.from_dict(dict(model_facts))), lessons or {})
        except ValidationError:
            return cls(Needs(None))

    @property
    def facts(self) -> ModelFacts | None:
        return self.needs.facts

    @property
    def longest(self) -> int | None:
        return self.needs.longest

    def longest_by(self, version: str) -> int | None:
        """The context that this engine version takes for the model's own."""
        own = longest(self.facts, version)
        return own.tokens if own is not None else None

    def wish(self, asked: Asked, version: str) -> Wish:
        """What is asked, as this engine version understands it."""
        key = (asked, version)
        if key not in self._wishes:
            self._wishes[key] = asked.wish(version, self.longest)
        return self._wishes[key]

    def plan(self, options: Options, gpu: Gpu, version: str, lesson: Lesson | None = None) -> Plan | None:
        return self.needs.plan(options, gpu, version, lesson)

    def fit(self, asked: Asked, setting: Setting, share: float) -> Fit:
        """`share` is that of a GPU's total; on a CPU it is the GiB of the KV cache."""
        return self.needs.fit(self.wish(asked, setting.version), setting, share)

    def least_share(self, asked: Asked, setting: Setting, *, sure: bool = False) -> float | None:
        """The smallest share, in hundredths, that holds the need; `sure` at the worst end too. None when none does."""
        return self.needs.least_share(self.wish(asked, setting.version), setting, sure=sure)
