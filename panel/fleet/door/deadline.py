"""A time limit around awaits in the current task (asyncio.timeout came with Python 3.11; this runs on 3.10 too)."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadline:
    """`with Deadline(5): await …` raises TimeoutError when the time is over. Costs no task, so it fits a hot path."""

    __slots__ = ("_before", "_fired", "_handle", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._fired = False

    def __enter__(self) -> Deadline:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Deadline needs a task")
        self._task = task
        self._before = _cancelling(task)
        self._handle = task.get_loop().call_later(self._seconds, self._fire)
        return self

    def _fire(self) -> None:
        self._fired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._handle.cancel()
        if not self._fired:
            return
        if hasattr(self._task, "uncancel"):
            self._task.uncancel()
        # Someone else may have cancelled the task at the same moment; that must not be swallowed.
        if kind is asyncio.CancelledError and _cancelling(self._task) <= self._before:
            raise TimeoutError from exc


def _cancelling(task: asyncio.Task[object]) -> int:
    """Cancellations asked and not taken back; Python 3.10 does not count them."""
    return task.cancelling() if hasattr(task, "cancelling") else 0
