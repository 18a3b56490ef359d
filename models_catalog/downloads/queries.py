"""Reads for the downloads' pages: a number of queries that does not grow with the rows."""

import uuid
from collections.abc import Iterable

from django.db.models import Prefetch, QuerySet

from models_catalog.downloads.models import ACTIVE, Download, HubAccess, State
from panel.core.errors import NotFound
from panel.fleet import samples
from panel.fleet.models import Gpu, Host

SHOW = ("", "done", "failed", "cancelled")


def listed(show: str = "") -> QuerySet[Download]:
    """The ones that are over, the newest first; their long lists of files stay in the database."""
    rows = Download.objects.exclude(state__in=[*ACTIVE, State.PAUSED]).select_related("host", "job")
    return (rows.filter(state=show) if show in SHOW[1:] else rows).defer("files").order_by("-created_at")


def every() -> QuerySet[Download]:
    return Download.objects.select_related("host", "job").defer("files")


def going() -> list[Download]:
    """What goes on, waits or is paused, in the order of the queues."""
    rows = every().filter(state__in=[*ACTIVE, State.PAUSED], host__forgotten_at=None)
    return fresh(rows.order_by("host__name", "queued_at")[:300])


def fresh(rows: Iterable[Download]) -> list[Download]:
    """The same with the newest figures of their hosts: how far each is lies in memory, not in rows."""
    found = list(rows)
    samples.freshen(*(row.job for row in found))
    return found


def one(pk: uuid.UUID) -> Download:
    """Raises NotFound."""
    row = Download.objects.select_related("host", "job__log").filter(pk=pk).first()
    if row is None:
        raise NotFound
    samples.freshen(row.job)
    return row


def ahead(row: Download) -> int:
    """How many of its host's queue come before it."""
    rows = Download.objects.filter(host_id=row.host_id, state=State.WAITING, job=None)
    return rows.filter(queued_at__lt=row.queued_at).count()


def hosts() -> list[Host]:
    """The hosts with their GPUs."""
    gpus = Prefetch("gpus", Gpu.objects.filter(present=True).order_by("index"))
    return list(Host.objects.prefetch_related(gpus).order_by("name"))


def access(pk: int, user_id: int | None) -> HubAccess:
    """A token of this person, or the team's. Raises NotFound."""
    row = HubAccess.objects.filter(pk=pk).first()
    if row is None or row.owner_id not in (None, user_id):
        raise NotFound
    return row
