"""News of conversions: a job that moved wakes its task, open pages look again. Both are shortcuts and never raise."""

import uuid
from functools import partial
from typing import Any

from django.db import transaction
from django.dispatch import receiver

from models_catalog import events as catalog
from models_catalog.conversions.models import Conversion
from panel.core import queue, sse
from panel.fleet import signals


def topic(pk: Any) -> str:
    return f"conversion:{pk}"


def announce(row: Conversion) -> None:
    """Tell open pages, after the commit: its own, and those of models."""
    for name in (topic(row.pk), catalog.ALL):
        transaction.on_commit(partial(sse.publish, name, "changed", {}), robust=True)


@receiver(signals.job_changed, dispatch_uid="models_catalog.conversions.job_changed")
def handle_job_changed(sender: Any, job_id: uuid.UUID, kind: str, state: str, log_grew: bool = False, **_: Any) -> None:
    """Only nudges: the task writes. Progress is read from the job."""
    if kind != "convert" or log_grew:
        return
    send(str(job_id))


def send(job_id: str) -> None:
    """Have what a job tells written."""
    queue.send("models_catalog.conversions.tasks.take_conversion", job_id)
