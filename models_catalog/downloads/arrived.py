"""What the catalog made of a download: the models that can be deployed now. Reads only."""

from datetime import timedelta
from typing import Any

from django.db.models import Prefetch
from django.utils import timezone

from models_catalog import queries, shelf
from models_catalog.contexts import form_of
from models_catalog.downloads.models import Download, State
from models_catalog.models import Artifact, Copy
from panel.accounts.access import can

LATE = timedelta(minutes=2)  # a search that a download ends with takes seconds
MOST = 20


def of(row: Download, actor: Any) -> dict[str, Any]:
    """For the page of a download that is done. `late`: the catalog should have found it long ago."""
    if row.state != State.DONE:
        return {}
    here = Copy.objects.filter(host_id=row.host_id, path__in=row.made, present=True)
    copies = Prefetch("copies", Copy.objects.select_related("host"))
    found = Artifact.objects.filter(copies__in=here).select_related("model").prefetch_related(copies).distinct()
    runtimes = queries.engines()
    came = [
        {
            "name": artifact.model.name,
            "model": artifact.model_id,
            "artifact": artifact.pk,
            "can": form_of(artifact, runtimes).deployable and shelf.may_deploy(artifact.model, actor),
        }
        for artifact in found.order_by("model__name", "pk")[:MOST]
    ]
    late = not came and row.ended_at is not None and row.ended_at < timezone.now() - LATE
    return {
        "came": came,
        "late": late,
        "may_deploy": can(actor, "deployments.create"),
        "may_scan": can(actor, "models.scan"),
    }
