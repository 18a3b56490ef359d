"""Which deployments use an engine, for the rooms below: running from it now, chosen in the settings, or used last."""

from collections import defaultdict

from django.urls import reverse

from deployments.models import Deployment, Run
from panel.fleet.runtimes.users import Kind, Use


def of_runtimes(runtime_ids: list[int]) -> dict[int, list[Use]]:
    """Uses by runtime, by name; each deployment once per runtime, its strongest use first. Three queries."""
    found: dict[int, dict[int, Use]] = defaultdict(dict)

    def add(runtime_id: int, row: Deployment, kind: Kind) -> None:
        url = "" if row.deleted_at else reverse("deployment", args=[row.pk])
        found[runtime_id].setdefault(row.pk, Use(row.name, kind, url))

    for run in Run.objects.filter(runtime_id__in=runtime_ids, ended_at=None).select_related("deployment"):
        add(run.runtime_id, run.deployment, "running")
    kept = Deployment.objects.filter(deleted_at=None)
    for row in kept.filter(revision__spec__runtime_id__in=runtime_ids).select_related("revision"):
        add(row.revision.spec["runtime_id"], row, "chosen")
    for row in kept.filter(run__runtime_id__in=runtime_ids, revision__spec__runtime_id=None).select_related("run"):
        add(row.run.runtime_id, row, "last")
    order = {"running": 0, "chosen": 1, "last": 2}
    return {pk: sorted(uses.values(), key=lambda use: (order[use.kind], use.text)) for pk, uses in found.items()}
