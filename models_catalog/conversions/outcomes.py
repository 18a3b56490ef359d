"""What became of conversions: the host's words become states, and nothing rests for ever."""

import uuid
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from models_catalog.conversions import events
from models_catalog.conversions.models import ACTIVE, Conversion, State
from models_catalog.models import CatalogModel, Copy
from panel import audit
from panel.audit import codes
from panel.fleet import followed, wire
from panel.fleet import services as fleet
from panel.fleet.models import Host, Job

NEWEST = timedelta(days=1)


@transaction.atomic
def take(job_id: str | uuid.UUID) -> Conversion | None:
    """Write what the host says of a conversion's job. None when it is nobody's newest try."""
    found = followed.locked(Conversion.objects.exclude(state=State.DONE), job_id, "convert")
    if found is None:
        return None
    row, job = found
    if job.state in wire.JOB_OVER:
        _take_end(row, job)
    elif job.state != "ordered" and row.state == State.WAITING:
        row.state = State.RUNNING
        row.save(update_fields=["state", "updated_at"])
    events.announce(row)
    return row


def _take_end(row: Conversion, job: Job) -> None:
    result = followed.result_of(job)
    if result is not None and result.refusal is None and result.items:
        _done(row, str(result.items[0].get("path") or row.target)[:1000])
        return
    if row.state not in ACTIVE:
        return
    refusal = followed.refusal_of(job)
    if refusal is None:
        return  # its result is on the way
    if row.state == State.CANCELLING:
        _end(row, State.CANCELLED)
    else:
        _end(row, State.FAILED, refusal)


def _end(row: Conversion, state: State, refusal: dict[str, Any] | None = None) -> None:
    row.state, row.refusal, row.ended_at = state, refusal, timezone.now()
    row.save()
    if refusal is not None:
        audit.record("conversion.failed", row, actor=None, host=row.host.name, **codes.facts_of(refusal))


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
    _sweep(Conversion.objects.filter(state__in=ACTIVE), State.WAITING, every_s=every_s)


@transaction.atomic
def _lost_host(pk: uuid.UUID) -> None:
    row = Conversion.objects.select_for_update(of=("self",)).select_related("host").filter(pk=pk).first()
    if row is not None and row.state in ACTIVE:
        _end(row, State.FAILED, {"code": "host_forgotten", "params": {}})
        events.announce(row)


_sweep = followed.Sweep(take, _lost_host)
