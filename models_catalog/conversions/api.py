"""Conversions for programs: have a host make a Hugging Face folder of a GGUF file, and follow it."""

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema, Status

from models_catalog import queries as models
from models_catalog.conversions import contexts, queries, services, wording
from models_catalog.conversions.models import Conversion
from panel.core.api import Page, Paging, Reason, Token, answers, page_of
from panel.core.errors import Invalid, NotFound
from panel.core.idempotency import key_header, once

router = Router(tags=["models"])
StateName = Literal["waiting", "running", "cancelling", "cancelled", "done", "failed"]
Dtype = Literal["float16", "bfloat16", "float32"]


class ConversionIn(Schema):
    model_config = {"extra": "forbid"}

    copy_id: int = Field(ge=1, le=2**62, description=_("The copy of a GGUF model, by its id."))
    dtype: Dtype | None = Field(None, description=_("Number format of the weights; null: the one that suits."))
    folder: str = Field("", max_length=1000, description=_("A model folder of its host; empty: the first."))
    name: str = Field("", max_length=130, description=_("Name of the new folder; empty: made of the model's."))


class ConversionOut(Schema):
    id: uuid.UUID
    host: str
    copy_id: int | None
    source: str = Field(description=_("The model that it is made of."))
    dtype: Dtype
    path: str = Field(description=_("Where the new folder will lie; it appears there when it is whole."))
    size_bytes: int = Field(description=_("What the weights will take."))
    state: StateName
    phase: str = Field(description=_("What the host does now; empty when nothing goes on."))
    percent: float | None
    reason: Reason | None
    made: str
    tries: int
    asked_by: str
    created_at: datetime
    ended_at: datetime | None


class ConversionFilter(Paging):
    host: str = Field("", max_length=64, description=_("Name of the host."))
    state: Literal["", StateName] = ""


def conversion_out(row: Conversion) -> dict[str, Any]:
    names = ("id", "copy_id", "dtype", "state", "made", "tries", "asked_by", "created_at", "ended_at")
    going = row.state in ("running", "cancelling")
    return {
        **{name: getattr(row, name) for name in names},
        "host": row.host.name,
        "source": row.source_name,
        "path": row.target,
        "size_bytes": row.bytes_total,
        "phase": str(row.progress.get("phase") or "") if going else "",
        "percent": contexts.percent(row),
        "reason": Reason.of(wording.failure(row.refusal)) if row.refusal else None,
    }


def _conversions(rows: Iterable[Conversion]) -> Iterable[dict[str, Any]]:
    return map(conversion_out, queries.fresh(rows))


@router.get(
    "/conversions", response=answers({200: Page[ConversionOut]}), auth=Token("models.view"),
    summary=_("List conversions"), description=_("Newest first."),
)  # fmt: skip
def list_conversions(request: HttpRequest, asked: Query[ConversionFilter]) -> Any:
    rows = queries.every()
    if asked.host:
        rows = rows.filter(host__name=asked.host)
    if asked.state:
        rows = rows.filter(state=asked.state)
    return page_of(rows, asked, _conversions, key="created_at", newest=True)


@router.post(
    "/conversions",
    response=answers({201: ConversionOut}, 409, 413),
    auth=Token("models.convert"),
    summary=_("Have a host make a Hugging Face folder of a GGUF file"),
)
def start_conversion(request: HttpRequest, body: ConversionIn, response: HttpResponse, key: str = key_header()) -> Any:
    try:
        copy = models.copy(body.copy_id)
    except NotFound as exc:
        raise Invalid({"copy_id": gettext("There is no such copy.")}) from exc

    def make() -> ConversionOut:
        dtype = body.dtype or services.usual_dtype(copy.artifact)
        spots = services.spots(copy.host, copy.root)
        folder = body.folder or (spots[0].path if spots else "")
        wish = services.Wish(dtype, folder, body.name or services.usual_name(copy.artifact, dtype))
        return ConversionOut(**conversion_out(services.start(copy, wish, actor=request.auth)))

    return Status(201, once(request, response, key, make))


@router.get(
    "/conversions/{uuid:conversion_id}",
    response=answers({200: ConversionOut}, 404),
    auth=Token("models.view"),
    summary=_("One conversion"),
)
def get_conversion(request: HttpRequest, conversion_id: uuid.UUID) -> Any:
    return conversion_out(queries.one(conversion_id))


@router.post(
    "/conversions/{uuid:conversion_id}/cancel", response=answers({202: ConversionOut}, 404, 409),
    auth=Token("models.convert"), summary=_("Cancel a conversion; nothing of it stays"),
)  # fmt: skip
def cancel_conversion(request: HttpRequest, conversion_id: uuid.UUID) -> Any:
    return Status(202, conversion_out(services.cancel(queries.one(conversion_id), actor=request.auth)))
