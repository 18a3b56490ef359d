"""The panel's copy of job logs: offset-addressed appends, bounded size, bounded reads.

New bytes go to the row's `tail`; when that is large enough it is sealed into an object of the storage named "logs".
An append is decided by one guarded update on `size`, so that a repeated or late upload stores nothing twice.
"""

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.utils.translation import gettext_lazy as _

from panel.core import sse, trouble
from panel.core.errors import PanelError
from panel.fleet import live
from panel.fleet.models import JobLog

log = logging.getLogger(__name__)

SAID_EVERY_S = 60.0  # a full disk is met at every part of every log
SEAL_BYTES = 256 << 10
HEAD_BYTES = 8 << 20  # kept for good when the cap drops the middle
MAX_READ = 1 << 20
LIVE_BYTES = 32 << 10  # longer pieces are fetched by the page, not sent through the broker


_said_at = float("-inf")


class CannotStore(PanelError):
    """Nothing was stored; the host keeps the bytes and sends them again."""

    code = "link.log_storage"
    message = _("The panel cannot write down logs now: %(why)s.")
    hint = _(
        "Make room where the data folder lies (BERTH_DATA). The hosts keep the logs meanwhile and send them again."
    )
    status = 507


@dataclass(frozen=True)
class Part:
    """Bytes [start, start + len(data)) of a log; `gap` bytes before `start` are not stored any more."""

    start: int
    data: bytes
    gap: int
    size: int  # bytes of the whole log so far

    @property
    def end(self) -> int:
        return self.start + len(self.data)


def append(job_id: uuid.UUID, offset: int, data: bytes, skipped: int = 0) -> tuple[int, bool]:
    """Store bytes that begin at `offset`; `skipped` says how many bytes before it the host no longer has.

    Returns (bytes now stored, whether it grew). Bytes already here are dropped; a hole is refused by answering
    with the size, where the agent then goes on. Raises CannotStore, and then nothing has changed.
    """
    row = JobLog.objects.get(pk=job_id)
    size, tail, segments = row.size, bytes(row.tail), list(row.segments)
    gap = max(0, offset - size)
    if gap and skipped < gap:
        return size, False
    fresh = data if gap else data[size - offset :]
    if not fresh and not gap:
        return size, False
    sealed: list[str] = []
    if gap:
        tail, segments = _seal(job_id, size, tail, segments, sealed)
        segments = [*segments, [size, size + gap, ""]]
        size += gap
    tail += fresh
    size += len(fresh)
    if len(tail) >= SEAL_BYTES:
        tail, segments = _seal(job_id, size, tail, segments, sealed)
    segments, dropped = _bounded(segments)
    stored = JobLog.objects.filter(pk=job_id, size=row.size).update(size=size, tail=tail, segments=segments)
    if not stored:  # someone stored the same bytes first; what we wrote aside is not referenced
        for name in sealed:
            storages["logs"].delete(name)
        return JobLog.objects.values_list("size", flat=True).get(pk=job_id), False
    for old in dropped:
        storages["logs"].delete(old)
    _publish(job_id, size - len(fresh), fresh)
    return size, True


def _seal(
    job_id: uuid.UUID, size: int, tail: bytes, segments: list[list], sealed: list[str]
) -> tuple[bytes, list[list]]:
    """Move the tail into an object of its own; `sealed` collects what was written."""
    if not tail:
        return tail, segments
    name = f"jobs/{job_id}/{size - len(tail):015d}-{uuid.uuid4().hex[:8]}"  # of nobody else: a half one can be deleted
    try:
        name = storages["logs"].save(name, ContentFile(tail))
    except OSError as exc:
        _cannot(name, exc)
        raise CannotStore(params={"why": _why(exc)}) from exc
    sealed.append(name)
    return b"", [*segments, [size - len(tail), size, name]]


def _why(exc: OSError) -> str:
    return os.strerror(exc.errno) if exc.errno else type(exc).__name__


def _cannot(name: str, exc: OSError) -> None:
    """Leave nothing half written, and say so: in the log now and then, to the pages that show logs."""
    global _said_at
    with contextlib.suppress(OSError):
        storages["logs"].delete(name)
    if time.monotonic() - _said_at > SAID_EVERY_S:
        _said_at = time.monotonic()
        log.error("logs cannot be written down: %s; the hosts keep them and send them again", exc)
    trouble.note(trouble.LOGS, _why(exc))


def _bounded(segments: list[list]) -> tuple[list[list], list[str]]:
    """Drop the oldest segments after the head when the cap is passed; gaps that touch become one."""
    cap = settings.BERTH_LOG_CAP_MIB << 20
    stored = sum(end - start for start, end, name in segments if name)
    dropped: list[str] = []
    kept: list[list] = []
    for start, end, name in segments:
        if name and stored > cap and start >= min(HEAD_BYTES, cap // 8):
            dropped.append(name)
            stored -= end - start
            name = ""
        if not name and kept and not kept[-1][2]:
            kept[-1][1] = end
        else:
            kept.append([start, end, name])
    return kept, dropped


def read(job_id: uuid.UUID, offset: int, limit: int = MAX_READ) -> Part:
    """At most `limit` bytes from `offset` on. A gap is stepped over and told. Beyond the end the data is empty."""
    row = JobLog.objects.get(pk=job_id)
    limit = max(1, min(limit, MAX_READ))
    tail_start = row.size - len(row.tail)
    position, gap = max(0, min(offset, row.size)), 0
    for start, end, name in row.segments:
        if end <= position:
            continue
        if not name:
            gap += end - position
            position = end
            continue
        with storages["logs"].open(name) as file:
            file.seek(position - start)
            return Part(position, file.read(limit), gap, row.size)
    return Part(position, bytes(row.tail)[position - tail_start :][:limit], gap, row.size)


def read_all(job_id: uuid.UUID, offset: int = 0) -> Iterator[Part]:
    """The stored log from `offset` to its end in parts; gaps are told by each part."""
    while True:
        part = read(job_id, offset)
        if not part.data:
            return
        yield part
        offset = part.end


def drop(row: JobLog) -> int:
    """Forget the bytes of a log as it was read; returns how many there were, 0 when it has changed since.

    The row stays: offsets keep their meaning, and all before `size` counts as not kept any more.
    """
    kept = len(row.tail) + sum(end - start for start, end, name in row.segments if name)
    as_read = JobLog.objects.filter(pk=row.pk, size=row.size, segments=row.segments)
    if not kept or not as_read.update(tail=b"", segments=[[0, row.size, ""]]):
        return 0
    for _start, _end, name in row.segments:
        if name:
            storages["logs"].delete(name)
    return kept


def kept_nothing(row: JobLog) -> bool:
    """Whether there was a log, and all of it went to the export folder."""
    return row.size > 0 and not row.tail and row.segments == [[0, row.size, ""]]


def tail_offset(job_id: uuid.UUID, wanted: int) -> int:
    """Where the last `wanted` bytes begin."""
    return max(0, JobLog.objects.values_list("size", flat=True).get(pk=job_id) - wanted)


def _publish(job_id: uuid.UUID, offset: int, fresh: bytes) -> None:
    """Send new bytes to the open pages. What is too long, or ends inside a character, they fetch by offset."""
    text: str | None = None
    if len(fresh) <= LIVE_BYTES:
        with contextlib.suppress(UnicodeDecodeError):
            text = fresh.decode()
    data = {"job": str(job_id), "offset": offset, "end": offset + len(fresh)}
    sse.publish(live.job_topic(job_id), "log", data | ({"text": text} if text is not None else {}))
