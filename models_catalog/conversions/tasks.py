"""Celery tasks: ids in, a service called, a vanished row forgiven."""

from celery import shared_task


@shared_task(name="models_catalog.conversions.tasks.take_conversion")
def take_conversion(job_id: str) -> None:
    from models_catalog.conversions import outcomes

    outcomes.take(job_id)
