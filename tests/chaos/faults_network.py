"""The line between agent and panel: refused, black-holed, slow, cut, with requests repeated, reordered and late."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.cable import MODES
from tests.chaos.faults import Factory, Fault

CALL_S = 16.0  # a call's own time, after which the agent gives up a connection that carries nothing


@dataclass
class Line(Fault):
    """The cable (Berth.cable) is in one of its modes, for a moment or for longer than makes a host lost."""

    mode: str = ""
    lasts: float = 0.0

    def __post_init__(self) -> None:
        self.name = f"line {self.mode}"
        away = self.mode in ("refused", "black hole")
        self.silences_agent = away
        times = self.berth.times
        if self.mode == "dead":
            self.lasts = CALL_S
            return
        self.lasts = self.rng.choice([5 * times.tick, times.beyond_every_lease]) if away else self.rng.uniform(1.0, 3.0)

    def begin(self, job_id: str) -> bool:
        self.berth.cable.set(self.mode)
        return True

    def hold(self) -> float:
        return self.lasts

    def end(self) -> None:
        self.berth.cable.set("whole")


def _line(mode: str) -> Callable[..., Line]:
    return lambda berth, rng: Line(berth, rng, mode=mode)


FAULTS: list[Factory] = [_line(mode) for mode in MODES]
