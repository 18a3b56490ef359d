"""Reads for the engines' pages: rows with what they show, in a number of queries that does not grow with the rows."""

import uuid

from django.db.models import F, Func, IntegerField, Prefetch, QuerySet

from panel.core.errors import NotFound
from panel.fleet import queries as fleet
from panel.fleet.models import Gpu, Host, Job, Runtime, RuntimeInstall
from panel.fleet.runtimes.services import ACTIVE

RECENT = 8  # installs that are over and still shown on the page of all engines


def listed() -> QuerySet[Runtime]:
    """Engines of all known hosts, without their long schemas; `flag_count` says how many settings each knows."""
    count = Func(F("flags"), function="jsonb_array_length", output_field=IntegerField())
    rows = Runtime.objects.filter(removed_at=None, host__forgotten_at=None).defer("flags").annotate(flag_count=count)
    return rows.select_related("host").order_by("host__name", "engine", "-version", "executable")


def hosts() -> list[Host]:
    """Known hosts with their GPUs, for the form and for the heads of the list."""
    gpus = Prefetch("gpus", Gpu.objects.filter(present=True))
    return list(Host.objects.filter(forgotten_at=None).prefetch_related(gpus).order_by("name"))


def searching() -> set[int]:
    """Hosts that look for engines now, or have ended it and not yet told what they found."""
    jobs = Job.objects.filter(kind="runtimes", open=True).defer("order", "secrets")
    return {job.host_id for job in jobs if fleet.searches(job)}


def going() -> list[RuntimeInstall]:
    return list(_installs().filter(state__in=ACTIVE))


def recent() -> list[RuntimeInstall]:
    """The newest installs that are over."""
    return list(_installs().exclude(state__in=ACTIVE)[:RECENT])


def _installs() -> QuerySet[RuntimeInstall]:
    rows = RuntimeInstall.objects.filter(host__forgotten_at=None).select_related("host", "job", "runtime")
    return rows.defer("runtime__flags").order_by("-created_at")


def install(pk: uuid.UUID) -> RuntimeInstall:
    """One install with its newest job and log. Raises NotFound."""
    rows = RuntimeInstall.objects.select_related("host", "job__log", "runtime").defer("runtime__flags")
    row = rows.filter(pk=pk).first()
    if row is None:
        raise NotFound
    return row


def runtime(pk: int) -> Runtime:
    """Raises NotFound."""
    row = listed().filter(pk=pk).first()
    if row is None:
        raise NotFound
    return row
