"""A chain of attempts: each start that followed a failed one, with what was changed and how it ended. Reads only."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deployments.models import Deployment, Revision, Run
from deployments.spec import DeploymentSpec, diff

LONGEST = 12  # attempts that are told
LOOKED_AT = 40  # newest runs among which a chain is followed
OF_RUN = (
    "number", "parent_id", "outcome", "reason", "ready_at", "ended_at", "created_at", "cause", "revision", "deployment",
)  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """One start of the chain. `changes` are {name: (before, after)} from the one before; {} for the same settings."""

    run: Run
    changes: dict[str, tuple[Any, Any]]
    why: dict[str, Any]  # Revision.why, where the settings differ from the attempt before


def of(run: Run) -> list[Attempt]:
    """The chain that led to this run, the newest first; alone where the run followed no failure. One query."""
    rows = Run.objects.filter(deployment_id=run.deployment_id, number__lte=run.number).select_related("revision")
    rows = rows.only(*OF_RUN, "revision__number", "revision__spec", "revision__why")
    known = {row.pk: row for row in rows[:LOOKED_AT]}
    return list(_attempts(run, known))


def _attempts(run: Run, known: dict[Any, Run]) -> Iterator[Attempt]:
    at: Run | None = known.get(run.pk)
    told = 0
    while at is not None and told < LONGEST:
        before = known.get(at.parent_id)
        same = before is None or before.revision_id == at.revision_id
        yield Attempt(at, {} if same else _changes(before, at), {} if same else at.revision.why)
        at, told = before, told + 1


def _changes(before: Run | None, after: Run) -> dict[str, tuple[Any, Any]]:
    if before is None:
        return {}
    return diff(*(DeploymentSpec.model_validate(run.revision.spec) for run in (before, after)))


def reasons(run: Run) -> list[dict[str, Any]]:
    """Why the settings of each failed attempt of the chain were made, back to the last one that was ready."""
    rows = Run.objects.filter(deployment_id=run.deployment_id, number__lte=run.number)
    found = []
    for why, ready in rows.order_by("-number").values_list("revision__why", "ready_at")[:LOOKED_AT]:
        if ready is not None:
            break
        found.append(why)
    return found


def who_switched_on(row: Deployment) -> str:
    """Who wrote the oldest of the newest settings that all say `fix_once`."""
    name = ""
    for revision in Revision.objects.filter(deployment=row).order_by("-number")[:LOOKED_AT].iterator():
        if not revision.spec.get("fix_once"):
            break
        name = revision.created_by
    return name
