"""The months of the record: their tables are made ahead of time, and old ones go as a whole, by one recorded act.

A row of a time without a table of its own lies in the table of all others, so that nothing is ever refused. Months are
those of UTC and stand as their first day. What goes is a file in the export folder before it goes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel.audit.services import record
from panel.core import exports
from panel.core.errors import PanelError
from panel.core.locks import Lock, lock_until_commit

AHEAD = 2  # months that are ready before they begin
STRAY = 24  # months of the table of others that get their own at one go
WAIT = "5s"  # for others to let go of the table; pages must not stand in a queue behind us for long


class MonthNotOver(PanelError):
    code = "audit.month_not_over"
    message: Any = _("The record of this month cannot go yet.")
    hint: Any = _("Name a month that is over, such as %(month)s. What happened before it goes.")
    status = 422


class MonthGrew(PanelError):
    code = "audit.month_grew"
    message: Any = _("Something was recorded in an old month while it was being exported, so nothing went.")
    hint: Any = _("Try again.")
    status = 409


@dataclass(frozen=True, slots=True)
class Dropped:
    """What went: the months, oldest first, how many rows they held, and the files that hold them now."""

    months: list[date]
    rows: int
    files: list[str] = field(default_factory=list, compare=False)


def month_of(moment: datetime | date) -> date:
    """The first day of the month."""
    day = moment.astimezone(UTC).date() if isinstance(moment, datetime) else moment
    return day.replace(day=1)


def later(month: date, by: int) -> date:
    """The month `by` months later (earlier when negative); never before the first year."""
    count = max(12, month.year * 12 + month.month - 1 + by)
    return date(count // 12, count % 12 + 1, 1)


def existing() -> list[date]:
    """The months that have a table of their own, oldest first."""
    return sorted(_tables())


def make_ready(now: datetime | None = None) -> list[date]:
    """Make the tables of this month, of the next ones, and of strays; returns those that were made."""
    this = month_of(now or timezone.now())
    have = set(existing())
    wanted = {later(this, n) for n in range(AHEAD + 1)} | set(_strays())
    if wanted <= have:
        return []
    with transaction.atomic():
        _wait_briefly()
        made = []
        with connection.cursor() as cursor:
            for month in sorted(wanted - have):
                cursor.execute("SELECT audit_make_month(%s)", [month])
                made += [month] if cursor.fetchone() == (True,) else []
    return made


def drop_before(month: date, *, actor: Any) -> Dropped:
    """Drop all that happened before `month`, and record that it went. The present month always stays.

    The one way by which the record gets shorter; the months that go, and how many rows they held, are kept in it.
    """
    month = month_of(month)
    this = month_of(timezone.now())
    if month > this:
        raise MonthNotOver(params={"month": f"{this:%Y-%m}"})
    while make_ready():  # strays get tables, so that they go with their months; some at a time
        pass
    with transaction.atomic():
        _wait_briefly()
        old = {begin: table for begin, table in sorted(_tables().items()) if begin < month}
        files, rows = [], 0
        for begin, table in old.items():
            name, count = _export(begin, table)
            _drop(table, count)
            files += [name] if count else []
            rows += count
        if rows:
            names = [f"{begin:%Y-%m}" for begin in old]
            record("audit.dropped", f"{month:%Y-%m}", actor=actor, months=names, entries=rows, files=files)
    return Dropped(list(old), rows, files)


def _export(month: date, table: str) -> tuple[str, int]:
    """Write a month into a file, a row a line; (its name, how many rows). An empty month makes no file."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(f"SELECT count(*), min(id), max(id) FROM {table}")
        count, first, last = cursor.fetchone()
        if not count:
            return "", 0
        # By the ids: what comes into this month after it went must not take this file's place.
        name = f"events/{month:%Y-%m}-{first}-{last}.jsonl.gz"
        exports.write(name, _lines(cursor, table))
    return name, count


def _lines(cursor: Any, table: str) -> Iterator[bytes]:
    # These signs cannot stand in JSON, so that nothing is quoted: each line is the row as JSON and nothing else.
    plain = "FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02'"
    rows = f"SELECT row_to_json(row) FROM (SELECT * FROM {table} ORDER BY id) AS row"
    with cursor.copy(f"COPY ({rows}) TO STDOUT WITH ({plain})") as copy:
        for part in copy:
            yield bytes(part)


def _drop(table: str, exported: int) -> None:
    """Take a month away that was exported. Raises MonthGrew when it holds another number of rows by now."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE audit_event DETACH PARTITION {table}")  # from here on nobody writes into it
        cursor.execute(f"SELECT count(*) FROM {table}")
        if cursor.fetchone() != (exported,):
            raise MonthGrew
        cursor.execute(f"DROP TABLE {table}")


def keep_up(now: datetime | None = None) -> Dropped:
    """Tables ahead of time; then the months go that the settings do not keep (0 keeps all)."""
    make_ready(now)
    this = month_of(now or timezone.now())
    keep = settings.BERTH_AUDIT_KEEP_MONTHS
    first = later(this, -keep) if keep else date.min
    if most := settings.BERTH_AUDIT_KEEP_MIB:
        first = max(first, _first_that_fits(most << 20, this))
    return drop_before(first, actor=None) if first > date.min else Dropped([], 0)


def _first_that_fits(most: int, this: date) -> date:
    """The oldest month of the newest ones that take `most` bytes together; the present one stays in any case."""
    first = date.min
    with connection.cursor() as cursor:
        for month, table in sorted(_tables().items(), reverse=True):
            cursor.execute("SELECT pg_total_relation_size(%s::regclass)", [table])
            most -= cursor.fetchone()[0]
            if most < 0 and month < this:
                return later(month, 1)
    return first


def _wait_briefly() -> None:
    """One at a time, and not long behind those who read: others would queue behind us."""
    lock_until_commit(Lock.AUDIT_MONTHS)
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [WAIT])


def _tables() -> dict[date, str]:
    """Month → its table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT child.relname FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid"
            " WHERE inhparent = 'audit_event'::regclass"
        )
        names = [name for (name,) in cursor.fetchall()]
    found = ((re.fullmatch(r"audit_event_(\d{4})_(\d{2})", name), name) for name in names)
    return {date(int(match[1]), int(match[2]), 1): name for match, name in found if match}


def _strays() -> list[date]:
    """The oldest months in the table of others."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT date_trunc('month', minute, 'UTC') AT TIME ZONE 'UTC' FROM audit_event_other"
            " ORDER BY 1 LIMIT %s",
            [STRAY],
        )
        return [month_of(month.date()) for (month,) in cursor.fetchall()]
