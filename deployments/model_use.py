"""Which deployments use a model, for the room below: running from its files now, or named in the settings."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from deployments.models import Deployment, Revision, Run
from deployments.states import State
from deployments.wording import BADGES
from models_catalog.uses import Kind, Use

ORDER = {"running": 0, "chosen": 1, "last": 2}


def of_artifacts(artifact_ids: list[int]) -> dict[int, list[Use]]:
    """Uses by artifact: what runs first, then by name. Two queries.

    A run may go on from another artifact than its deployment's newest settings name; it is a use of both.
    """
    open_runs = Run.objects.filter(ended_at=None, copy__artifact_id__in=artifact_ids)
    running: dict[tuple[int, int], set[int]] = {}
    for pk, artifact_id, copy_id in open_runs.values_list("deployment_id", "copy__artifact_id", "copy_id"):
        running.setdefault((artifact_id, pk), set()).add(copy_id)
    wanted = Q(revision__spec__artifact_id__in=artifact_ids, deleted_at=None)
    rows = Deployment.objects.filter(wanted | Q(pk__in={pk for _artifact, pk in running}))
    found: dict[int, list[Use]] = {}
    for row in rows.select_related("revision", "run__host").order_by("name"):
        named = row.revision.spec.get("artifact_id") if row.revision is not None and row.deleted_at is None else None
        ids = {artifact for artifact, pk in running if pk == row.pk} | ({named} & set(artifact_ids))
        for artifact_id in ids:
            copies = frozenset(running.get((artifact_id, row.pk), ()))
            kind: Kind = "running" if copies else "chosen"
            found.setdefault(artifact_id, []).append(_use(row, kind, copies))
    return {pk: sorted(uses, key=lambda use: (ORDER[use.kind], use.text)) for pk, uses in found.items()}


def _use(row: Deployment, kind: Kind, copies: frozenset[int]) -> Use:
    state, word = BADGES[State(row.state)]
    run: Any = row.run
    gpus = (run.placement.get("gpus") or []) if run is not None else []
    where = " ".join([run.host_name, *([f"GPU {' + '.join(map(str, gpus))}"] if gpus else [])]) if run else ""
    return Use(
        text=row.name,
        kind=kind,
        url=reverse("deployment", args=[row.pk]) if row.deleted_at is None else "",
        copy_ids=copies,
        state=state,
        state_word=str(word),
        where=where,
        engine=f"vLLM {run.engine_version}" if run is not None and run.engine_version else "",
        by=row.created_by,
        at=row.created_at,
    )


def ever_used() -> set[int]:
    """Ids of artifacts that any settings name or named."""
    rows = Revision.objects.values_list("spec__artifact_id", flat=True).order_by().distinct()
    return {pk for pk in rows if isinstance(pk, int)}
