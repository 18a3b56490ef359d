"""Sending a task to the workers by its name, so that whoever has news needs to know nobody who acts on it."""

import logging

from celery import current_app

from panel.core import sse

log = logging.getLogger(__name__)


def send(task: str, *args: str | int) -> bool:
    """Send it once. False when the broker is away: every task has a sweep that finds its row later. Never raises."""
    if sse.broker_away():
        return False
    try:
        current_app.signature(task, args=args).apply_async(retry=False)
    except Exception as exc:  # any transport error
        sse.broker_failed()
        log.warning("%s %s not sent, a sweep will find it: %s", task, args, exc)
        return False
    return True
