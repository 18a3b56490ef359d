"""The advisory locks of the database, in one table: two rooms that took the same number would wait for each other."""

from enum import IntEnum, unique

from django.db import connection


@unique
class Lock(IntEnum):
    """The numbers are arbitrary; nothing else in this database may use them."""

    TICKER = 0x6265_7274  # held by the leading worker as long as it leads
    FIRST_ADMIN = 0x6164_6D69  # who decides whether there is an admin: makes the first, keeps the last
    CATALOG = 0x6361_7461  # who writes models: two hosts with the same new one would race
    AUDIT_MONTHS = 0x6175_6469  # who makes or drops the tables of the record's months
    TEAM_SECRETS = 0x7465_616D  # who keeps a secret of the team: the first one has no row yet to wait at
    APPLY = 0x6170_706C  # who makes deployments as a file says: two files that name the same in another order


def lock_until_commit(lock: Lock) -> None:
    """Wait until nobody else holds it; the end of this transaction gives it back."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [int(lock)])
