"""What the check before a start says: parts in a fixed order, each with what was found. Pure.

Findings are codes with parameters; wording.py has their words. An *error* would make the start fail, a *warning* may,
or may disappoint whoever uses it; a *note* is good to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deployments.mending.fix import Fix

Level = Literal["error", "warning", "note"]
State = Literal["passed", "running", "skipped", "warning", "error"]
Verdict = Literal["running", "refused", "warnings", "passed"]
PARTS = ("files", "settings", "plan", "engine", "host")  # in the order in which a start would meet them


@dataclass(frozen=True)
class Finding:
    """One thing that was found. `fixes` are those of a failed start, the most promising first."""

    level: Level
    code: str
    params: Mapping[str, Any] = field(default_factory=dict)
    option: str = ""
    fixes: tuple[Fix, ...] = ()

    @property
    def reason(self) -> dict[str, Any]:
        return {"code": self.code, "params": dict(self.params)}


@dataclass(frozen=True)
class Part:
    """One line of the list. `waits`: it is not known yet; `skipped`: why it was not looked at, as a note."""

    name: str
    findings: tuple[Finding, ...] = ()
    waits: bool = False
    skipped: bool = False
    seconds: float | None = None  # how long the engine took

    @property
    def state(self) -> State:
        levels = {finding.level for finding in self.findings}
        if "error" in levels:
            return "error"
        if self.waits:
            return "running"
        if "warning" in levels:
            return "warning"
        return "skipped" if self.skipped else "passed"


def verdict(parts: tuple[Part, ...]) -> Verdict:
    """Of the whole list. An error is final, whatever is still being asked."""
    states = {part.state for part in parts}
    if "error" in states:
        return "refused"
    if "running" in states:
        return "running"
    return "warnings" if "warning" in states else "passed"


def warnings(parts: tuple[Part, ...]) -> list[str]:
    """Codes of all warnings, as they are kept when somebody starts in spite of them."""
    return [finding.code for part in parts for finding in part.findings if finding.level == "warning"]
