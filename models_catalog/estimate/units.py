"""Units and rounding. Sizes inside the estimate are bytes; a GiB is 2^30 of them."""

from __future__ import annotations

MIB, GIB = 2**20, 2**30


def ceil_div(number: float, by: float) -> int:
    """How many times `by` is needed to hold `number`."""
    return int(-(-number // by))


def round_up(number: float, to: int) -> int:
    """The next multiple of `to`."""
    return ceil_div(number, to) * to


def pages(number: float, size: float) -> int:
    """How many whole things of `size` go into `number`; none into less than nothing."""
    return max(0, int(number // size)) if size else 0
