"""Reads for the conversions' pages."""

import uuid
from collections.abc import Iterable

from django.db.models import QuerySet

from models_catalog.conversions.models import Conversion, State
from models_catalog.models import Copy
from panel.core.errors import NotFound
from panel.fleet import samples


def every() -> QuerySet[Conversion]:
    return Conversion.objects.select_related("host", "job")


def fresh(rows: Iterable[Conversion]) -> list[Conversion]:
    """With the newest figures of what goes on."""
    found = list(rows)
    samples.freshen(*(row.job for row in found))
    return found


def one(pk: uuid.UUID) -> Conversion:
    """Raises NotFound."""
    row = Conversion.objects.select_related("host", "job__log", "copy__artifact__model").filter(pk=pk).first()
    if row is None:
        raise NotFound
    samples.freshen(row.job)
    return row


def newest(copies: Iterable[int]) -> dict[int, Conversion]:
    """By copy: the newest conversion that goes on, failed, or made a model."""
    rows = Conversion.objects.filter(copy__in=list(copies)).exclude(state=State.CANCELLED)
    return {row.copy_id: row for row in rows.order_by("created_at")}


def made_of(row: Conversion) -> Copy | None:
    """The model that came of it, once a look through the folders found it."""
    rows = Copy.objects.filter(host_id=row.host_id, path=row.made, present=True)
    return rows.select_related("artifact__model").first() if row.made else None
