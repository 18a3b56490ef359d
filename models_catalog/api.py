"""The catalog for programs: what could run, and looking for more of it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema, Status

from models_catalog import queries, services, wording
from models_catalog.contexts import form_of
from models_catalog.models import CatalogModel, Copy
from panel.core.api import Page, Paging, Reason, Token, answers, page_of
from panel.core.errors import Conflict, Invalid
from panel.fleet.models import Host, Runtime

router = Router(tags=["models"])


class CopyOut(Schema):
    """The model's files on a host."""

    host: str
    host_id: int
    path: str
    usable: bool
    problems: list[Reason]


class ArtifactOut(Schema):
    """One form of a model that can be served; a deployment names it by `id`."""

    id: int
    format: str
    label: str
    size_bytes: int
    parameters: int | None
    context_length: int | None
    tasks: list[str]
    deployable: bool
    reasons: list[Reason] = Field(description=_("What stands in the way of deploying it."))
    copies: list[CopyOut]


class ModelOut(Schema):
    id: int
    name: str
    notes: str
    allow_remote_code: bool
    created_at: datetime
    artifacts: list[ArtifactOut]


class ModelFilter(Paging):
    q: str = Field("", max_length=100, description=_("Words of the name, label, architecture, path or host."))
    host: str = Field("", max_length=64, description=_("Name of a host that has its files."))
    show: Literal["", "whole", "problems", "gguf", "embed", "gone"] = Field(
        "", description=_("As on the page: whole ones, those with problems, GGUF, embeddings, or vanished ones.")
    )


class ScanIn(Schema):
    """Where to look; left out: on all hosts."""

    model_config = {"extra": "forbid"}

    host: str | None = Field(None, max_length=64, description=_("Name of the host."), examples=["quay"])


class ScanOut(Schema):
    host: str
    job: str | None = Field(description=_("The search that runs now."))
    reason: Reason | None = Field(description=_("Why this host could not be asked."))


class ScansOut(Schema):
    items: list[ScanOut]


def model_out(row: CatalogModel, runtimes: list[Runtime]) -> dict[str, Any]:
    names = ("id", "name", "notes", "allow_remote_code", "created_at")
    return {
        **{name: getattr(row, name) for name in names},
        "artifacts": [_artifact_out(row, artifact, runtimes) for artifact in row.artifacts.all()],
    }


def _artifact_out(model: CatalogModel, artifact: Any, runtimes: list[Runtime]) -> dict[str, Any]:
    artifact.model = model
    form = form_of(artifact, runtimes)
    return {
        **{name: getattr(artifact, name) for name in ("id", "format", "label", "size_bytes")},
        "parameters": form.facts.parameters,
        "context_length": form.facts.context_length,
        "tasks": form.facts.tasks,
        "deployable": form.deployable,
        "reasons": [Reason.of(words) for words in form.reasons],
        "copies": [_copy_out(copy) for copy in form.copies],
    }


def _copy_out(copy: Copy) -> dict[str, Any]:
    problems = [Reason.of(wording.of_file(problem)) for problem in copy.problems]
    names = ("host_id", "path", "usable")
    return {**{name: getattr(copy, name) for name in names}, "host": copy.host.name, "problems": problems}


def _models(rows: Iterable[CatalogModel]) -> list[dict[str, Any]]:
    runtimes = queries.engines()
    return [model_out(row, runtimes) for row in rows]


@router.get("/models", response=answers({200: Page[ModelOut]}), auth=Token("models.view"), summary=_("List models"))
def list_models(request: HttpRequest, asked: Query[ModelFilter]) -> Any:
    rows: QuerySet[CatalogModel] = queries.listed(show=asked.show, text=asked.q, host=asked.host)
    return page_of(rows, asked, _models)


@router.get(
    "/models/{int:model_id}", response=answers({200: ModelOut}, 404), auth=Token("models.view"), summary=_("One model")
)
def get_model(request: HttpRequest, model_id: int) -> Any:
    return _models([queries.one(model_id)])[0]


@router.post(
    "/models/scan",
    response=answers({202: ScansOut}, 409, 413),
    auth=Token("models.scan"),
    summary=_("Look for models"),
    description=_(
        "Looks through the model folders of one host, or of all. While a search runs, that one is the answer."
    ),
)
def scan_models(request: HttpRequest, body: ScanIn) -> Any:
    hosts = [view.host for view in queries.hosts()]
    if body.host is not None:
        hosts = [host for host in hosts if host.name == body.host]
        if not hosts:
            raise Invalid({"host": gettext("There is no host with this name.")})
        return Status(202, {"items": [_scan(hosts[0], request.auth)]})
    return Status(202, {"items": [_scan(host, request.auth, forgive=True) for host in hosts]})


def _scan(host: Host, actor: Any, *, forgive: bool = False) -> dict[str, Any]:
    try:
        job = services.request_scan(host, actor=actor)
    except Conflict as error:
        if not forgive:
            raise
        reason = Reason(code=error.code, message=error.text, hint=error.hint_text)
        return {"host": host.name, "job": None, "reason": reason}
    return {"host": host.name, "job": str(job.pk), "reason": None}
