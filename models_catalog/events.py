"""News of the catalog: a finished scan wakes its task, open pages look again. Both are shortcuts and never raise."""

import logging
import time
import uuid
from typing import Any

from django.dispatch import receiver

from panel.core import sse
from panel.fleet import signals

log = logging.getLogger(__name__)

_swept = float("-inf")

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
    if state not in ("ended", "refused"):
        announce()
        return
    send(str(job_id))


@receiver(signals.host_forgotten, dispatch_uid="models_catalog.host_forgotten")
def handle_host_forgotten(sender: Any, host_id: int, **_: Any) -> None:
    """What lay on that machine is out of reach."""
    from models_catalog.models import Copy

    if Copy.objects.filter(host_id=host_id, present=True).update(present=False):
        announce()


def send(job_id: str) -> None:
    """Send the task; when the broker is away the ticker finds the finished scan later."""
    from models_catalog.tasks import take_scan

    try:
        take_scan.apply_async((job_id,), retry=False)
    except Exception as exc:  # any transport error; the ticker comes by again
        log.warning("nudge not sent, the ticker will find scan %s: %s", job_id, exc)


def sweep_scans(*, every_s: float = 15.0) -> None:
    """Finished scans whose result nobody wrote, because a nudge was lost or a worker died.

    Called by every tick, works once in `every_s` seconds of this process, so that a queue that waits does not grow.
    """
    global _swept
    from models_catalog import code_at_start, deleting, fits, services

    now = time.monotonic()
    if now - _swept < every_s:
        return
    _swept = now
    for job_id in [*services.untaken(), *deleting.untaken(), *code_at_start.untaken()]:
        send(job_id)
    if fits.any_stale():
        measure_fits()


def measure_fits() -> None:
    """Have the estimates of the list made anew. When the broker is away the ticker asks again."""
    from models_catalog.tasks import take_fits

    try:
        take_fits.apply_async((), retry=False)
    except Exception as exc:  # any transport error; the ticker comes by again
        log.warning("nudge not sent, the ticker will ask for estimates again: %s", exc)
