"""The Celery app. Tasks live in each room's tasks.py and take ids only; the worker also carries the ticker."""

import os
from typing import Any

from celery import Celery
from celery.signals import worker_ready, worker_shutting_down

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "panel.settings")

app = Celery("berth")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


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
