"""The months of the record: their tables are made ahead of time, and old ones go as a whole, by one recorded act.

A row of a time without a table of its own lies in the table of all others, so that nothing is ever refused. Months are
those of UTC and stand as their first day.
"""

import logging
import re
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel.audit.services import record
from panel.core.errors import PanelError
from panel.core.locks import Lock, lock_until_commit

log = logging.getLogger(__name__)

AHEAD = 2  # months that are ready before they begin
STRAY = 24  # months of the table of others that get their own at one go
WAIT = "5s"  # for others to let go of the table; pages must not stand in a queue behind us for long
EVERY_S = 24 * 3600
AGAIN_S = 600  # after a try that failed


class MonthNotOver(PanelError):
    code = "audit.month_not_over"
    message: Any = _("The record of this month cannot go yet.")
    hint: Any = _("Name a month that is over, such as %(month)s. What happened before it goes.")
    status = 422


@dataclass(frozen=True, slots=True)
class Dropped:
    """What went: the months, oldest first, and how many rows they held."""

    months: list[date]
    rows: int


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
        rows = 0
        with connection.cursor() as cursor:
            for table in old.values():
                cursor.execute(f"SELECT count(*) FROM {table}")
                rows += cursor.fetchone()[0]
                cursor.execute(f"ALTER TABLE audit_event DETACH PARTITION {table}")
                cursor.execute(f"DROP TABLE {table}")
        gone = Dropped(list(old), rows)
        if rows:
            names = [f"{begin:%Y-%m}" for begin in gone.months]
            record("audit.dropped", f"{month:%Y-%m}", actor=actor, months=names, entries=rows)
    return gone


class Housekeeping:
    """What the ticker does once a day: months ahead, and what is older than BERTH_AUDIT_KEEP_MONTHS goes."""

    def __init__(self) -> None:
        self._due = 0.0  # on the monotonic clock

    def turn(self) -> None:
        """Do it when it is due. A failure is told in the log and tried again soon; the pulse goes on."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + AGAIN_S
        try:
            keep_up()
        except Exception:  # a lock that was not to be had, a role without the right to make tables: nothing is lost
            log.warning("months of the record: trying again in %s s", AGAIN_S, exc_info=True)
        else:
            self._due = time.monotonic() + EVERY_S


def keep_up(now: datetime | None = None) -> Dropped:
    """Tables ahead of time; then the months go that the setting does not keep (0 keeps all)."""
    make_ready(now)
    keep = settings.BERTH_AUDIT_KEEP_MONTHS
    if not keep:
        return Dropped([], 0)
    return drop_before(later(month_of(now or timezone.now()), -keep), actor=None)


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
