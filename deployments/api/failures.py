"""What failed, for programs: numbers by class, single failures with their errors, what people say of an explanation."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Query, Router, Schema
from pydantic import ConfigDict, Field

from deployments import failures, failures_export, failures_read, queries
from deployments.failures_read import Filters
from deployments.models import Failure
from deployments.pages import failed
from panel.core.api import Page, Paging, Token, answers, page_of
from panel.core.errors import NotFound

router = Router(tags=["runs"])


class Narrowed(Schema):
    """Which failures. Without any of these: all."""

    q: str = Field("", max_length=100, description=_("Words of the deployment's or the model's name."))
    days: Literal["", "7", "30", "90", "365"] = Field("", description=_("Those of the last so many days."))
    class_: str = Field(
        "", alias="class", max_length=80, description=_("One class; not_recognised for those without one.")
    )
    host: str = Field("", max_length=64, description=_("Name of a host."))
    engine: str = Field("", max_length=81, description=_("Engine and version, such as “vllm 0.32.0”."))
    model: str = Field("", max_length=250, description=_("Name of a model, as runs tell it."))
    deployment: int | None = Field(None, ge=1, le=2**62, description=_("Number of a deployment."))

    def filters(self) -> Filters:
        values = {**self.dict(exclude={"class_"}), "class": self.class_, "deployment": self.deployment or ""}
        return Filters.of(values)


class NarrowedPage(Narrowed, Paging):
    pass


class ClassOut(Schema):
    """One class of failures and how often it came."""

    class_: str | None = Field(alias="class", description=_("Null: the cause was not recognised."))
    title: str
    count: int
    last: datetime
    mended: int = Field(description=_("How many were mended by the very next start."))
    mended_by: dict[str, int] = Field(
        description=_("What that start did differently: names of settings, or “same”; and how often.")
    )
    right: int = Field(description=_("How often people found the explanation right."))
    wrong: int


class ClassesOut(Schema):
    items: list[ClassOut]


class FailureOut(Schema):
    """One start that failed."""

    at: datetime
    run: UUID
    deployment: str
    number: int
    class_: str | None = Field(alias="class")
    title: str
    phase: str
    confidence: float | None = Field(description=_("0 to 1; null where the cause was not recognised."))
    engine: str
    engine_version: str
    host: str
    model: str
    root_line: int | None = Field(description=_("Line of the log that proves it, counted from 1."))
    error: list[str] = Field(description=_("The first error of the log."))
    mended_by: int | None = Field(description=_("Number of the next start, where that got ready."))
    mended_change: str
    right: bool | None = Field(description=_("What people say of the explanation; null: nothing yet."))
    note: str
    judged_by: str
    judged_at: datetime | None


class VerdictIn(Schema):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"right": False, "note": "The disk was full."}]}
    )

    right: bool | None = Field(description=_("Was the explanation right? Null takes the answer back."))
    note: str = Field("", max_length=failures.LONGEST_NOTE, description=_("What it really was, or what helped."))


def _out(row: Failure) -> dict[str, Any]:
    return {**failures_export.row_of(row), "title": failed.title_of(row.code)}


@router.get(
    "/failures",
    response=answers({200: ClassesOut}),
    auth=Token("deployments.view"),
    summary=_("What failed, by class"),
    description=_("The most frequent first, with how many were mended by the very next start, and by what."),
    by_alias=True,
)
def list_failures(request: HttpRequest, asked: Query[Narrowed]) -> Any:
    rows = failures_read.matching(asked.filters(), request.auth)
    return {
        "items": [
            {
                "class": one.code or None,
                "title": failed.title_of(one.code),
                "count": one.count,
                "last": one.last,
                "mended": one.mended,
                "mended_by": dict(one.by),
                "right": one.right,
                "wrong": one.wrong,
            }
            for one in failures_read.classes(rows)
        ]
    }


@router.get(
    "/failures/runs",
    response=answers({200: Page[FailureOut]}),
    auth=Token("deployments.view"),
    summary=_("What failed, one by one"),
    description=_("Newest first, each with its first error and with what people say of its explanation."),
    by_alias=True,
)
def list_failed_runs(request: HttpRequest, asked: Query[NarrowedPage]) -> Any:
    rows = failures_read.with_errors(failures_read.matching(asked.filters(), request.auth))
    return page_of(rows, asked, lambda found: map(_out, found), newest=True)


@router.put(
    "/runs/{uuid:run_id}/verdict",
    response=answers({200: FailureOut}, 404, 409, 413),
    auth=Token("deployments.operate"),
    summary=_("Say whether an explanation was right"),
    by_alias=True,
)
def put_verdict(request: HttpRequest, run_id: UUID, body: VerdictIn) -> Any:
    run = queries.run(run_id)
    if not request.auth.reaches(run.deployment_id):
        raise NotFound
    row = failures.judge(run, right=body.right, note=body.note, actor=request.auth)
    return _out(failures_read.with_errors(Failure.objects.filter(pk=row.pk)).get())
