"""Which deployments use a model, for the room below: running from its files now, or named in the settings."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from django.db import connection
from django.db.models import BigIntegerField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.urls import reverse

from deployments.models import Deployment, Revision, Run
from deployments.states import State
from deployments.wording import BADGES
from models_catalog.models import Copy
from models_catalog.uses import Use

ORDER = {"running": 0, "chosen": 1, "last": 2}


def of_artifacts(artifact_ids: list[int], detailed: int = 0) -> dict[int, list[Use]]:
    """Uses by artifact: what runs first, then by name. Two queries, and one for the `detailed` first ones of each.

    A run may go on from another artifact than its deployment's newest settings name; it is a use of both.
    """
    found: dict[int, dict[int, Use]] = defaultdict(dict)
    there = reverse("deployment", args=[0])

    def url(pk: int, deleted: Any) -> str:
        return there.replace("/0/", f"/{pk}/") if deleted is None else ""

    # Thousands of rows may use one model: only what is shown of them is read, and their addresses are made here.
    running = Run.objects.filter(ended_at=None, copy__artifact_id__in=artifact_ids).order_by()
    fields = ("copy__artifact_id", "copy_id", "deployment_id", "deployment__name", "deployment__deleted_at")
    for artifact_id, copy_id, pk, name, deleted in running.values_list(*fields):
        before = found[artifact_id].get(pk)
        copies = frozenset({copy_id}) | (before.copy_ids if before else frozenset())
        found[artifact_id][pk] = Use(name, "running", url(pk, deleted), copies)
    number = Cast(KeyTextTransform("artifact_id", "revision__spec"), BigIntegerField())
    named = Deployment.objects.filter(revision__spec__artifact_id__in=artifact_ids, deleted_at=None).order_by()
    for artifact_id, pk, name in named.annotate(artifact=number).values_list("artifact", "pk", "name"):
        if pk not in found[artifact_id]:
            found[artifact_id][pk] = Use(name, "chosen", url(pk, None))
    ordered = {pk: sorted(uses.items(), key=_rank) for pk, uses in found.items()}
    more = _details({pk for uses in ordered.values() for pk, _use in uses[:detailed]})
    return {
        artifact: [replace(use, **more[pk]) if n < detailed else use for n, (pk, use) in enumerate(uses)]
        for artifact, uses in ordered.items()
    }


def _rank(one: tuple[int, Use]) -> tuple[int, str]:
    return ORDER[one[1].kind], one[1].text


def _details(pks: set[int]) -> dict[int, dict[str, Any]]:
    """What a page shows of a use beside its name."""
    rows = Deployment.objects.filter(pk__in=pks).select_related("run") if pks else []
    return {row.pk: _detail(row) for row in rows}


def _detail(row: Deployment) -> dict[str, Any]:
    state, word = BADGES[State(row.state)]
    run: Any = row.run
    gpus = (run.placement.get("gpus") or []) if run is not None else []
    return {
        "state": state,
        "state_word": str(word),
        "where": " ".join([run.host_name, *([f"GPU {' + '.join(map(str, gpus))}"] if gpus else [])]) if run else "",
        "engine": f"vLLM {run.engine_version}" if run is not None and run.engine_version else "",
        "by": row.created_by,
        "at": row.created_at,
    }


# Both kinds of use, each deployment once per artifact; the database ranks and counts, so that few rows come.
_FEW = f"""
SELECT artifact, id, name, gone, kind, n FROM (
  SELECT artifact, d.id, d.name, d.deleted_at IS NOT NULL AS gone, kind, count(*) OVER (PARTITION BY artifact) AS n,
         row_number() OVER (PARTITION BY artifact ORDER BY kind DESC, d.name) AS place
  FROM (
    SELECT artifact, deployment, max(kind) AS kind FROM (
      SELECT c.artifact_id AS artifact, r.deployment_id AS deployment, 'running' AS kind
      FROM {Run._meta.db_table} r JOIN {Copy._meta.db_table} c ON c.id = r.copy_id
      WHERE r.ended_at IS NULL AND c.artifact_id = ANY(%(ids)s)
      UNION ALL
      SELECT (v.spec ->> 'artifact_id')::bigint, d.id, 'chosen'
      FROM {Deployment._meta.db_table} d JOIN {Revision._meta.db_table} v ON v.id = d.revision_id
      WHERE d.deleted_at IS NULL AND v.spec -> 'artifact_id' = ANY(%(numbers)s::jsonb[])
    ) every GROUP BY artifact, deployment
  ) once JOIN {Deployment._meta.db_table} d ON d.id = once.deployment
) ranked WHERE place <= %(most)s ORDER BY artifact, place
"""


def few(artifact_ids: list[int], most: int) -> dict[int, tuple[list[Use], int]]:
    """The first `most` uses of each artifact, in the order of `of_artifacts`, and how many there are. One query."""
    found: dict[int, tuple[list[Use], int]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_FEW, {"ids": artifact_ids, "numbers": [str(pk) for pk in artifact_ids], "most": most})
        for artifact, pk, name, gone, kind, count in cursor.fetchall():
            url = "" if gone else reverse("deployment", args=[pk])
            found.setdefault(artifact, ([], count))[0].append(Use(name, kind, url))
    return found


def ever_used() -> set[int]:
    """Ids of artifacts that any settings name or named."""
    rows = Revision.objects.values_list("spec__artifact_id", flat=True).order_by().distinct()
    return {pk for pk in rows if isinstance(pk, int)}
