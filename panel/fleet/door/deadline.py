"""Time limits of requests, kept by one timer for all of them.

A timer of its own for each wait of each request was a sixth of what a request costs. So a request only writes down
until when it waits, and a round ten times a second looks at all that are open: a limit ends up to STEP_S late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Protocol

STEP_S = 0.1


class Watched(Protocol):
    """What a round looks at. `now` is the loop's time."""

    def look(self, now: float) -> None: ...


class Rounds:
    """Looks at everything that is open, every STEP_S while there is anything. Lives in one event loop."""

    def __init__(self) -> None:
        self._open: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: Watched) -> None:
        self._open.add(one)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STEP_S, self._round)

    def discard(self, one: Watched) -> None:
        self._open.discard(one)

    def _round(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(STEP_S, self._round) if self._open else None
        now = loop.time()
        for one in list(self._open):
            one.look(now)


class Limit:
    """The patience of one request, in the task that makes it: `with limit.within(5): await …` raises TimeoutError.

    One limit at a time. (asyncio.timeout came with Python 3.11; this runs on 3.10 too.)
    """

    __slots__ = ("_at", "_fired", "_loop", "_rounds", "_task", "soon")

    def __init__(self, rounds: Rounds) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a Limit needs a task")
        self._task, self._rounds = task, rounds
        self._at, self._fired = inf, False
        self.soon: Callable[[], None] | None = None  # called once, by the next round
        rounds.add(self)

    def close(self) -> None:
        self.soon = None
        self._rounds.discard(self)

    def now(self) -> float:
        return self._loop.time()

    def within(self, seconds: float, end: float = inf) -> Limit:
        """The next `with` lasts at most so long, and not beyond the loop's time `end`."""
        self._at = min(self._loop.time() + seconds, end)
        return self

    def look(self, now: float) -> None:
        if self.soon is not None:
            soon, self.soon = self.soon, None
            soon()
        # A task that someone else ends already must not be told that its time is over instead.
        if now >= self._at and not _cancelling(self._task):
            self._at, self._fired = inf, True
            self._task.cancel()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._at = inf
        if not self._fired:
            return
        self._fired = False
        if hasattr(self._task, "uncancel"):
            self._task.uncancel()
        # Someone else may have cancelled the task at the same moment; that must not be swallowed.
        if kind is asyncio.CancelledError and not _cancelling(self._task):
            raise TimeoutError from exc


def _cancelling(task: asyncio.Task[object]) -> int:
    """Cancellations asked and not taken back; Python 3.10 does not count them."""
    return task.cancelling() if hasattr(task, "cancelling") else 0
