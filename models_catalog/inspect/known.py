"""What earlier scans found, kept on the host: files that did not change since are not opened again. Pure.

An entry counts as long as the sign made of its files' stamps (size, inode, times) is the same, and only for the very
code that made it. It is a cache: whatever is wrong with it, the scan goes on without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sqlite3
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

log = logging.getLogger(__name__)

SETTLE_NS = 2_000_000_000  # what changed so short ago may change again within one tick of the disk's clock
BATCH = 500
BROKEN = (OSError, ValueError, RecursionError, sqlite3.Error)
LAYOUT = "CREATE TABLE IF NOT EXISTS found (name TEXT PRIMARY KEY, sign TEXT NOT NULL, record TEXT NOT NULL)"


@cache
def _code_mark() -> str:
    """A hash of the code that inspects; "" when it cannot be read, and then nothing is kept."""
    room = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    try:
        for place in [room / "facts.py", *sorted([*room.glob("inspect/*.py"), *room.glob("sources/*.py")])]:
            digest.update(place.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()[:16]


def sign_of(*parts: object) -> str:
    """A short text that is another one as soon as any part is."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Known:
    """Use as a context: leaving it without an error forgets what was not asked for, since it is not there any more.

    Without a path it knows nothing and keeps nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.database: sqlite3.Connection | None = None
        self.asked: set[str] = set()
        self.fresh: list[tuple[str, str, str]] = []
        self.hits = 0

    def __enter__(self) -> Known:
        if self.path is not None and _code_mark():
            try:
                self.database = _open(self.path)
            except BROKEN as exc:
                self._drop(exc)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.database is None:
            return
        try:
            self._write()
            if kind is None:
                gone = [row for row in self.database.execute("SELECT name FROM found") if row[0] not in self.asked]
                self.database.executemany("DELETE FROM found WHERE name = ?", gone)
            self.database.commit()
            self.database.close()
            self.database = None
        except BROKEN as exc:
            self._drop(exc)

    def find(self, name: str, sign: str) -> dict[str, Any] | None:
        """What is known of this name; None when nothing is, or when its files changed."""
        self.asked.add(name)
        if self.database is None:
            return None
        try:
            row = self.database.execute("SELECT record FROM found WHERE name = ? AND sign = ?", (name, sign)).fetchone()
            record = json.loads(row[0]) if row else None
        except BROKEN as exc:
            self._drop(exc)
            return None
        if not isinstance(record, dict):
            return None
        self.hits += 1
        return record

    def keep(self, name: str, sign: str, record: dict[str, Any], newest_ns: int) -> None:
        """Remember; `newest_ns` is when the youngest of the files last changed."""
        if self.database is None or newest_ns > time.time_ns() - SETTLE_NS:
            return
        self.fresh.append((name, sign, json.dumps(record, separators=(",", ":"))))
        if len(self.fresh) >= BATCH:
            try:
                self._write()
            except BROKEN as exc:
                self._drop(exc)

    def _write(self) -> None:
        if self.database is not None:
            self.database.executemany("INSERT OR REPLACE INTO found VALUES (?, ?, ?)", self.fresh)
        self.fresh.clear()

    def _drop(self, why: Exception) -> None:
        """Go on without it; the next scan begins a new one."""
        log.warning("what earlier scans found cannot be used: %s", why)
        if self.database is not None:
            self.database.close()
        self.database = None
        self.fresh.clear()
        if self.path is not None and "locked" not in str(why):  # by another scan, which goes on with it
            with contextlib.suppress(OSError):  # then the next scan meets the same, and says the same
                self.path.unlink(missing_ok=True)


def _open(path: Path) -> sqlite3.Connection:
    """The database, emptied when other code made it. Raises one of BROKEN."""
    database = sqlite3.connect(path, timeout=1, isolation_level="DEFERRED")
    try:
        database.execute("PRAGMA synchronous = OFF")  # a machine that dies loses the cache, which is made anew
        database.execute(LAYOUT)
        mark = int(_code_mark(), 16) & 0x7FFFFFFF
        if database.execute("PRAGMA user_version").fetchone()[0] != mark:
            database.execute("DELETE FROM found")
            database.execute(f"PRAGMA user_version = {mark}")
            database.commit()
    except sqlite3.Error:
        database.close()
        raise
    path.chmod(0o600)
    return database
