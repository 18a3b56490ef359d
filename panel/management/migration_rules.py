"""Rules for migrations: first expand, then contract, so that a panel of yesterday works on the database of today.

While web and worker processes are started anew one after another, and for whoever has to go back, the code of the
release before runs on the new schema. So a migration may add; what takes away, renames, narrows, or locks a big table
for long needs a reason, in the migration itself:

    class Migration(migrations.Migration):
        berth_allows = {"RemoveField deployment.old_name": "not read since 0.3, see the changelog"}

The name is that which the refusal says. `make check` looks at every migration.
Works on the operations alone and asks no database.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models import NOT_PROVIDED

ALLOWS = "berth_allows"
# Made before these rules, and in use: they are what the first releases are.
BEFORE = frozenset(
    [
        "accounts.0001_initial", "accounts.0002_people_and_sessions", "audit.0001_initial", "audit.0002_months",
        "core.0001_idempotency_keys", "deployments.0001_initial", "deployments.0002_run_detail", "fleet.0001_initial",
        "fleet.0002_runtime_installs", "fleet.0003_joining", "fleet.0004_doors_and_holds",
        "models_catalog.0001_initial",
    ]
)  # fmt: skip
# Tables that grow with use: an index or a constraint made the plain way stops all writes to them for minutes.
BIG = frozenset(
    ["audit.event", "fleet.job", "fleet.joblog", "deployments.run", "deployments.transition", "accounts.personsession"]
)
_LOCKS = re.compile(
    r"\b(DROP\s+(TABLE|COLUMN|CONSTRAINT|INDEX)|RENAME|SET\s+NOT\s+NULL|TRUNCATE"
    r'|ALTER\s+(COLUMN\s+)?("[^"]+"|\w+)\s+(SET\s+DATA\s+)?TYPE'
    r"|LOCK\s+TABLE|VACUUM\s+FULL|CREATE\s+(UNIQUE\s+)?INDEX(?!\s+CONCURRENTLY))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Refused:
    """One operation that needs a reason: its name for `berth_allows`, why it is refused, what to do instead."""

    name: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}. {self.instead}."


def refused(migration: Any, app: str) -> list[Refused]:
    """What of this migration (an instance) needs a reason and has none; also reasons that nothing needs."""
    allowed: dict[str, str] = dict(getattr(migration, ALLOWS, {}))
    found = list(_of(migration.operations, app, _new_models(migration.operations)))
    without = [item for item in found if not allowed.get(item.name, "").strip()]
    unused = sorted(set(allowed) - {item.name for item in found})
    return without + [Refused(name, "nothing here needs this reason", f"Take it out of {ALLOWS}") for name in unused]


def _new_models(operations: Iterable[Any]) -> frozenset[str]:
    """Tables of this very migration: nobody uses them yet."""
    return frozenset(op.name.lower() for op in operations if isinstance(op, migrations.CreateModel))


def _of(operations: Iterable[Any], app: str, new: frozenset[str]) -> Iterator[Refused]:
    for op in operations:
        if isinstance(op, migrations.SeparateDatabaseAndState):
            yield from _of(op.database_operations, app, new)
            continue
        model = str(getattr(op, "model_name", "") or getattr(op, "name", "")).lower()
        if model in new and not isinstance(op, migrations.DeleteModel | migrations.RenameModel):
            continue
        for check in (_takes_away, _not_null, _changes_type, _locks, _by_hand):
            if found := check(op, app):  # of several each needs its own reason
                yield found


def _takes_away(op: Any, app: str) -> Refused | None:
    later = "Stop using it in one release and take it away in the next, with that as the reason"
    if isinstance(op, migrations.RemoveField):
        name = f"RemoveField {op.model_name.lower()}.{op.name}"
        return Refused(name, "the release before still reads and writes this column", later)
    if isinstance(op, migrations.DeleteModel):
        return Refused(f"DeleteModel {op.name.lower()}", "the release before still uses this table", later)
    both = "Add the new name beside the old one, write both, and take the old one away in the next release"
    if isinstance(op, migrations.RenameField):
        name = f"RenameField {op.model_name.lower()}.{op.old_name}"
        return Refused(name, "the release before knows only the old name", both)
    if isinstance(op, migrations.RenameModel):
        return Refused(f"RenameModel {op.old_name.lower()}", "the release before knows only the old table", both)
    if isinstance(op, migrations.AlterModelTable):
        return Refused(f"AlterModelTable {op.name.lower()}", "the release before knows only the old table", both)
    return None


def _not_null(op: Any, app: str) -> Refused | None:
    """A column that the old code does not know must fill itself: Django's own `default` is not in the database."""
    if not isinstance(op, migrations.AddField) or isinstance(op.field, models.ManyToManyField):
        return None
    if op.field.null or op.field.db_default is not NOT_PROVIDED or op.field.generated:
        return None
    name = f"AddField {op.model_name.lower()}.{op.name}"
    return Refused(name, "the release before inserts rows without it, which fail", "Give it null=True or a db_default")


def _changes_type(op: Any, app: str) -> Refused | None:
    if not isinstance(op, migrations.AlterField):
        return None
    name = f"AlterField {op.model_name.lower()}.{op.name}"
    instead = "Add a new column instead, or say why neither the old code nor a long lock suffers"
    return Refused(name, "it may narrow what the release before writes, or rewrite the table under a lock", instead)


def _locks(op: Any, app: str) -> Refused | None:
    """On a big table an index is made CONCURRENTLY, a constraint NOT VALID first."""
    label = f"{app}.{str(getattr(op, 'model_name', '')).lower()}"
    if isinstance(op, AddIndexConcurrently | RemoveIndexConcurrently):
        return None
    if isinstance(op, migrations.AddIndex) and label in BIG:
        return Refused(f"AddIndex {op.index.name}", f"it stops writes to {label} while it is made",
                       "Use AddIndexConcurrently with atomic = False")  # fmt: skip
    if isinstance(op, migrations.AddConstraint):
        name = f"AddConstraint {op.constraint.name}"
        return Refused(name, "rows that the release before writes may break it, and all rows are read under a lock",
                       "Write only what it allows for one release first; on a big table add it NOT VALID")  # fmt: skip
    if isinstance(op, migrations.AddField) and label in BIG and (op.field.unique or op.field.db_index):
        name = f"AddField {op.model_name.lower()}.{op.name} (index)"
        return Refused(name, f"its index stops writes to {label}", "Add the index by AddIndexConcurrently")
    return None


def _by_hand(op: Any, app: str) -> Refused | None:
    if isinstance(op, migrations.RunPython):
        code = getattr(op.code, "__name__", "code")
        if op.atomic is not False:
            return Refused(f"RunPython {code}", "it holds all its rows in one transaction",
                           "Work in parts with atomic=False, or say how many rows it can meet")  # fmt: skip
        return None
    if not isinstance(op, migrations.RunSQL):
        return None
    statements = op.sql if isinstance(op.sql, list | tuple) else [op.sql]
    text = " ".join(str(s[0] if isinstance(s, list | tuple) else s) for s in statements)
    if found := _LOCKS.search(text):
        words = " ".join(found[0].upper().split())
        return Refused(f"RunSQL {words}", "it takes away, renames, narrows or locks", "Say why that is safe here")
    return None
