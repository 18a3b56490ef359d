"""The panel's clock is put an hour forward or back, for all its processes at once; the hosts and the database keep theirs."""

from dataclasses import dataclass

from tests.chaos.clocks import COMPILER
from tests.chaos.faults import Factory, Fault

HOUR_S = 3600.0


@dataclass
class Step(Fault):
    """Put wrong, and after a while right again: a step each way."""

    by_s: float = HOUR_S

    def __post_init__(self) -> None:
        self.name = f"clock {'forward' if self.by_s > 0 else 'back'} an hour"

    def begin(self, job_id: str) -> bool:
        self.berth.clock.move(self.by_s)
        return True

    def hold(self) -> float:
        return self.rng.choice([0.2, 3 * self.berth.times.tick, self.berth.times.beyond_every_lease])

    def end(self) -> None:
        self.berth.clock.move(0.0)


FAULTS: list[Factory] = [
    lambda berth, rng: Step(berth, rng, by_s=HOUR_S),
    lambda berth, rng: Step(berth, rng, by_s=-HOUR_S),
] if COMPILER else []  # fmt: skip
