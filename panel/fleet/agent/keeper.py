"""Bounds the log of a job whose shim was killed, from the agent; the work itself is shim.LogBound's."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from panel.fleet.agent.logfile import Book
from panel.fleet.agent.shim import LogBound

SAMPLE = 4096


class Keeper:
    """Owns a handle on the log; `check` may be called often."""

    def __init__(self, handle: int, bound: LogBound) -> None:
        self.handle, self.bound = handle, bound
        self._next = 0.0

    @classmethod
    def open(cls, folder: Path, head: int, tail: int, book: Book) -> Keeper:
        """Go on where the shim stopped, even in the middle of moving the log aside."""
        handle = os.open(folder / "log", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        bound = LogBound(handle, head, tail, ctypes.CDLL(None, use_errno=True), f"{folder}/")
        bound.resume(book.hole, book.base, book.prev_start)
        if book.moving:
            _recover(folder, handle, bound)
        return cls(handle, bound)

    def check(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.bound.check()

    def close(self) -> None:
        os.close(self.handle)


def _recover(folder: Path, handle: int, bound: LogBound) -> None:
    """The shim died while it moved the log: the copy counts if the log was cut already, else it never happened."""
    moved = folder / "log.prev.new"
    start = bound.head if bound.prev_start < 0 else 0
    size = moved.stat().st_size if moved.exists() else 0
    live = os.fstat(handle).st_size
    with moved.open("rb") if size else open(os.devnull, "rb") as copy:  # noqa: PTH123
        copy.seek(max(0, size - SAMPLE))
        sample = copy.read()
    uncut = live >= start + size and os.pread(handle, len(sample), start + size - len(sample)) == sample
    if size == 0 or uncut:
        moved.unlink(missing_ok=True)
        bound.tell()
        return
    bound.prev_start = bound.base + start
    bound.base += start + size
    bound.finish_move()
