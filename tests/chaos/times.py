"""The times of a Berth under chaos, real ones multiplied by a scale."""

from dataclasses import dataclass

LEAST_CLAIM_S = 0.5  # what the setting takes


@dataclass(frozen=True)
class Times:
    """Seconds. `scale` 1.0 is what a panel has without any setting."""

    scale: float = 0.1

    @property
    def tick(self) -> float:
        return 2.0 * self.scale

    @property
    def claim(self) -> float:
        return max(LEAST_CLAIM_S, 6.0 * self.scale)

    @property
    def lost(self) -> float:
        return 30.0 * self.scale

    @property
    def report(self) -> float:
        return 10.0 * self.scale

    @property
    def restart_first(self) -> float:
        return 10.0 * self.scale

    @property
    def probe(self) -> float:
        return max(20.0, 120.0 * self.scale)  # a question may be kept waiting until the fault strikes

    @property
    def beyond_every_lease(self) -> float:
        """How long something sleeps so that all that is lent to it is over."""
        return 1.15 * max(self.lost, self.claim) + 2 * self.tick

    def environment(self) -> dict[str, str]:
        return {
            "BERTH_TICK_S": f"{self.tick:g}",
            "BERTH_CLAIM_S": f"{self.claim:g}",
            "BERTH_HOST_LOST_S": f"{self.lost:g}",
            "BERTH_RESTART_FIRST_S": f"{self.restart_first:g}",
            "BERTH_PROBE_TIMEOUT_S": f"{self.probe:g}",
        }
