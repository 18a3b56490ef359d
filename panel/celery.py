"""The Celery app. Tasks live in each room's tasks.py and take ids only; the worker also carries the ticker."""

import logging
import os
from typing import Any

from celery import Celery
from celery.signals import (
    before_task_publish,
    celeryd_init,
    setup_logging,
    task_postrun,
    task_prerun,
    worker_ready,
    worker_shutting_down,
)
from django.conf import settings
from django.utils.log import configure_logging

from panel.core import trace

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "panel.settings")
# A worker would have Django check itself at its start, which loads every address with its view: 30 MiB that it never
# uses. The web process and `manage.py` check.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("berth")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@celeryd_init.connect
def _logs_as_everywhere(**_: Any) -> None:
    """By the settings, before Celery says its first word; warnings too are lines of the log."""
    configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
    logging.captureWarnings(True)


@setup_logging.connect
def _logs_are_set_up(**_: Any) -> None:
    """That somebody listens keeps Celery from putting its own level and form over them."""


# --- the id of what is going on travels with the task ----------------------------------------------------------------
@before_task_publish.connect
def _take_along(headers: dict[str, Any], **_: Any) -> None:
    headers["trace"] = trace.current()


@task_prerun.connect
def _take_up(task: Any, **_: Any) -> None:
    """Each task has a thread for itself until it ends."""
    if not task.request.is_eager:
        trace.take_up(str(getattr(task.request, "trace", "") or ""))


@task_postrun.connect
def _lay_down(task: Any, **_: Any) -> None:
    if not task.request.is_eager:
        trace.take_up("")


@worker_ready.connect
def _start_ticker(**_: Any) -> None:
    from deployments.ticker import Ticker

    app.ticker = Ticker()
    app.ticker.start()


@worker_shutting_down.connect
def _stop_ticker(**_: Any) -> None:
    ticker = getattr(app, "ticker", None)
    if ticker is not None:
        ticker.stop()
