"""What the catalog's part of a tick does: whatever a lost nudge or a worker's death left, is found."""

import time

from models_catalog import code_at_start, deleting, events, fits, services
from models_catalog.conversions import outcomes as conversions
from models_catalog.downloads import outcomes as downloads

_swept = float("-inf")


def sweep() -> None:
    sweep_jobs()
    downloads.sweep()
    conversions.sweep()


def sweep_jobs(*, every_s: float = 15.0) -> None:
    """Scans, deletions and starts whose end nobody wrote, and estimates that are out of date.

    Called by every tick, works once in `every_s` seconds of this process, so that a queue that waits does not grow.
    """
    global _swept
    now = time.monotonic()
    if now - _swept < every_s:
        return
    _swept = now
    for job_id in [*services.untaken(), *deleting.untaken(), *code_at_start.untaken()]:
        events.send(job_id)
    if fits.any_stale():
        events.measure_fits()
