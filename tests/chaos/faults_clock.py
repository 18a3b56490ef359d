"""A clock is put an hour forward or back: of all the panel's processes at once, or of the host's agent and shims.

The database and the engines keep theirs.
"""

from dataclasses import dataclass

from tests.chaos.clocks import COMPILER
from tests.chaos.faults import Factory, Fault

HOUR_S = 3600.0


@dataclass
class Step(Fault):
    """Put wrong, and after a while right again: a step each way."""

    by_s: float = HOUR_S
    of_host: bool = False

    def __post_init__(self) -> None:
        self.name = f"{'host ' if self.of_host else ''}clock {'forward' if self.by_s > 0 else 'back'} an hour"
        self.clock = self.berth.host_clock if self.of_host else self.berth.clock

    def begin(self, job_id: str) -> bool:
        self.clock.move(self.by_s)
        return True

    def hold(self) -> float:
        return self.rng.choice([0.2, 3 * self.berth.times.tick, self.berth.times.beyond_every_lease])

    def end(self) -> None:
        self.clock.move(0.0)


FAULTS: list[Factory] = [
    lambda berth, rng: Step(berth, rng, by_s=HOUR_S),
    lambda berth, rng: Step(berth, rng, by_s=-HOUR_S),
    lambda berth, rng: Step(berth, rng, by_s=HOUR_S, of_host=True),
    lambda berth, rng: Step(berth, rng, by_s=-HOUR_S, of_host=True),
] if COMPILER else []  # fmt: skip
