"""News of downloads: a job that moved wakes its task, open pages look again. Both are shortcuts and never raise."""

import uuid
from functools import partial
from typing import Any

from django.db import transaction
from django.dispatch import receiver

from models_catalog.downloads.models import Download
from panel.core import queue, sse
from panel.fleet import signals

ALL = "downloads"  # topic: some download moved


def topic(pk: Any) -> str:
    return f"{ALL}:{pk}"


def announce(row: Download) -> None:
    """Tell open pages, after the commit."""
    for name in (ALL, topic(row.pk)):
        transaction.on_commit(partial(sse.publish, name, "changed", {}), robust=True)


@receiver(signals.job_changed, dispatch_uid="models_catalog.downloads.job_changed")
def handle_job_changed(sender: Any, job_id: uuid.UUID, kind: str, state: str, log_grew: bool = False, **_: Any) -> None:
    """Only nudges: the task writes. Progress is read from the job, so that pages need no row of their own for it."""
    if kind != "download" or log_grew:
        return
    send(str(job_id))


def send(job_id: str) -> None:
    """Have what a job tells written."""
    queue.send("models_catalog.downloads.tasks.take_download", job_id)
