"""The months of the record: made ahead, strays taken in, old ones dropped by one recorded act; nothing is refused."""

import gzip
import json
import os
import subprocess
import sys
import threading
import uuid
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone, translation

from panel import audit
from panel.accounts.actor import Actor
from panel.audit import months
from panel.audit.models import AppendOnly, Event
from panel.audit.months import drop_before, keep_up, later, make_ready, month_of
from panel.core import daily, exports
from tests.servers import Servers

THIS = month_of(timezone.now())


def put(month: date, name: str = "chat", count: int = 1) -> None:
    """Acts of that month, as if they had been recorded then."""
    at = datetime(month.year, month.month, 15, 12, 0, 30, tzinfo=UTC)
    Event.objects.bulk_create(
        Event(at=at, verb="deployment.started", actor="ada", target_kind="deployment", target_id="1", target=name)
        for _ in range(count)
    )


def table_of(event: Event) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM audit_event WHERE id = %s", [event.pk])
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize(
    ("month", "by", "expected"),
    [
        (date(2026, 12, 1), 1, date(2027, 1, 1)),
        (date(2026, 1, 1), -1, date(2025, 12, 1)),
        (date(2026, 12, 1), -12, date(2025, 12, 1)),
        (date(2026, 12, 1), -100_000, date(1, 1, 1)),
    ],
)
def test_months_later(month: date, by: int, expected: date) -> None:
    assert later(month, by) == expected


@pytest.mark.django_db
def test_each_row_lies_in_its_month_and_a_month_without_table_refuses_nothing() -> None:
    now = audit.record("login", actor=None)
    assert table_of(now) == f"audit_event_{THIS:%Y_%m}"
    put(date(2019, 5, 1))
    old = Event.objects.get(at__year=2019)
    assert table_of(old) == "audit_event_other"
    assert make_ready() == [date(2019, 5, 1)]
    assert table_of(old) == "audit_event_2019_05"
    assert Event.objects.get(pk=old.pk).target == "chat"
    assert make_ready() == []


@pytest.mark.django_db
def test_months_are_there_before_they_begin() -> None:
    assert {THIS, later(THIS, 1), later(THIS, 2)} <= set(months.existing())
    soon = datetime.combine(later(THIS, 5), datetime.min.time(), UTC)
    make_ready(soon)
    assert {later(THIS, n) for n in (5, 6, 7)} <= set(months.existing())


@pytest.mark.django_db
def test_dropping_takes_what_is_older_and_says_so() -> None:
    for n, count in ((3, 2), (2, 3), (1, 4), (0, 1)):
        put(later(THIS, -n), f"m{n}", count)
    ada = Actor(name="ada", id=1, via="shell")
    gone = drop_before(later(THIS, -1), actor=ada)
    assert gone == months.Dropped([later(THIS, -3), later(THIS, -2)], 5)
    assert set(Event.objects.exclude(verb="audit.dropped").values_list("target", flat=True)) == {"m1", "m0"}
    told = Event.objects.get(verb="audit.dropped")
    assert told.actor == "ada" and told.target == f"{later(THIS, -1):%Y-%m}"
    assert told.facts == {
        "months": [f"{later(THIS, -3):%Y-%m}", f"{later(THIS, -2):%Y-%m}"], "entries": 5, "via": "shell",
        "files": gone.files,
    }  # fmt: skip
    assert drop_before(later(THIS, -1), actor=ada).months == []
    assert Event.objects.filter(verb="audit.dropped").count() == 1, "nothing went: nothing to tell"


@pytest.mark.django_db
def test_all_goes_also_where_many_months_have_no_table() -> None:
    """After years without a ticker, or of a clock that was wrong."""
    for n in range(3, 3 + months.STRAY + 12):
        put(later(THIS, -n))
    gone = drop_before(THIS, actor=None)
    assert gone.rows == len(gone.months) == months.STRAY + 12
    assert list(Event.objects.values_list("verb", flat=True)) == ["audit.dropped"]


@pytest.mark.django_db
def test_the_present_month_stays() -> None:
    audit.record("login", actor=None)
    with pytest.raises(months.MonthNotOver):
        drop_before(later(THIS, 1), actor=None)
    drop_before(THIS, actor=None)
    assert Event.objects.filter(verb="login").exists()


@pytest.mark.django_db
def test_what_is_left_is_as_protected_as_before() -> None:
    put(later(THIS, -2))
    put(later(THIS, -1))
    drop_before(later(THIS, -1), actor=None)
    with pytest.raises(AppendOnly), transaction.atomic():
        Event.objects.all().delete()
    for sql in ("DELETE FROM audit_event", f"DELETE FROM audit_event_{later(THIS, -1):%Y_%m}"):
        with pytest.raises(Exception, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql)


@pytest.mark.django_db
@pytest.mark.parametrize(("keep", "left"), [(0, {"m5", "m2", "m1", "m0"}), (1, {"m1", "m0"}), (3, {"m2", "m1", "m0"})])
def test_the_setting_says_how_many_months_stay(settings: Any, keep: int, left: set[str]) -> None:
    for n in (5, 2, 1, 0):
        put(later(THIS, -n), f"m{n}")
    settings.BERTH_AUDIT_KEEP_MONTHS = keep
    keep_up()
    assert set(Event.objects.exclude(verb="audit.dropped").values_list("target", flat=True)) == left
    assert Event.objects.filter(verb="audit.dropped", actor="system").exists() is (keep > 0)


def test_the_ticker_does_it_once_a_day_and_soon_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [1000.0], []

    def work() -> None:
        done.append(now[0])
        if len(done) == 1:
            raise RuntimeError("locked")

    monkeypatch.setattr(daily, "time", SimpleNamespace(monotonic=lambda: now[0]))
    once = daily.Daily("record", work)
    for _ in range(3 * 24 * 60):
        once.turn(wait=True)
        now[0] += 60
    assert done == [1000, 1600, 1600 + 86_400, 1600 + 2 * 86_400]


def test_what_is_left_to_do_is_soon_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [1000.0], []

    def work() -> bool:
        done.append(now[0])
        return len(done) < 3

    monkeypatch.setattr(daily, "time", SimpleNamespace(monotonic=lambda: now[0]))
    once = daily.Daily("logs", work)
    for _ in range(24 * 60):
        once.turn(wait=True)
        now[0] += 60
    assert done == [1000, 1060, 1120]


def read_file(name: str) -> list[dict[str, Any]]:
    with gzip.open(exports.path_of(name), "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.django_db
def test_what_goes_is_a_file_first_byte_for_byte() -> None:
    month = later(THIS, -2)
    put(month, 'odd "name"\n\\ \u202e 中文', 3)
    kept = list(Event.objects.order_by("pk").values("id", "target", "verb"))
    gone = drop_before(THIS, actor=None)
    rows = [row for name in gone.files for row in read_file(name)]
    assert [{key: row[key] for key in ("id", "target", "verb")} for row in rows] == kept
    assert Event.objects.get(verb="audit.dropped").facts["files"] == gone.files
    assert exports.path_of(gone.files[0]).stat().st_mode & 0o777 == 0o600
    put(month, "late")  # of the same month, after it went: another file
    again = drop_before(THIS, actor=None)
    assert again.files and again.files != gone.files and len(read_file(gone.files[0])) == 3


@pytest.mark.django_db(transaction=True)
def test_nothing_goes_that_cannot_be_written(settings: Any, tmp_path: Path) -> None:
    put(later(THIS, -2), count=4)
    (tmp_path / "a file").write_text("")
    settings.BERTH_EXPORT_FOLDER = tmp_path / "a file"
    with pytest.raises(OSError):
        drop_before(THIS, actor=None)
    assert Event.objects.filter(target="chat").count() == 4
    assert not Event.objects.filter(verb="audit.dropped").exists()


@pytest.mark.django_db(transaction=True)
def test_a_month_that_grows_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    put(later(THIS, -2), count=4)
    write = exports.write

    def and_more(name: str, parts: Any) -> Path:
        path = write(name, parts)
        put(later(THIS, -2))
        return path

    monkeypatch.setattr(exports, "write", and_more)
    with pytest.raises(months.MonthGrew):
        drop_before(THIS, actor=None)
    assert Event.objects.filter(target="chat").count() == 4, "all of it was one transaction"


@pytest.mark.django_db
def test_the_oldest_months_go_until_the_rest_fits(settings: Any) -> None:
    for n in (3, 2, 1, 0):
        put(later(THIS, -n), f"m{n}", 400)
    settings.BERTH_AUDIT_KEEP_MIB = 1000
    assert keep_up().months == []
    settings.BERTH_AUDIT_KEEP_MIB = 1
    gone = keep_up()
    left = set(Event.objects.exclude(verb="audit.dropped").values_list("target", flat=True))
    assert gone.months[0] == later(THIS, -3) and later(THIS, -1) >= gone.months[-1], gone
    assert left == {"m0", "m1", "m2"} - {f"m{n}" for n in (2, 1) if later(THIS, -n) in gone.months}


@pytest.mark.django_db(transaction=True)
def test_two_at_once_and_people_who_go_on_recording() -> None:
    for n in range(1, 4):
        put(later(THIS, -n), count=50)
    gone: list[months.Dropped] = []
    failed: list[BaseException] = []

    def at_once(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as exc:
                failed.append(exc)
            finally:
                connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def go_on() -> None:
        for _ in range(40):
            audit.record("login", actor=None)

    drops = [lambda: gone.append(drop_before(THIS, actor=None))] * 2
    threads = [at_once(work) for work in (*drops, go_on, go_on)]
    for thread in threads:
        thread.join(30)
    assert not failed
    assert sorted(one.rows for one in gone) == [0, 150]
    assert Event.objects.filter(verb="login").count() == 80
    assert Event.objects.filter(verb="audit.dropped").count() == 1


@pytest.mark.django_db
def test_from_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    put(later(THIS, -2), count=7)
    call_command("audit", "drop-before", f"{later(THIS, -1):%Y-%m}", "--json")
    assert json.loads(capsys.readouterr().out) == {"months": [f"{later(THIS, -2):%Y-%m}"], "entries": 7}
    with translation.override("en"):
        call_command("audit", "drop-before", "2020-01")
    assert capsys.readouterr().out == "Nothing is that old.\n"
    call_command("audit", "months", "--json")
    assert f"{THIS:%Y-%m}" in json.loads(capsys.readouterr().out)
    assert Event.objects.get(verb="audit.dropped").facts["via"] == "shell"
    for wrong in ("January", "2026-13", "9999-01"):
        with pytest.raises(CommandError):
            call_command("audit", "drop-before", wrong)


# --- the change of the table --------------------------------------------------------------------------------------


def _manage(servers: Servers, database: str, folder: Path, *words: str) -> None:
    env = {**servers.environment(folder), "DATABASE_URL": servers.url_of(database)}
    done = subprocess.run(
        [sys.executable, "manage.py", *words], env=env, capture_output=True, text=True, timeout=120, check=False,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


OLD = (
    "INSERT INTO audit_event (at, verb, actor, address, target_kind, target_id, target, outcome, minute, count, facts)"
)


def test_an_old_record_is_taken_over_whole(servers: Servers, tmp_path: Path) -> None:
    name = f"months_{os.getpid()}"
    with psycopg.connect(servers.url_of("postgres"), autocommit=True) as main:
        main.execute(f'CREATE DATABASE "{name}"')
        try:
            _manage(servers, name, tmp_path, "migrate", "audit", "0001")
            run = uuid.uuid4()
            with psycopg.connect(servers.url_of(name)) as link:
                link.execute("CREATE TABLE deployments_run (id uuid PRIMARY KEY, deployment_id bigint)")
                link.execute("INSERT INTO deployments_run VALUES (%s, 12)", [run])
                for n in range(400):  # over 14 months
                    at = datetime(2025, 10, 1, 0, 0, 7, tzinfo=UTC) + timedelta(days=n)
                    link.execute(
                        f"{OLD} VALUES (%s, 'deployment.started', 'ada', '', 'deployment', '12', 'chat', 'done', NULL,"
                        " 1, '{}')", [at],
                    )  # fmt: skip
                link.execute(
                    f"{OLD} VALUES (%s, 'hosts.manage', 'ben', '192.0.2.1', '', '', '', 'denied', %s, 7, '{{}}')",
                    [datetime(2026, 3, 1, 9, 5, 59, tzinfo=UTC), datetime(2026, 3, 1, 9, 5, tzinfo=UTC)],
                )
                link.execute(
                    f"{OLD} VALUES (now(), 'run.ready', 'system', '', 'run', %s, 'chat', 'done', NULL, 1, '{{}}')",
                    [str(run)],
                )
                before = link.execute("SELECT id, at, verb, actor, count FROM audit_event ORDER BY id").fetchall()
            _manage(servers, name, tmp_path, "migrate", "audit")
            with psycopg.connect(servers.url_of(name)) as link:
                after = link.execute("SELECT id, at, verb, actor, count FROM audit_event ORDER BY id").fetchall()
                assert after == before and len(after) == 402
                (other,) = link.execute("SELECT count(*) FROM audit_event_other").fetchone() or (None,)
                assert other == 0
                (march,) = link.execute("SELECT count(*) FROM audit_event_2026_03").fetchone() or (None,)
                assert march == 32
                stories = link.execute("SELECT DISTINCT story FROM audit_event WHERE verb <> 'hosts.manage'").fetchall()
                assert stories == [("deployment:12",)]
                (new,) = link.execute(
                    "INSERT INTO audit_event (at, verb, actor, address, target_kind, target_id, target, outcome,"
                    " minute, count, facts, story) VALUES (now(), 'login', 'ada', '', '', '', '', 'done',"
                    " date_trunc('minute', now()), 1, '{}', '') RETURNING id"
                ).fetchone() or (0,)
                assert new == before[-1][0] + 1
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    link.execute("DELETE FROM audit_event_2026_03")
        finally:
            main.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
