"""The stored log of a run, for looking at its end: newest bytes with true line numbers, and where a line lies.

Lines are counted as in the file that people download (panel/fleet/log_answers.py): where the disk bound removed a
piece, that file has a line which says so.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from panel.fleet import logstore
from panel.fleet.log_answers import removed

NEAR_BYTES = 24 << 10  # shown before a line that is far from the beginning
BEGIN_BYTES = 96 << 10  # a line in this first part is shown with all that stands before it


@dataclass(frozen=True)
class Newest:
    """The newest bytes of a log, above which `before` lines stand; `places` are (position in `text`, offset in it)."""

    text: bytes = b""
    before: int = 0
    places: tuple[tuple[int, int], ...] = ()

    def offset_of(self, position: int) -> int | None:
        """The offset in the whole log of a position in `text`; None where there is no log."""
        under = [place for place in self.places if place[0] <= position]
        return under[-1][1] + position - under[-1][0] if under else None


def newest(job_id: uuid.UUID, most: int) -> Newest:
    """At least the newest `most` bytes, or all there is. All before is read once, to count its lines."""
    start, before, text, places = logstore.tail_offset(job_id, most), 0, bytearray(), []
    for part in logstore.read_all(job_id):
        mark = removed(part.gap) if part.gap else b""
        if part.end <= start:
            before += part.data.count(b"\n") + mark.count(b"\n")
            continue
        text += mark
        places.append((len(text), part.start))
        text += part.data
    return Newest(bytes(text), before, tuple(places))


def line_start(text: bytes, number: int) -> int | None:
    """Where the line with this 1-based number begins; None when there is no such line."""
    at = 0
    for _line in range(number - 1):
        at = text.find(b"\n", at) + 1
        if not at:
            return None
    return at


def place(block: dict[str, Any], read: Newest) -> None:
    """Tell an error block where in the log its root line begins, as `root_at` in bytes."""
    start = line_start(read.text, block["root_line"] - read.before) if "root_line" in block else None
    offset = read.offset_of(start) if start is not None else None
    if offset is not None:
        block["root_at"] = offset


@dataclass(frozen=True)
class Window:
    """Where a page begins to show a log so that one line is in it: offset of a line's begin, and its number."""

    offset: int
    number: int


def window(job_id: uuid.UUID, root_line: int, root_at: int) -> Window:
    """The begin itself, or a line shortly before the one that begins at offset `root_at`."""
    if root_at <= BEGIN_BYTES:
        return Window(0, 1)
    part = logstore.read(job_id, root_at - NEAR_BYTES, NEAR_BYTES)
    data = part.data[: max(0, root_at - part.start)]
    first = data.find(b"\n") + 1
    if part.end < root_at or not first:  # a piece is not kept any more, or the line before is longer than all this
        return Window(root_at, root_line)
    return Window(part.start + first, root_line - data.count(b"\n", first))
