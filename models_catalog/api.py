"""The catalog for programs: what could run, and looking for more of it."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from ninja import Query, Router, Status

from models_catalog import queries, services, shelf, uses, wording
from models_catalog.contexts import form_of
from models_catalog.models import CatalogModel, Copy
from models_catalog.schemas import ModelFilter, ModelOut, ScanIn, ScansOut
from models_catalog.uses import Use
from panel.core.api import Page, Reason, Token, answers, page_of
from panel.core.errors import Conflict, Invalid
from panel.fleet.models import Host, Runtime

router = Router(tags=["models"])


def model_out(row: CatalogModel, runtimes: list[Runtime], used: dict[int, list[Use]], actor: Any) -> dict[str, Any]:
    names = (
        "id", "name", "notes", "tags", "source_url", "added_by", "added_from", "approved", "approved_by",
        "allow_remote_code", "code_withdrawn", "created_at",
    )  # fmt: skip
    artifacts = list(row.artifacts.all())
    copies = [copy for artifact in artifacts for copy in artifact.copies.all()]
    code = shelf.code_of(copies)
    told = next((copy.facts.licence for copy in copies if copy.present and copy.facts.licence), "")
    return {
        **{name: getattr(row, name) for name in names},
        "licence": row.licence or told,
        "may_deploy": shelf.may_deploy(row, actor),
        "code": [{"file": file, "sha256": sum_} for file, sum_ in code],
        "code_digest": shelf.digest(code),
        "artifacts": [_artifact_out(row, artifact, runtimes, used.get(artifact.pk, [])) for artifact in artifacts],
    }


def _artifact_out(model: CatalogModel, artifact: Any, runtimes: list[Runtime], used: list[Use]) -> dict[str, Any]:
    artifact.model = model
    form = form_of(artifact, runtimes)
    return {
        **{name: getattr(artifact, name) for name in ("id", "format", "label", "size_bytes")},
        "parameters": form.facts.parameters,
        "context_length": form.facts.context_length,
        "tasks": form.facts.tasks,
        "deployable": form.deployable,
        "reasons": [Reason.of(words) for words in form.reasons],
        "fits": artifact.fits.get("best", ""),
        "used_by": [use.text for use in used],
        "copies": [_copy_out(copy) for copy in form.copies],
    }


def _copy_out(copy: Copy) -> dict[str, Any]:
    refusal = copy.delete_refusal
    return {
        **{name: getattr(copy, name) for name in ("id", "host_id", "path", "usable", "seen_at")},
        "host": copy.host.name,
        "problems": [Reason.of(wording.of_file(problem)) for problem in copy.problems],
        "deleting": copy.delete_job_id,
        "delete_reason": Reason.of(wording.of_deletion(refusal)) if refusal else None,
    }


def models(rows: Iterable[CatalogModel], actor: Any) -> list[dict[str, Any]]:
    found = list(rows)
    runtimes = queries.engines()
    used = uses.of(artifact.pk for row in found for artifact in row.artifacts.all())
    return [model_out(row, runtimes, used, actor) for row in found]


@router.get("/models", response=answers({200: Page[ModelOut]}), auth=Token("models.view"), summary=_("List models"))
def listmodels(request: HttpRequest, asked: Query[ModelFilter]) -> Any:
    further = {name: getattr(asked, name) for name in ("show", "host", "format", "task", "size", "label", "tag")}
    rows: QuerySet[CatalogModel] = queries.listed(queries.Wish(text=asked.q, **further))
    return page_of(rows, asked, partial(models, actor=request.auth))


@router.get(
    "/models/{int:model_id}", response=answers({200: ModelOut}, 404), auth=Token("models.view"), summary=_("One model")
)
def get_model(request: HttpRequest, model_id: int) -> Any:
    return models([queries.one(model_id)], request.auth)[0]


@router.post(
    "/models/scan",
    response=answers({202: ScansOut}, 409, 413),
    auth=Token("models.scan"),
    summary=_("Look for models"),
    description=_(
        "Looks through the model folders of one host, or of all. While a search runs, that one is the answer."
    ),
)
def scanmodels(request: HttpRequest, body: ScanIn) -> Any:
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
