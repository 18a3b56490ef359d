"""Celery tasks: ids in, a call of the loop, nothing back. A vanished row is forgiven."""

from celery import shared_task


@shared_task(name="deployments.tasks.reconcile")
def reconcile_deployment(pk: int) -> None:
    from deployments.reconcile import reconcile

    reconcile(pk)


@shared_task(name="deployments.tasks.probe")
def probe_run(run_id: str) -> None:
    """Its own queue: an engine that answers slowly keeps no deployment waiting."""
    from deployments import golden
    from deployments.probe import ask_run

    ask_run(run_id)
    golden.ask_later(run_id)  # it looks whether there was an answer


@shared_task(name="deployments.tasks.live_probe")
def live_probe_run(run_id: str) -> None:
    """In the probe's queue as well."""
    from deployments.serving.live_probe import ask_run

    ask_run(run_id)
