"""A file that is being downloaded: `<sum>.part` with its bytes where they belong, `<sum>.map` with what of it is there.

The file is parted into pieces; each is filled from its beginning, and the map holds for each how many bytes it has:

    HEAD bytes   JSON: format, sum, size, length of a piece, and in which boot of the machine `done` was written
    8·n bytes    done: written to the part file, known to the kernel. True as long as the machine does not start again
    8·n bytes    synced: on the disk for sure. What counts after a restart of the machine

Each number is written after the bytes that it tells of, so whatever dies when, no byte is fetched twice that is there,
and none is believed that is not. The sum of the whole file has the last word anyway. Not thread-safe but for `write`
on different pieces.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from panel.fleet.agent.procs import boot_id

FORMAT = 1
HEAD = 512
PIECE, MOST_PIECES = 8 << 20, 1 << 16
PART, MAP = ".part", ".map"


def piece_size(size: int) -> int:
    """8 MiB, or as much more as keeps the map small."""
    return PIECE * max(1, -(-size // (PIECE * MOST_PIECES)))


@dataclass
class Part:
    """See the module. Sizes in bytes."""

    base: Path  # without the endings
    sum: str
    size: int
    piece: int
    file: int  # descriptors
    map: int
    done: list[int]
    synced: list[int] = field(default_factory=list)

    @classmethod
    def open(cls, base: Path, sum_: str, size: int) -> Part:
        """Go on with what is there, else begin. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(base.with_name(base.name + PART), flags, 0o644)
        try:
            map_ = os.open(base.with_name(base.name + MAP), flags, 0o644)
        except BaseException:
            os.close(file)
            raise
        piece = piece_size(size)
        made = cls(base, sum_, size, piece, file, map_, [0] * -(-size // piece))
        try:
            made._load()
        except BaseException:
            made.close()
            raise
        return made

    # --- the map ------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        raw = os.pread(self.map, HEAD + 16 * len(self.done), 0)
        head = _head(raw)
        wanted = {"format": FORMAT, "sum": self.sum, "size": self.size, "piece": self.piece}
        whole = len(raw) == HEAD + 16 * len(self.done) and os.fstat(self.file).st_size == self.size
        if not whole or {name: head.get(name) for name in wanted} != wanted:
            self._begin()
            return
        numbers = struct.unpack_from(f"<{2 * len(self.done)}Q", raw, HEAD)
        count = len(self.done)
        same_boot = head.get("boot") == boot_id()
        self.synced = [min(number, self.length(i)) for i, number in enumerate(numbers[count:])]
        told = numbers[:count] if same_boot else self.synced
        self.done = [min(number, self.length(i)) for i, number in enumerate(told)]
        if not same_boot:
            os.pwrite(self.map, struct.pack(f"<{count}Q", *self.done), HEAD)
            os.fdatasync(self.map)  # before the head says that they are of this boot
            self._write_head()

    def _begin(self) -> None:
        os.ftruncate(self.map, 0)  # first: an old map must not tell of the new file
        os.fdatasync(self.map)
        os.ftruncate(self.file, 0)
        os.ftruncate(self.file, self.size)
        self.done = [0] * len(self.done)
        self.synced = list(self.done)
        os.pwrite(self.map, bytes(HEAD + 16 * len(self.done)), 0)
        self._write_head()

    def _write_head(self) -> None:
        head = {"format": FORMAT, "sum": self.sum, "size": self.size, "piece": self.piece, "boot": boot_id()}
        os.pwrite(self.map, json.dumps(head).encode().ljust(HEAD), 0)
        os.fdatasync(self.map)

    # --- bytes --------------------------------------------------------------------------------------------------------

    def length(self, index: int) -> int:
        return min(self.piece, self.size - index * self.piece)

    @property
    def have(self) -> int:
        return sum(self.done)

    @property
    def complete(self) -> bool:
        return self.have == self.size

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Put down bytes that go on where a piece's own end. Raises OSError."""
        view = memoryview(data)
        while view:
            index = at // self.piece
            start = at - index * self.piece
            if start != self.done[index]:
                raise ValueError("not the next bytes of this piece")
            room = view[: self.length(index) - start]
            count = os.pwrite(self.file, room, at)
            os.pwrite(self.map, struct.pack("<Q", start + count), HEAD + 8 * index)
            self.done[index] = start + count
            view, at = view[count:], at + count

    def sync(self) -> None:
        """Let what is there survive a power cut too."""
        self.to_sync()()

    def to_sync(self) -> Callable[[], None]:
        """The same as something to call later, which takes its time: this part may be closed meanwhile."""
        now = list(self.done)
        if now == self.synced:
            return lambda: None
        file, map_ = os.dup(self.file), os.dup(self.map)

        def bring() -> None:
            try:
                os.fdatasync(file)
                os.pwrite(map_, struct.pack(f"<{len(now)}Q", *now), HEAD + 8 * len(now))
                self.synced = now
            finally:
                os.close(file)
                os.close(map_)

        return bring

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        for handle in (self.file, self.map):
            with contextlib.suppress(OSError):
                os.close(handle)


def _head(raw: bytes) -> dict[str, object]:
    try:
        found = json.loads(raw[:HEAD])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def finish(base: Path) -> None:
    """The file, whole and compared by now, gets its name. The map goes after it: alone it tells of nothing."""
    part = base.with_name(base.name + PART)
    handle = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    part.rename(base)
    sync_folder(base.parent)
    discard(base)


def discard(base: Path) -> int:
    """Delete what is left of an unfinished download; bytes of the disk that come back."""
    freed = 0
    for ending in (MAP, PART):
        path = base.with_name(base.name + ending)
        with contextlib.suppress(FileNotFoundError):
            freed += path.lstat().st_blocks * 512
            path.unlink()
    return freed


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
