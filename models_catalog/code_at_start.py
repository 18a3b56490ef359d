"""Trust in a model's own code at the start of an engine: the order names the files, the host compares and refuses.

What the host found different ends the trust, whatever the newest look at the folder had said.
"""

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from models_catalog import events, services, shelf
from models_catalog.models import CatalogModel, Copy
from panel import audit
from panel.fleet.models import Job

CHANGED = "code_changed"  # the host's refusal: files that are not as allowed
ELSEWHERE = "code_elsewhere"  # the host's refusal: code would come from another place than the model's folder
REFUSALS = (CHANGED, ELSEWHERE)
NEWEST = timedelta(days=1)
PATIENCE = timedelta(seconds=15)  # how long a nudge may take before the sweep looks


def may_run(copy: Copy) -> bool:
    """Whether an engine may run the model's own code for this copy; False also where it brings none."""
    return copy.artifact.model.allow_remote_code and bool(copy.artifact.facts.get("needs_remote_code"))


def files_for(copy: Copy) -> list[tuple[str, str]]:
    """(file, SHA-256) of what an admin allowed. Decisions from before sums were kept are about what was found."""
    model = copy.artifact.model
    pins = model.code_pins if model.code_at is not None else shelf.code_of(shelf.copies_of(model))
    return [(name, sum_) for name, sum_ in pins]


@transaction.atomic
def take(job: Job) -> bool:
    """End the trust that a refused start was ordered with, and look at the host's folders again.

    False when that was not the host's reason, or when an admin has decided anew since.
    """
    refusal = _refusal(job)
    if refusal is None:
        return False
    path = str(job.order.get("model_path", ""))
    found = Copy.objects.filter(host=job.host_id, path=path).values_list("artifact__model_id", flat=True).first()
    rows = CatalogModel.objects.select_for_update().filter(pk=found, allow_remote_code=True)
    model = rows.first()
    if model is None or (model.code_at is not None and model.code_at > job.created_at):
        return False
    params = refusal.get("params") or {}
    named = params.get("files") if isinstance(params.get("files"), list) else [params.get("place", "")]
    files = [str(name)[:200] for name in named if name][:50] or ["…"]
    shelf.withdraw(model, files)
    audit.record("model.code_withdrawn", model, actor=None, files=files, host=job.host.name, at_start=True)
    if job.host.lost_at is None:
        services.look_again(job.host)  # so that the page lists the files as they are now
    transaction.on_commit(events.announce, robust=True)
    return True


def _refusal(job: Job) -> dict[str, Any] | None:
    refusal = (job.status or {}).get("refusal") or {}
    return refusal if job.kind == "engine" and refusal.get("code") in REFUSALS else None


def untaken() -> list[str]:
    """Ids of refused starts whose trust may still stand, because a nudge was lost."""
    now = timezone.now()
    paths = Copy.objects.filter(artifact__model__allow_remote_code=True).values_list("host_id", "path")
    trusted = set(paths[:10_000])
    if not trusted:
        return []
    rows = Job.objects.filter(kind="engine", state="refused", status__refusal__code__in=REFUSALS)
    rows = rows.filter(ended_at__range=(now - NEWEST, now - PATIENCE))
    found = rows.values_list("pk", "host_id", "order__model_path")[:100]
    return [str(pk) for pk, host_id, path in found if (host_id, path) in trusted]
