"""The stored log of a run, for looking at its end: read through once with true line numbers, and where a line lies.

Lines are counted as in the file that people download (panel/fleet/log_answers.py): where the disk bound removed a
piece, that file has a line which says so.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

from deployments.diagnosis.reader import Reader
from panel.fleet import logstore
from panel.fleet.log_answers import removed

# Bytes that are read from the beginning, and as many of the newest; of those between, lines are counted.
MOST = 64 << 20
NEAR_BYTES = 24 << 10  # shown before a line that is far from the beginning
BEGIN_BYTES = 96 << 10  # a line in this first part is shown with all that stands before it


@dataclass(frozen=True)
class Whole:
    """A log that was read to its end. `marks` are (ends of lines above it, offset) of each part that was read."""

    reader: Reader = field(default_factory=Reader)
    job_id: uuid.UUID | None = None
    marks: tuple[tuple[int, int], ...] = ()

    def offset_of(self, number: int) -> int | None:
        """The offset at which the line with this 1-based number begins; None where there is no log."""
        above = [index for index, (lines, _start) in enumerate(self.marks) if lines < number - 1]
        if self.job_id is None or not self.marks or not above:
            return self.marks[0][1] if self.marks else None
        lines, start = self.marks[above[-1]]
        at = line_start(logstore.read(self.job_id, start).data, number - lines)
        if at is not None:
            return start + at
        return self.marks[above[-1] + 1][1] if len(self.marks) > above[-1] + 1 else None


def through(job_id: uuid.UUID) -> Whole:
    """Read all that is stored of a log, in parts, so that its size does not matter."""
    reader, marks = Reader(), []
    newest = logstore.tail_offset(job_id, MOST)
    for part in logstore.read_all(job_id):
        if part.gap:
            reader.feed(removed(part.gap))
        marks.append((reader.count, part.start))
        if part.end <= MOST or part.end > newest:
            reader.feed(part.data)
        else:
            reader.skip(part.data)
    return Whole(reader, job_id, tuple(marks))


def of_text(text: bytes) -> Whole:
    """What is no stored log."""
    reader = Reader()
    reader.feed(text)
    return Whole(reader)


def line_start(text: bytes, number: int) -> int | None:
    """Where the line with this 1-based number begins; None when there is no such line."""
    at = 0
    for _line in range(number - 1):
        at = text.find(b"\n", at) + 1
        if not at:
            return None
    return at


def place(block: dict[str, Any], read: Whole) -> None:
    """Tell an error block where in the log its root line begins, as `root_at` in bytes."""
    offset = read.offset_of(block["root_line"]) if "root_line" in block else None
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
