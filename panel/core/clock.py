"""Notices that this machine's clock was put forward or back, or stood still: by the other clock, which only runs."""

import time

STEP_S = 2.0  # less is the slow putting right of every day


class Clock:
    """Ask it now and then. Small differences are followed, so that they never add up to a step."""

    def __init__(self) -> None:
        self._ahead = _ahead()

    def moved_s(self) -> float:
        """Seconds by which the clock was put forward (back: negative) since the last question; 0.0 for none."""
        before, self._ahead = self._ahead, _ahead()
        moved = self._ahead - before
        return moved if abs(moved) >= STEP_S else 0.0


def _ahead() -> float:
    return time.time() - time.monotonic()
