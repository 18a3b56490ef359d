"""Celery tasks: ids in, a service called, a vanished row forgiven."""

from celery import shared_task


@shared_task(name="models_catalog.downloads.tasks.take_download")
def take_download(job_id: str) -> None:
    from models_catalog.downloads import outcomes

    outcomes.take(job_id)
