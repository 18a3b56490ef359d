"""Logs by offset: never twice, never a hole unseen, bounded."""

import errno
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, storages

from panel.fleet import logstore
from panel.fleet.models import Host, Job, JobLog

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> uuid.UUID:
    host = Host.objects.create(name="h", token_hash="x")
    job = Job.objects.create(host=host, kind="engine")
    JobLog.objects.create(job=job)
    return job.pk


def whole(job: uuid.UUID) -> bytes:
    return b"".join(part.data for part in logstore.read_all(job))


def test_appends_and_reads_by_offset(job: uuid.UUID) -> None:
    assert logstore.append(job, 0, b"one\n") == (4, True)
    assert logstore.append(job, 4, b"two\n") == (8, True)
    assert logstore.read(job, 4).data == b"two\n"
    assert logstore.read(job, 99).data == b""
    assert whole(job) == b"one\ntwo\n"


def test_a_repeated_or_overlapping_upload_stores_nothing_twice(job: uuid.UUID) -> None:
    logstore.append(job, 0, b"abcdef")
    assert logstore.append(job, 0, b"abcdef") == (6, False)
    assert logstore.append(job, 3, b"defghi") == (9, True)
    assert whole(job) == b"abcdefghi"


def test_a_part_that_would_leave_a_hole_is_refused_with_the_size(job: uuid.UUID) -> None:
    logstore.append(job, 0, b"abc")
    assert logstore.append(job, 10, b"late") == (3, False)
    assert whole(job) == b"abc"


def test_a_hole_that_the_host_announces_is_kept_as_a_gap(job: uuid.UUID) -> None:
    logstore.append(job, 0, b"abc")
    assert logstore.append(job, 10, b"later", skipped=7) == (15, True)
    part = logstore.read(job, 3)
    assert (part.start, part.gap, part.data) == (10, 7, b"later")
    assert whole(job) == b"abclater"


def test_long_logs_are_sealed_into_storage_and_read_back_whole(job: uuid.UUID) -> None:
    pieces = [bytes([65 + n]) * 100_000 for n in range(10)]
    offset = 0
    for piece in pieces:
        offset, grew = logstore.append(job, offset, piece)
        assert grew
    row = JobLog.objects.get(pk=job)
    assert len(bytes(row.tail)) < logstore.SEAL_BYTES
    assert row.segments
    assert whole(job) == b"".join(pieces)


def test_the_middle_goes_first_when_the_cap_is_reached(job: uuid.UUID, settings) -> None:
    settings.BERTH_LOG_CAP_MIB = 2
    size = 0
    for n in range(12):
        size, _grew = logstore.append(job, size, bytes([65 + n]) * 400_000)
    row = JobLog.objects.get(pk=job)
    kept = sum(end - start for start, end, name in row.segments if name)
    assert kept <= (2 << 20) + 400_000
    assert row.size == 12 * 400_000
    assert logstore.read(job, 0).data.startswith(b"A"), "the head stays"
    assert logstore.read(job, row.size - 5).data == b"LLLLL", "the newest stays"
    names = {name for _s, _e, name in row.segments if name}
    _folders, files = storages["logs"].listdir(f"jobs/{job}")
    assert {f"jobs/{job}/{f}" for f in files} == names, "dropped parts are gone from the storage"


def test_two_uploads_at_once_store_the_bytes_once(job: uuid.UUID, monkeypatch) -> None:
    """The second writer read the row before the first one wrote it."""
    row = JobLog.objects.get(pk=job)
    monkeypatch.setattr(JobLog.objects, "get", lambda **_: row, raising=False)
    assert logstore.append(job, 0, b"abc") == (3, True)
    size, grew = logstore.append(job, 0, b"abc")
    assert (size, grew) == (3, False)
    monkeypatch.undo()
    assert whole(job) == b"abc"


def test_a_full_disk_stores_nothing_half_and_goes_on_later(job: uuid.UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FileSystemStorage._save
    part = b"x" * (logstore.SEAL_BYTES - 1)

    def full(self: Any, name: str, content: Any) -> str:
        real(self, name, ContentFile(content.read()[:1000]))
        raise OSError(errno.ENOSPC, "No space left on device")

    noted: list[str] = []
    monkeypatch.setattr("panel.core.trouble.note", lambda what, why: noted.append(why))
    assert logstore.append(job, 0, part) == (len(part), True)
    monkeypatch.setattr(FileSystemStorage, "_save", full)
    for _again in range(3):
        with pytest.raises(logstore.CannotStore, match="No space left on device"):
            logstore.append(job, len(part), b"abc")
    assert whole(job) == part and noted == ["No space left on device"] * 3
    folder = Path(storages["logs"].path(f"jobs/{job}"))
    assert not folder.exists() or not list(folder.iterdir()), "nothing half is left"
    monkeypatch.undo()
    assert logstore.append(job, len(part), b"abc") == (len(part) + 3, True)
    assert whole(job) == part + b"abc"
