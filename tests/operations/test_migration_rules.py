"""Migrations expand before they contract: every one of ours is looked at, and the rules refuse what they must."""

from typing import Any

import pytest
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader

from panel.management.migration_rules import BEFORE, refused

OURS = ("accounts", "audit", "core", "deployments", "fleet", "models_catalog")


def ours() -> dict[str, Any]:
    loader = MigrationLoader(None)
    return {f"{app}.{name}": row for (app, name), row in loader.disk_migrations.items() if app in OURS}


def test_every_migration_keeps_the_rules_or_says_why() -> None:
    wrong = {
        name: [str(item) for item in found]
        for name, row in ours().items()
        if name not in BEFORE and (found := refused(row, name.partition(".")[0]))
    }
    assert not wrong


def test_those_before_the_rules_are_there_still() -> None:
    assert set(ours()) >= BEFORE


def test_each_room_has_one_newest_migration() -> None:
    leaves = [app for app, _name in MigrationLoader(None).graph.leaf_nodes() if app in OURS]
    assert sorted(leaves) == sorted(OURS)


def made(*operations: Any, allows: dict[str, str] | None = None) -> Any:
    row = migrations.Migration("0009_new", "fleet")
    row.operations = list(operations)
    if allows is not None:
        row.berth_allows = allows  # type: ignore[attr-defined]
    return row


TEXT = models.CharField(max_length=8, default="")
INDEX = models.Index(fields=["state"], name="job_state")
CHECK = models.CheckConstraint(condition=models.Q(state="x"), name="only_x")


def touch_rows(apps: Any, editor: Any) -> None:
    """Stands for a change of rows."""


REFUSED = {
    "RemoveField host.name": migrations.RemoveField("host", "name"),
    "DeleteModel host": migrations.DeleteModel("Host"),
    "RenameField host.name": migrations.RenameField("host", "name", "title"),
    "RenameModel host": migrations.RenameModel("Host", "Machine"),
    "AlterModelTable host": migrations.AlterModelTable("host", "machines"),
    "AddField host.word": migrations.AddField("host", "word", TEXT),
    "AlterField host.name": migrations.AlterField("host", "name", TEXT),
    "AddIndex job_state": migrations.AddIndex("job", INDEX),
    "AddConstraint only_x": migrations.AddConstraint("job", CHECK),
    "AddField job.word (index)": migrations.AddField("job", "word", models.TextField(null=True, db_index=True)),
    "RunPython touch_rows": migrations.RunPython(touch_rows),
    "RunSQL DROP TABLE": migrations.RunSQL("CREATE TABLE a (); drop  table b"),
    "RunSQL SET NOT NULL": migrations.RunSQL([("ALTER TABLE a ALTER b SET NOT NULL", None)]),
    "RunSQL LOCK TABLE": migrations.SeparateDatabaseAndState([migrations.RunSQL("LOCK TABLE a")], []),
    "RunSQL CREATE INDEX": migrations.RunSQL("CREATE INDEX a ON b (c)"),
    "RunSQL RENAME": migrations.RunSQL("ALTER TABLE a RENAME b TO c"),
    "RunSQL ALTER COLUMN B SET DATA TYPE": migrations.RunSQL("ALTER TABLE a ALTER COLUMN b SET DATA TYPE int"),
    'RunSQL ALTER "B" TYPE': migrations.RunSQL('ALTER TABLE a ALTER "b" TYPE int'),
}


@pytest.mark.parametrize(("name", "operation"), REFUSED.items(), ids=list(REFUSED))
def test_what_contracts_or_locks_needs_a_reason(name: str, operation: Any) -> None:
    (found,) = refused(made(operation), "fleet")
    assert found.name == name
    assert found.why and found.instead and str(found).count(". ") == 1
    assert refused(made(operation, allows={name: "nobody has used it since the release before"}), "fleet") == []
    assert refused(made(operation, allows={name: "  "}), "fleet") == [found]


ALLOWED = [
    migrations.AddField("host", "word", models.CharField(max_length=8, default="", db_default="")),
    migrations.AddField("host", "word", models.TextField(null=True)),
    migrations.AddIndex("runtime", INDEX),  # no table that grows with use
    AddIndexConcurrently("job", INDEX),
    migrations.RunPython(touch_rows, atomic=False),
    migrations.RunSQL("CREATE INDEX CONCURRENTLY a ON b (c)"),
    migrations.RunSQL("CREATE FUNCTION a() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
    migrations.AlterModelOptions("host", {"ordering": ["id"]}),
    migrations.SeparateDatabaseAndState([], [migrations.RemoveField("host", "name")]),
]


@pytest.mark.parametrize("operation", ALLOWED, ids=lambda op: type(op).__name__)
def test_what_only_adds_is_free(operation: Any) -> None:
    assert refused(made(operation), "fleet") == []


def test_one_reason_does_not_cover_another_harm_of_the_same_operation() -> None:
    operation = migrations.AddField("job", "word", models.TextField(default="", db_index=True))
    both = {"AddField job.word", "AddField job.word (index)"}
    assert {item.name for item in refused(made(operation), "fleet")} == both
    (left,) = refused(made(operation, allows={"AddField job.word": "nobody inserts meanwhile"}), "fleet")
    assert left.name == "AddField job.word (index)"


def test_a_new_table_is_nobodys_yet() -> None:
    table = migrations.CreateModel("Berth", [("id", models.BigAutoField(primary_key=True))])
    assert refused(made(table, migrations.AddField("berth", "word", TEXT)), "fleet") == []


def test_a_reason_that_nothing_needs_is_told() -> None:
    row = made(migrations.RemoveField("host", "name"), allows={"RemoveField host.name": "old", "DeleteModel gpu": "?"})
    (found,) = refused(row, "fleet")
    assert found.name == "DeleteModel gpu" and "nothing here needs" in found.why
