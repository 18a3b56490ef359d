"""Why an engine cannot run something: the words that adapters, options and denied flags share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reason:
    """Why something is refused, or what was changed on the way: a code with parameters, and the option it is about."""

    code: str
    params: Mapping[str, Any] = field(default_factory=dict)
    option: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "params": dict(self.params), "option": self.option}


class EngineRefusal(Exception):
    """The engine cannot run this. All reasons at once, so that a form can show each beside its field."""

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(", ".join(reason.code for reason in self.reasons))

    @property
    def code(self) -> str:
        return self.reasons[0].code

    @property
    def params(self) -> Mapping[str, Any]:
        return self.reasons[0].params
