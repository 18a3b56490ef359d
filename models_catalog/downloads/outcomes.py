"""What became of downloads: the host's words become states, and nothing rests for ever."""

import uuid

from django.db import transaction

from models_catalog.downloads import events, services
from models_catalog.downloads.models import ACTIVE, Download, State
from panel import audit
from panel.audit import codes
from panel.fleet import followed, wire
from panel.fleet import services as fleet
from panel.fleet.models import Job

MOST_TRIES = 50  # of one that goes on by itself


@transaction.atomic
def take(job_id: str | uuid.UUID) -> Download | None:
    """Write what the host says of a download's job. None when it is nobody's newest try."""
    found = followed.locked(Download.objects.all(), job_id, "download")
    if found is None:
        return None
    row, job = found
    if job.state in wire.JOB_OVER:
        _take_end(row, job)
    elif job.state != "ordered":
        row.state = State.RUNNING if row.state == State.WAITING else row.state
        row.bytes_done = _bytes(row, job)  # its end may not tell of it any more
        row.save(update_fields=["state", "bytes_done", "updated_at"])
    events.announce(row)
    return row


def _take_end(row: Download, job: Job) -> None:
    result = followed.result_of(job)
    if row.state == State.DONE:
        return
    if result is not None and result.refusal is None:
        _done(row, result)
        return
    if row.state not in ACTIVE:
        return
    refusal = followed.refusal_of(job)
    if refusal is None:
        return  # its result is on the way
    row.bytes_done = _bytes(row, job)
    if row.state == State.CANCELLING:
        services.ended(row, State.CANCELLED)
    elif row.state == State.PAUSING:
        services.ended(row, State.PAUSED)
    elif refusal["code"] == "host_restarted" and row.tries < MOST_TRIES:
        services.go_on(row)  # nobody has to press a button because a machine was started again
    else:
        services.ended(row, State.FAILED, refusal)
        audit.record("download.failed", row, actor=None, host=row.host.name, **codes.facts_of(refusal))


def _bytes(row: Download, job: Job) -> int:
    """How much is there. Only of the files that were fetched does the host tell; the others were there before."""
    progress = job.status.get("progress") or {}
    if progress.get("phase") != "downloading" or not progress.get("total"):
        return row.bytes_done
    return max(0, row.bytes_total - int(progress["total"]) + int(progress.get("done") or 0))


def _done(row: Download, result: wire.JobResult) -> None:
    row.made = [str(item.get("path"))[:1000] for item in result.items if item.get("path")][:50]
    row.bytes_done = row.bytes_total
    row.replace = False
    services.ended(row, State.DONE)
    audit.record("download.done", row, actor=None, host=row.host.name, hub=row.get_source_display())
    if row.host.forgotten_at is None:  # the catalog knows what a search told it
        fleet.order_job(host=row.host, task=wire.ScanTask(roots=row.host.model_roots))


def sweep(*, every_s: float = 5.0) -> None:
    """What a lost nudge, a lost result or a forgotten host left behind. Called by every tick, works now and then."""
    if _sweep(Download.objects.filter(state__in=ACTIVE), State.WAITING, every_s=every_s):
        _wake_queues()


def _wake_queues() -> None:
    waiting = Download.objects.filter(state=State.WAITING, job=None, host__forgotten_at=None)
    for host_id in waiting.values_list("host_id", flat=True).distinct().order_by("host_id"):
        with transaction.atomic():
            fleet.lock_host(host_id)
            row = Download.objects.select_related("host").filter(host_id=host_id).first()
            if row is not None:
                services.advance(row.host)


@transaction.atomic
def _lost_host(pk: uuid.UUID) -> None:
    row = Download.objects.select_for_update(of=("self",)).select_related("host").filter(pk=pk).first()
    if row is not None and row.state in ACTIVE:
        services.ended(row, State.FAILED, {"code": "host_forgotten", "params": {}})


_sweep = followed.Sweep(take, _lost_host)
