"""The record can only grow, through the ORM and through SQL."""

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from panel import audit
from panel.audit.models import AppendOnly, Event

pytestmark = pytest.mark.django_db


@pytest.fixture
def event() -> Event:
    return audit.record("deployment.started", ("deployment", 1, "chat"), actor=None, after={"desired": "running"})


CHANGES: list[tuple[str, Any]] = [
    ("save", lambda e: e.save()),
    ("save as new with the old id", lambda e: Event(pk=e.pk, verb="x", actor="y").save()),
    ("delete", lambda e: e.delete()),
    ("update", lambda e: Event.objects.update(actor="x")),
    ("filtered update", lambda e: Event.objects.filter(pk=e.pk).update(actor="x")),
    ("filtered delete", lambda e: Event.objects.filter(pk=e.pk).delete()),
    ("delete of all", lambda e: Event.objects.all().delete()),
    ("bulk_update", lambda e: Event.objects.bulk_update([e], ["actor"])),
    ("update_or_create", lambda e: Event.objects.update_or_create(pk=e.pk, defaults={"actor": "x"})),
    ("bulk_create over it", lambda e: Event.objects.bulk_create([e])),
    (
        "bulk_create with conflicts",
        lambda e: Event.objects.bulk_create(
            [Event(pk=e.pk, verb="x", actor="y")], update_conflicts=True, update_fields=["verb"], unique_fields=["id"]
        ),
    ),
    ("base manager", lambda e: Event._base_manager.filter(pk=e.pk).update(actor="x")),
    ("raw delete", lambda e: Event.objects.filter(pk=e.pk)._raw_delete("default")),
]


@pytest.mark.parametrize("change", [c for _, c in CHANGES], ids=[name for name, _ in CHANGES])
def test_the_orm_refuses(event: Event, change: Any) -> None:
    with pytest.raises(AppendOnly), transaction.atomic():
        change(event)
    assert list(Event.objects.values_list("verb", "actor")) == [("deployment.started", "system")]


SQL = [
    "UPDATE audit_event SET actor = 'x'",
    "UPDATE audit_event SET count = count + 1",  # of a row that is no refusal
    "UPDATE audit_event SET outcome = 'denied', count = 2",
    "UPDATE audit_event SET at = at - interval '1 month', minute = minute - interval '1 month'",
    "UPDATE audit_event_{month} SET actor = 'x'",
    "DELETE FROM audit_event_{month}",
    "DELETE FROM audit_event",
    "INSERT INTO audit_event SELECT * FROM audit_event ON CONFLICT (id, minute) DO UPDATE SET actor = 'x'",
    "WITH gone AS (DELETE FROM audit_event RETURNING 1) SELECT count(*) FROM gone",
]


def refused(sql: str) -> bool:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql)
    except DatabaseError as exc:
        assert "append-only" in str(exc)
        return True
    return False


@pytest.mark.parametrize("sql", SQL)
def test_the_database_refuses(event: Event, sql: str) -> None:
    assert refused(sql.replace("{month}", f"{timezone.now():%Y_%m}"))
    assert Event.objects.get().actor == "system"


@pytest.mark.parametrize("sql", ["TRUNCATE {table}", "TRUNCATE {table} CASCADE"])
@pytest.mark.parametrize("table", ["audit_event", "audit_event_{month}", "audit_event_other"])
def test_the_database_refuses_to_empty_it(event: Event, table: str, sql: str) -> None:
    table = table.replace("{month}", f"{timezone.now():%Y_%m}")
    with connection.cursor() as cursor:  # the test database has this trigger switched off, see tests/conftest.py
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER audit_no_truncate")
    assert refused(sql.replace("{table}", table))
    assert Event.objects.count() == 1


REFUSAL_SQL = [
    ("UPDATE audit_event SET count = count + 1", False),
    ("UPDATE audit_event SET count = count - 1", True),
    ("UPDATE audit_event SET count = count", True),
    ("UPDATE audit_event SET count = count + 1, actor = 'x'", True),
    ("UPDATE audit_event SET count = count + 1, outcome = 'done'", True),
    ("UPDATE audit_event SET count = count + 1, facts = '{\"a\": 1}'", True),
    ("DELETE FROM audit_event", True),
]


@pytest.mark.parametrize(("sql", "expected"), REFUSAL_SQL)
def test_of_a_refusal_only_the_count_may_grow(sql: str, expected: bool) -> None:
    audit.record("deployments.operate", actor=None, outcome="denied")
    audit.record("deployments.operate", actor=None, outcome="denied")
    assert refused(sql) is expected
