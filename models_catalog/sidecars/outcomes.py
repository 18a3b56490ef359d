"""What became of conversions: the host's words become states, and nothing rests for ever."""

import time
import uuid
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from models_catalog.models import CatalogModel, Copy
from models_catalog.sidecars import events
from models_catalog.sidecars.models import ACTIVE, Conversion, State
from panel import audit
from panel.fleet import services as fleet
from panel.fleet import wire
from panel.fleet.models import Host, Job

NEWEST = timedelta(days=1)
_swept = float("-inf")


@transaction.atomic
def take(job_id: str | uuid.UUID) -> Conversion | None:
    """Write what the host says of a conversion's job. None when it is nobody's newest try."""
    job = Job.objects.filter(pk=job_id, kind="convert").first()
    if job is None:
        return None
    fleet.lock_host(job.host_id)
    job.refresh_from_db()
    row = Conversion.objects.select_for_update(of=("self",)).select_related("host").filter(job_id=job.pk).first()
    if row is None or row.state == State.DONE:
        return None
    row.job = job
    if job.state in wire.JOB_OVER:
        _take_end(row, job)
    elif job.state != "ordered" and row.state == State.WAITING:
        row.state = State.RUNNING
        row.save(update_fields=["state", "updated_at"])
    events.announce(row)
    return row


def _take_end(row: Conversion, job: Job) -> None:
    result = wire.JobResult.model_validate(job.result) if job.result is not None else None
    if result is not None and result.refusal is None and result.items:
        _done(row, str(result.items[0].get("path") or row.target)[:1000])
        return
    if row.state not in ACTIVE:
        return
    refusal = _refusal(job, result)
    if refusal is None:
        return  # its result is on the way
    if row.state == State.CANCELLING:
        _end(row, State.CANCELLED)
    else:
        _end(row, State.FAILED, refusal)


def _refusal(job: Job, result: wire.JobResult | None) -> dict[str, Any] | None:
    """Why it ended without a model; None while a result may still come."""
    if result is not None:
        found = result.refusal or wire.Refusal(code="task_failed")
        return found.model_dump(mode="json")
    if job.never_ran:
        return dict(job.status.get("refusal") or {"code": "stopped", "params": {}})
    return {"code": "task_failed", "params": {}} if job.lost_result else None


def _end(row: Conversion, state: State, refusal: dict[str, Any] | None = None) -> None:
    row.state, row.refusal, row.ended_at = state, refusal, timezone.now()
    row.save()
    if refusal is not None:
        audit.record("conversion.failed", row, actor=None, host=row.host.name, code=refusal["code"])


def _done(row: Conversion, path: str) -> None:
    row.made = path
    _end(row, State.DONE)
    audit.record("conversion.done", row, actor=None, host=row.host.name, into=path)
    if row.host.forgotten_at is None:  # the catalog knows what a search told it
        fleet.order_job(host=row.host, task=wire.ScanTask(roots=row.host.model_roots))


def note(host: Host) -> None:
    """After a search: tell the catalog of which model a new one is a conversion. Twice changes nothing."""
    recent = Conversion.objects.filter(host=host, state=State.DONE, ended_at__gt=timezone.now() - NEWEST)
    for row in recent.select_related("copy__artifact__model"):
        found = Copy.objects.filter(host=host, path=row.made, present=True).select_related("artifact__model").first()
        if found is None:
            continue
        source = row.copy.artifact.model if row.copy is not None else None
        model = found.artifact.model
        if source is not None and source.pk == model.pk:
            continue
        told = {"how": "converted", "host": host.name, "place": row.source_name, "model": source.pk if source else None}
        mine = CatalogModel.objects.filter(pk=model.pk)
        mine.filter(created_at__gte=row.created_at, added_by="").update(added_by=row.asked_by, added_from=told)
        if source is not None:
            mine.filter(licence="").update(licence=source.licence)
            mine.filter(source_url="").update(source_url=source.source_url)


def sweep(*, every_s: float = 5.0) -> None:
    """What a lost nudge, a lost result or a forgotten host left behind. Called by every tick, works now and then."""
    global _swept
    now = time.monotonic()
    if now - _swept < every_s:
        return
    _swept = now
    moving = Conversion.objects.filter(state__in=ACTIVE)
    for job_id in moving.filter(job__state__in=wire.JOB_OVER).values_list("job_id", flat=True):
        take(job_id)
    begun = moving.filter(state=State.WAITING, job__state__in=["starting", "running"])
    for job_id in begun.values_list("job_id", flat=True):
        take(job_id)
    for pk in moving.filter(host__forgotten_at__isnull=False).values_list("pk", flat=True):
        _lost_host(pk)


@transaction.atomic
def _lost_host(pk: uuid.UUID) -> None:
    row = Conversion.objects.select_for_update(of=("self",)).select_related("host").filter(pk=pk).first()
    if row is not None and row.state in ACTIVE:
        _end(row, State.FAILED, {"code": "host_forgotten", "params": {}})
        events.announce(row)
