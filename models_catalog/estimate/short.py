"""Where a model does not fit: how much is missing, and what would make it fit there or elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from models_catalog.estimate.alone import most_share
from models_catalog.estimate.machines import Machine, answer, usual
from models_catalog.estimate.need import LEAST_CONTEXT, Needs

STEP = 1024  # tokens
MOST_GPUS = 8
GOOD = ("fits", "tight")


@dataclass(frozen=True)
class Short:
    """GiB of each GPU, or of the machine: what one request of the context needs, and what an engine may have there.

    `need_gib` None: that is not known. `context` is the longest that fits there, `other` the least other machine that
    takes the wanted one; None where there is none, or where nobody looked.
    """

    machine: Machine
    need_gib: float | None
    have_gib: float
    context: int | None = None
    other: Machine | None = None


def usual_by_size() -> list[Machine]:
    """Usual GPUs by what they hold together, up to eight of a kind."""
    alone = [one for one in usual([]) if one.count == 1]
    all_ = [replace(one, count=count) for one in alone for count in (1, 2, 4, MOST_GPUS)]
    return sorted(all_, key=lambda one: (one.total_mib * one.count, one.count))


def short(needs: Needs, machine: Machine, context: int, version: str, others: Iterable[Machine] = ()) -> Short:
    """Of a machine on which `context` does not fit. `others` are asked in their order, after more GPUs of its kind."""
    told = answer(needs, machine, context, version)
    shorter = _shorter(needs, machine, context, version)
    more = [] if shorter else [*_more(machine), *others]
    other = next((one for one in more if answer(needs, one, context, version).verdict in GOOD), None)
    return Short(machine, told.need_gib, _have_gib(machine), shorter, other)


def _have_gib(machine: Machine) -> float:
    if machine.cpu:
        return machine.total_mib / 1024
    return machine.total_mib * most_share(machine.total_mib, machine.total_mib, machine.count) / 1024


def _shorter(needs: Needs, machine: Machine, context: int, version: str) -> int | None:
    """By halving: more context never takes less memory."""
    low, high = 0, (context - 1) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        fits = answer(needs, machine, middle * STEP, version).verdict in GOOD
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * STEP if low * STEP >= LEAST_CONTEXT else None


def _more(machine: Machine) -> Iterator[Machine]:
    count = 1
    while not machine.cpu and (count := count * 2) <= MOST_GPUS:
        if count > machine.count:
            yield replace(machine, count=count)
