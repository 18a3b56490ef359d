"""What the rules of serving.py are made of: an engine's last minutes, what else is known, and a finding. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from panel.fleet.wire_serving import Point

Level = Literal["bad", "warn", "note"]
Params = dict[str, Any]

SLACK_S = 20.0  # between two points; also what a window may lack of its length
STALE_S = 60.0  # without a newer point nothing is known of now


@dataclass(frozen=True)
class Symptom:
    """Something that is not well; kept in `Run.findings` and told as a finding. `family` is one rule's, `code` says it
    in words; `since` is in Unix seconds.
    """

    family: str
    code: str
    level: Level
    since: float
    params: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What is known beside the points. `planned_rss_mib` is main memory that it is meant to take (on a CPU),
    `planned_gpu_mib` memory of its GPUs, of `cards_mib` that they have in all.

    `silent_since` is when the first question of those that got no answer was asked; None: it answers, or nobody asks.
    `slip` is the first sign in its answers that the chat template does not fit, see markers.py.
    """

    now: float
    ready_at: float
    on_gpu: bool = False
    max_num_seqs: int | None = None
    planned_rss_mib: int | None = None
    planned_gpu_mib: int | None = None
    cards_mib: int | None = None
    classes: Mapping[str, Any] = field(default_factory=dict)  # of the log, see serving_log
    silent_since: float | None = None
    silent_times: int = 0
    slip: Params | None = None
    slip_since: float = 0.0


class Window:
    """Points of the last minutes, the oldest first, looked at from `now`."""

    def __init__(self, points: Sequence[Point], now: float) -> None:
        self.points = [point for point in points if point.at <= now + SLACK_S]
        self.now = now

    @property
    def fresh(self) -> bool:
        """Whether the newest point tells of now."""
        return bool(self.points) and self.now - self.points[-1].at <= STALE_S

    def last(self, seconds: float) -> list[Point]:
        return [point for point in self.points if point.at > self.now - seconds]

    def whole(self, seconds: float) -> bool:
        """Whether all of that time was seen."""
        return self.fresh and self.points[0].at <= self.now - seconds + SLACK_S

    def always(self, seconds: float, test: Callable[[Point], bool]) -> bool:
        """Whether it was so at every look of that time, all of which was seen."""
        return self.whole(seconds) and all(test(point) for point in self.last(seconds))

    def grew(self, seconds: float, name: str) -> float | None:
        """By how much a total grew; None where it is not told. A total that fell began anew."""
        start = next((n for n, point in enumerate(self.points) if point.at > self.now - seconds), len(self.points))
        seen = self.points[max(0, start - 1) :]
        told = [n for point in seen if (n := getattr(point, name)) is not None]
        if told and name.startswith("http_") and getattr(seen[0], name) is None and not seen[0].problem:
            told = [0.0, *told]  # an engine tells a status from its first answer on
        return sum(max(0.0, b - a) for a, b in pairwise(told)) if len(told) > 1 else None

    def rate(self, seconds: float, name: str) -> float | None:
        """How much a total grew per second; None where it is not told twice in that time."""
        grew, seen = self.grew(seconds, name), self.last(seconds)
        earlier = [point.at for point in self.points if point.at <= self.now - seconds][-1:]
        span = seen[-1].at - [*earlier, seen[0].at][0] if seen else 0.0
        return grew / span if grew is not None and span > 0 else None

    def mean(self, seconds: float, name: str) -> float:
        told = [n for point in self.last(seconds) if (n := getattr(point, name)) is not None]
        return fmean(told) if told else 0.0

    def since(self, test: Callable[[Point], bool]) -> float:
        """From when on it has been so without a break."""
        found = self.now
        for point in reversed(self.points):
            if not test(point):
                break
            found = point.at
        return found


@dataclass(frozen=True)
class Rule:
    """`begins` gives the code's ending, the time and the numbers, or None; `stays` is asked while it is there."""

    family: str
    level: Level
    begins: Callable[[Window, Facts, Params], tuple[str, float, Params] | None]
    stays: Callable[[Window, Facts, Params], bool]


def rough(value: float) -> int:
    """A number as it is said: to two digits, so that it does not change at every look."""
    whole = round(value)
    if whole < 20:
        return whole
    digits = int(10 ** (len(str(whole)) - 2))
    return round(whole / digits) * digits


def step(value: float, size: int) -> int:
    """The nearest multiple of a size, for the same reason."""
    return round(value / size) * size
