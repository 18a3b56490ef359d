"""What earlier launches teach the next estimate: how far the cache was from what was foreseen. Pure.

Of one host, engine version, family of models and number of GPUs side by side the difference is nearly constant (the
same configuration repeats to 0.01 GiB; formulas measured on H100s), since it comes from libraries, the driver and the
allocator. So the median of the last launches is added, where they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from models_catalog.estimate.plan import Amount

LAST = 12  # launches that count, the newest
LEAST = 3  # fewer may all have been odd: the first start on a machine, a neighbour that was just leaving
MOST_GIB = 4.0  # a larger difference is no error of the estimate: something else had the memory, or gave it back
AGREE = 0.75  # of the launches; the others may be odd ones
LEAST_DOUBT_GIB = 0.1  # the log rounds to 0.01, and a cold compile cache moves it a little
SCATTER_GIB = 0.5  # launches that differ by more say nothing about the next


@dataclass(frozen=True)
class Lesson:
    """The correction of the cache of each GPU, GiB: `shift` is added, the next launch is within `doubt` of that."""

    shift_gib: float
    doubt_gib: float
    launches: int


def lesson(residuals: Sequence[float]) -> Lesson | None:
    """From the differences measured − foreseen (uncorrected) of one kind of launch, GiB, the newest first.

    None where they are few, or differ too much. The shift is 0 unless it is at least twice the scatter: then every
    launch that agrees with the others is nearer to the corrected number than to the plain one.
    """
    counted = [each for each in residuals if abs(each) <= MOST_GIB][:LAST]
    if len(counted) < LEAST:
        return None
    middle = median(counted)
    distances = sorted(abs(each - middle) for each in counted)
    scatter = distances[ceil(AGREE * len(distances)) - 1]
    if scatter > SCATTER_GIB:
        return None
    shift = middle if abs(middle) >= 2 * scatter else 0.0
    doubt = max(LEAST_DOUBT_GIB, 2 * scatter + abs(middle - shift))
    return Lesson(round(shift, 4), round(doubt, 4), len(counted))


def moved(parts: Sequence[Amount], shift_gib: float) -> tuple[Amount, ...]:
    """The parts beside the cache, so that all still come to the budget: less by what the cache has more.

    The first part changes first, the next only when nothing is left of it.
    """
    left, found = shift_gib, []
    for part in parts:
        value = part.value or 0.0
        change = min(left, value) if left > 0 else left
        left -= change
        found.append(_less(part, change) if change else part)
    return tuple(found)


def _less(part: Amount, gib: float) -> Amount:
    def end(value: float | None) -> float | None:
        return None if value is None else max(0.0, value - gib)

    return Amount(end(part.value), end(part.low), end(part.high), part.reason)
