"""News of the catalog: a finished scan wakes its task, open pages look again. Both are shortcuts and never raise."""

import logging
import uuid
from typing import Any

from django.dispatch import receiver

from panel.core import sse
from panel.fleet import signals

log = logging.getLogger(__name__)

ALL = "models"  # topic: something of the catalog changed


def announce() -> None:
    """Tell open pages."""
    sse.publish(ALL, "changed", {})


@receiver(signals.job_changed, dispatch_uid="models_catalog.job_changed")
def handle_job_changed(sender: Any, job_id: uuid.UUID, kind: str, state: str, **_: Any) -> None:
    """Only nudges: the task writes. A scan's log is nobody's news here, its end is."""
    if kind != "scan":
        return
    if state not in ("ended", "refused"):
        announce()
        return
    from models_catalog.tasks import take_scan

    try:
        take_scan.apply_async((str(job_id),), retry=False)
    except Exception as exc:  # any transport error; the sweep finds the result later
        log.warning("nudge not sent, the sweep will take scan %s: %s", job_id, exc)
