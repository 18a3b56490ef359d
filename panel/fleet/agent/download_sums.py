"""Compare a file with the sum that a hub tells of it, and remember which files were compared.

A sum of 64 hex digits is the content's SHA-256, one of 40 that of a git blob (SHA-1 over "blob <size>", NUL, content).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from panel.fleet.agent.journal import read_json, write_json

STEP = 4 << 20
MOST = 20_000  # files remembered
SMALL = 1 << 20  # bytes up to which comparing again is cheaper than remembering


def sum_of(path: Path, like: str, read: Callable[[int], None] = lambda count: None) -> str:
    """The file's sum, of the kind that `like` is; `read` hears of each step's bytes. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, 2)
        file.seek(0)
        if len(like) == 40:
            found: Any = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        else:
            found = hashlib.sha256()
        buffer = memoryview(bytearray(min(STEP, max(size, 1))))
        while count := file.readinto(buffer):
            found.update(buffer[:count])
            read(count)
    return str(found.hexdigest())


class Checked:
    """Which files had which sum, by size, time of the last write and inode, so that a large one is read once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lock = threading.Lock()

    def knows(self, path: Path, sum_: str) -> bool:
        raw = read_json(self.file)
        return isinstance(raw, dict) and raw.get(str(path.resolve())) == _stamp(path, sum_)

    def keep(self, path: Path, sum_: str) -> None:
        if path.stat().st_size < SMALL:
            return
        with self.lock:
            raw = read_json(self.file)
            known: dict[str, Any] = raw if isinstance(raw, dict) else {}
            known.pop(str(path.resolve()), None)
            known[str(path.resolve())] = _stamp(path, sum_)
            write_json(self.file, dict(list(known.items())[-MOST:]))


def _stamp(path: Path, sum_: str) -> list[Any]:
    found = path.stat()
    return [sum_, found.st_size, found.st_mtime_ns, found.st_ino]
