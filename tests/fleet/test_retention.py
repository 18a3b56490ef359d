"""Old logs become files before they go, by age and by size; what runs stays, and what was written stays true."""

import gzip
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages
from django.test import Client
from django.utils import timezone

from panel.audit.models import Event
from panel.core import exports
from panel.fleet import logstore, retention
from panel.fleet.models import Host, Job, JobLog
from tests.deployments import builders

pytestmark = pytest.mark.django_db
MIB = 1 << 20


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> Path:
    settings.BERTH_EXPORT_FOLDER = tmp_path / "exports"
    return tmp_path / "exports"


def make(days_ago: float | None, text: bytes = b"one line\n") -> Job:
    """A job that ended so long ago (None: it goes on), with its log."""
    host = Host.objects.first() or Host.objects.create(name="quay", token_hash="x")
    ended = timezone.now() - timedelta(days=days_ago) if days_ago is not None else None
    job = Job.objects.create(host=host, kind="engine", open=ended is None, ended_at=ended)
    JobLog.objects.create(job=job)
    for start in range(0, len(text), MIB):
        logstore.append(job.pk, start, text[start : start + MIB])
    return job


def kept(job: Job) -> bytes:
    return b"".join(part.data for part in logstore.read_all(job.pk))


def read(job: Job) -> bytes:
    return gzip.decompress(exports.path_of(retention.file_of(job)).read_bytes())


def test_nothing_goes_unless_someone_said_so() -> None:
    old = make(4000)
    assert retention.keep_up() is False and kept(old) == b"one line\n"


def test_by_age_and_only_what_is_over(settings: Any, folder: Path) -> None:
    settings.BERTH_LOG_KEEP_DAYS = 30
    old, young, running = make(31), make(29), make(None)
    retention.keep_up()
    assert (kept(old), kept(young), kept(running)) == (b"", b"one line\n", b"one line\n")
    assert read(old) == b"one line\n" and len(list(folder.rglob("*.gz"))) == 1
    row = JobLog.objects.get(pk=old.pk)
    assert row.size == 9 and logstore.kept_nothing(row), "its length stays, so that offsets stay true"
    told = Event.objects.get(verb="logs.exported")
    assert told.actor == "system" and told.facts == {"logs": 1, "bytes": 9, "folder": "logs"}
    retention.keep_up()
    assert Event.objects.filter(verb="logs.exported").count() == 1, "it went once"


def test_by_size_the_oldest_go_and_their_segments_too(settings: Any) -> None:
    settings.BERTH_LOG_KEEP_MIB = 2
    first, second, newest = make(3, b"a" * MIB), make(2, b"b" * MIB), make(1, b"c" * (MIB - 10))
    names = [name for _start, _end, name in JobLog.objects.get(pk=first.pk).segments]
    assert names and all(storages["logs"].exists(name) for name in names)
    retention.keep_up()
    assert kept(first) == b"" and read(first) == b"a" * MIB
    assert len(kept(second)) == MIB and len(kept(newest)) == MIB - 10
    assert not any(storages["logs"].exists(name) for name in names)


def test_what_is_missing_is_told_in_the_file(settings: Any) -> None:
    settings.BERTH_LOG_KEEP_DAYS = 1
    job = make(2, b"abc")
    logstore.append(job.pk, 10, b"later", skipped=7)
    retention.keep_up()
    assert read(job) == b"abc\n[7 bytes were not kept]\nlater"


def test_a_full_or_missing_folder_keeps_the_logs(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    settings.BERTH_EXPORT_FOLDER, settings.BERTH_LOG_KEEP_DAYS = tmp_path / "a file", 1
    old = make(2)
    with pytest.raises(OSError):
        retention.keep_up()
    assert kept(old) == b"one line\n"


def test_a_log_that_changes_meanwhile_stays(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.BERTH_LOG_KEEP_DAYS = 1
    old, write = make(2), exports.write

    def and_more(name: str, parts: Any) -> Path:
        path = write(name, parts)
        logstore.append(old.pk, 9, b"and more\n")
        return path

    monkeypatch.setattr(exports, "write", and_more)
    retention.keep_up()
    assert kept(old) == b"one line\nand more\n"
    assert not Event.objects.filter(verb="logs.exported").exists()


def test_much_is_done_in_turns(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.BERTH_LOG_KEEP_DAYS = 1
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    jobs = [make(n) for n in (5, 4, 3)]
    assert retention.keep_up() is True and [kept(job) for job in jobs] == [b"", b"", b"one line\n"]
    assert retention.keep_up() is False and kept(jobs[2]) == b""


def test_a_deleted_deployment_keeps_its_record_and_the_page_says_where_the_log_is(
    settings: Any, client: Client, django_user_model: Any
) -> None:
    settings.BERTH_LOG_KEEP_DAYS = 1
    client.force_login(django_user_model.objects.create_user("ada", password="x", role="viewer"))
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy)
    run = builders.make_run(row, copy)
    page = f"/runs/{run.pk}/"
    row.deleted_at = timezone.now()
    row.save()
    assert b'class="log' in client.get(page).content
    Job.objects.filter(pk=run.job_id).update(open=False, state="ended", ended_at=timezone.now() - timedelta(days=9))
    retention.keep_up()
    answer = client.get(page)
    run.job.refresh_from_db()
    assert answer.status_code == 200 and retention.file_of(run.job) in answer.content.decode()
    assert b'class="log' not in answer.content
