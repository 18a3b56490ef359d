"""Celery tasks: ids in, a service called, a vanished row forgiven."""

from celery import shared_task


@shared_task(name="models_catalog.sidecars.tasks.take_conversion")
def take_conversion(job_id: str) -> None:
    from models_catalog.sidecars import outcomes

    outcomes.take(job_id)
