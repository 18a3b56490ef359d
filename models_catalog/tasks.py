"""Celery tasks: ids in, a service called, a vanished row forgiven."""

import logging

from celery import shared_task

from models_catalog.conversions import tasks as converting  # noqa: F401
from models_catalog.downloads import tasks as downloads  # noqa: F401  (Celery finds a room's tasks here)

log = logging.getLogger(__name__)


@shared_task(name="models_catalog.tasks.take_scan")
def take_scan(job_id: str) -> None:
    from models_catalog import code_at_start, deleting, events, services
    from models_catalog.conversions import outcomes as conversions
    from models_catalog.downloads import origins
    from panel.fleet.models import Job

    job = Job.objects.select_related("host").filter(pk=job_id).first()
    if job is None:
        return
    if job.kind == "delete":
        deleting.take(job)
        return
    if job.kind == "engine":
        code_at_start.take(job)
        return
    outcome = services.take(job)
    if outcome is not None:
        log.info("scan of %s: %d models, %d gone", job.host, outcome.seen, outcome.gone)
        origins.note(job.host)
        conversions.note(job.host)
        events.measure_fits()


@shared_task(name="models_catalog.tasks.take_fits")
def take_fits() -> None:
    """Which models fit which GPUs, for the list and its filter."""
    from models_catalog import events, fits

    if fits.freshen():
        events.announce()
