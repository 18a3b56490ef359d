"""Rows that follow a job of a host, such as a download: found and locked, how the job ended, what nobody wrote down.

Such a row has `host`, `job` (its newest try) and `state`. Whoever moves it locks the host first, as reports do.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from panel.fleet import services, wire
from panel.fleet.models import Job

Row = TypeVar("Row", bound=Model)


def locked(rows: QuerySet[Row], job_id: str | uuid.UUID, kind: str) -> tuple[Row, Job] | None:
    """The row whose newest try this job is, with the job as it is now; the host is locked. None: it is nobody's."""
    job = Job.objects.filter(pk=job_id, kind=kind).first()
    if job is None:
        return None
    services.lock_host(job.host_id)
    job.refresh_from_db()
    row = rows.select_for_update(of=("self",)).select_related("host").filter(job_id=job.pk).first()
    if row is None:
        return None
    row.job = job  # type: ignore[attr-defined]
    return row, job


def result_of(job: Job) -> wire.JobResult | None:
    return wire.JobResult.model_validate(job.result) if job.result is not None else None


def refusal_of(job: Job) -> dict[str, Any] | None:
    """Why a job that is over made nothing; None while its result may still come."""
    result = result_of(job)
    if result is not None:
        found = result.refusal or wire.Refusal(code="task_failed")
        seen = job.status.get("refusal")  # how the host saw it end: with the machine, say
        return dict(seen) if seen and found.code == "task_failed" else found.model_dump(mode="json")
    if job.never_ran:
        return dict(job.status.get("refusal") or {"code": "stopped", "params": {}})
    return {"code": "task_failed", "params": {}} if job.lost_result else None


class Sweep:
    """What a lost nudge, a lost result or a forgotten host left behind, looked for now and then by every tick."""

    def __init__(self, take: Callable[[Any], object], lost_host: Callable[[Any], object]) -> None:
        self._take, self._lost_host = take, lost_host
        self._swept = float("-inf")

    def __call__(self, moving: QuerySet[Any], waiting: str, *, every_s: float) -> bool:
        """False: it is too early. `moving` are the rows that are not over, `waiting` the state before they begin."""
        now = time.monotonic()
        if now - self._swept < every_s:
            return False
        self._swept = now
        over = moving.filter(job__state__in=wire.JOB_OVER)
        begun = moving.filter(state=waiting, job__state__in=["starting", "running"])
        for rows in (over, begun):
            for job_id in rows.values_list("job_id", flat=True):
                self._take(job_id)
        for pk in moving.filter(host__forgotten_at__isnull=False).values_list("pk", flat=True):
            self._lost_host(pk)
        return True
