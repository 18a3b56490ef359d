"""News of the catalog: a finished scan wakes its task, open pages look again. Both are shortcuts and never raise."""

import uuid
from typing import Any

from django.dispatch import receiver

from models_catalog.models import Copy
from panel.core import queue, sse
from panel.fleet import signals
from panel.fleet.wire import JOB_OVER

TAKEN = ("scan", "delete")  # kinds of jobs whose end this room writes
ALL = "models"  # topic: something of the catalog changed


def announce() -> None:
    """Tell open pages."""
    sse.publish(ALL, "changed", {})


@receiver(signals.job_changed, dispatch_uid="models_catalog.job_changed")
def handle_job_changed(sender: Any, job_id: uuid.UUID, kind: str, state: str, **_: Any) -> None:
    """Only nudges: the task writes. A scan's log is nobody's news here, its end is."""
    if kind == "engine":  # runs are the next room's; a refusal may be about the model's own code
        if state == "refused":
            send(str(job_id))
        return
    if kind not in TAKEN:
        return
    if state not in JOB_OVER:
        announce()
        return
    send(str(job_id))


@receiver(signals.host_forgotten, dispatch_uid="models_catalog.host_forgotten")
def handle_host_forgotten(sender: Any, host_id: int, **_: Any) -> None:
    """What lay on that machine is out of reach."""
    if Copy.objects.filter(host_id=host_id, present=True).update(present=False):
        announce()


def send(job_id: str) -> None:
    """Have the end of a job written."""
    queue.send("models_catalog.tasks.take_scan", job_id)


def measure_fits() -> None:
    """Have the estimates of the list made anew."""
    queue.send("models_catalog.tasks.take_fits")
