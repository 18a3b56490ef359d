"""Read a job's bounded log by true offsets, whatever the shim has removed or moved meanwhile; see shim.LogBound."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

TRIES = 20


@dataclass(frozen=True)
class Piece:
    """Bytes from `start` on; `skipped` bytes right before `start` are no longer on this host."""

    start: int
    data: bytes
    skipped: int

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(frozen=True)
class Book:
    """What log.json says: `base` is the offset of the live file's first byte; `prev_start` -1 means never rotated."""

    hole: tuple[int, int] | None = None
    base: int = 0
    head: int = 0
    prev_start: int = -1
    moving: bool = False


class LogFile:
    """The log in one job's folder. Cheap to ask often: unchanged bookkeeping is not read again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key: tuple[int, int] | None = None
        self._book = Book()

    def book(self) -> Book:
        """The newest bookkeeping. Raises OSError or ValueError when it is there and unreadable."""
        path = self.folder / "log.json"
        try:
            found = path.stat()
            key = (found.st_ino, found.st_mtime_ns)
            if key != self._key:
                raw = json.loads(path.read_text())
                hole = raw["hole"]
                self._book = Book(
                    hole=(int(hole[0]), int(hole[1])) if hole else None,
                    base=int(raw["base"]),
                    head=int(raw["head"]),
                    prev_start=int(raw["prev_start"]),
                    moving=bool(raw["moving"]),
                )
                self._key = key
        except FileNotFoundError:
            self._key, self._book = None, Book()
        return self._book

    def facts(self) -> tuple[int, tuple[int, int] | None, float | None]:
        """(bytes written so far, removed part, time of the newest output or None)."""
        book = self.book()
        try:
            live = (self.folder / "log").stat()
        except FileNotFoundError:
            return book.base, book.hole, None
        size = book.base + live.st_size
        return size, book.hole, live.st_mtime if size else None

    def size(self) -> int:
        return self.facts()[0]

    def read(self, offset: int, limit: int) -> Piece | None:
        """At most `limit` bytes from `offset` or, when that is in the removed part, from the end of it.

        None while the log is just being moved; ask again. Empty data means that there is nothing newer.
        """
        for _ in range(TRIES):
            book = self.book()
            if book.moving:
                return None
            start = offset
            if book.hole is not None and book.hole[0] <= offset < book.hole[1]:
                start = book.hole[1]
            data = self._bytes(book, start, limit)
            # The bound tells before it removes: with the same bookkeeping afterwards, what was read is text.
            if self.book() == book:
                return Piece(start, data, start - offset)
        return None

    def _bytes(self, book: Book, start: int, limit: int) -> bytes:
        if book.hole is not None and start < book.hole[0]:
            limit = min(limit, book.hole[0] - start)
        name, origin = "log", book.base
        if book.prev_start >= 0 and start < book.base:
            name, origin = ("log.head", 0) if start < book.head else ("log.prev", book.prev_start)
        try:
            handle = os.open(self.folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(handle, limit, max(0, start - origin))
        finally:
            os.close(handle)
