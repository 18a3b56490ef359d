"""Starts and their logs, and deployments as files, for programs."""

import uuid
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_noop as _
from ninja import Query, Router, Schema
from pydantic import Field

from deployments import checking, exported, portable, queries
from deployments.api.deployments import reached
from deployments.api.schemas import LogFilter, LogOut, RunOut, log_out, run_out
from deployments.models import Run
from panel.core.api import Page, Paging, Token, answers, page_of
from panel.core.errors import NotFound
from panel.fleet import logstore

router = Router(tags=["runs"])
FILE = "application/yaml"


def _run(request: HttpRequest, run_id: uuid.UUID) -> Run:
    found = queries.run(run_id)
    if not request.auth.reaches(found.deployment_id):
        raise NotFound
    return found


@router.get(
    "/deployments/{int:deployment_id}/runs",
    response=answers({200: Page[RunOut]}, 404),
    auth=Token("deployments.view"),
    summary=_("List the starts of a deployment"),
    description=_("Newest first."),
)
def list_runs(request: HttpRequest, deployment_id: int, asked: Query[Paging]) -> Any:
    rows = queries.records_of(reached(request, deployment_id))
    return page_of(rows, asked, lambda found: map(run_out, found), key="number", newest=True)


@router.get(
    "/runs/{uuid:run_id}",
    response=answers({200: RunOut}, 404),
    auth=Token("deployments.view"),
    summary=_("One start"),
)
def get_run(request: HttpRequest, run_id: uuid.UUID) -> Any:
    return run_out(_run(request, run_id), request.auth.reaches)


@router.get(
    "/runs/{uuid:run_id}/log",
    response=answers({200: LogOut}, 404),
    auth=Token("deployments.view"),
    summary=_("A part of a log"),
    description=_("With “Accept: text/plain” the bytes alone; X-Log-Start, X-Log-Next and X-Log-Size tell the rest."),
    openapi_extra={"responses": {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}},
)
def get_log(request: HttpRequest, run_id: uuid.UUID, asked: Query[LogFilter]) -> Any:
    run = _run(request, run_id)
    job = checking.log_job_of(run)
    if job is None:
        raise NotFound
    offset = asked.offset if asked.offset >= 0 else logstore.tail_offset(job.pk, -asked.offset)
    part = logstore.read(job.pk, offset, asked.limit)
    if request.headers.get("Accept", "").startswith("text/plain"):
        answer = HttpResponse(part.data, content_type="text/plain; charset=utf-8")
        answer["X-Log-Start"], answer["X-Log-Next"], answer["X-Log-Size"] = (
            str(part.start),
            str(part.end),
            str(part.size),
        )
        return answer
    return log_out(part, ended=not job.open)


# --- deployments as files ---------------------------------------------------------------------------------------------


class AppliedOut(Schema):
    """What became of one deployment of the file."""

    name: str
    id: int | None = Field(description=_("Null: it would be made."))
    action: str = Field(description=_("created, changed or unchanged"))
    run: str = Field(description=_("started or stopped, where that was changed"))
    changes: dict[str, list[Any]] = Field(
        description=_("Each value that differs: before and after; secrets are hidden.")
    )


class ApplyOut(Schema):
    dry_run: bool
    changed: int = Field(description=_("How many deployments differ from the file."))
    items: list[AppliedOut]


class ApplyFilter(Schema):
    dry_run: bool = Field(False, description=_("Only say what would be changed."))


class ExportFilter(Schema):
    form: Literal["berth", "command", "compose", "systemd"] = Field("berth", description=_("Which kind of file."))


def _file(text: str, name: str, ending: str = "yaml", kind: str = FILE) -> HttpResponse:
    answer = HttpResponse(text, content_type=kind)
    answer["Content-Disposition"] = f'attachment; filename="{name}.{ending}"'
    return answer


COMPOSE = {"type": "object", "required": ["services"]}
FORMS = {
    FILE: {"schema": {"anyOf": [portable.file_schema(), COMPOSE]}},
    "text/plain": {"schema": {"type": "string"}},
}


@router.get(
    "/deployments/{int:deployment_id}/export",
    response=answers({200: None}, 404, 409),
    auth=Token("deployments.view"),
    summary=_("A deployment as a file"),
    description=_(
        "YAML with names instead of numbers; apply it here or on another panel. With `form` as it runs without Berth:"
        " the exact command, a compose file or a systemd unit. Secrets are in none of them."
    ),
    openapi_extra={"responses": {200: {"description": "OK", "content": FORMS}}},
    tags=["deployments"],
)
def export_deployment(request: HttpRequest, deployment_id: int, asked: Query[ExportFilter]) -> Any:
    row = reached(request, deployment_id)
    if asked.form == "berth":
        return _file(portable.dump([row]), row.name)
    kind = FILE if asked.form == "compose" else "text/plain; charset=utf-8"
    return _file(exported.export(row, asked.form), row.name, exported.ENDINGS[asked.form], kind)


@router.post(
    "/apply",
    response=answers({200: ApplyOut}, 409, 413),
    auth=Token("deployments.create"),
    summary=_("Make it as a file says"),
    description=_(
        "Takes YAML (or JSON) as export writes it. Makes what is missing, changes what differs, leaves the rest; the"
        " same file twice changes nothing. All or nothing: one mistake, told with its line, and nothing is changed."
    ),
    openapi_extra={"requestBody": {"required": True, "content": {FILE: {"schema": portable.file_schema()}}}},
    tags=["deployments"],
)
def apply_file(request: HttpRequest, asked: Query[ApplyFilter]) -> Any:
    done = portable.apply(request.body, actor=request.auth, dry_run=asked.dry_run)
    changed = sum(1 for item in done if item.differs)
    return {"dry_run": asked.dry_run, "changed": changed, "items": [item.as_dict() for item in done]}
