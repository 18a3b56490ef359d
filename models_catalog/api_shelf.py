"""What programs do with one model of the catalog: describe, approve, trust, look where it fits, delete a copy."""

from dataclasses import asdict
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Query, Status

from models_catalog import contexts_fit, contexts_model, deleting, disk, fits, queries, repairs, shelf
from models_catalog.api import models, router
from models_catalog.estimate import table
from models_catalog.schemas import (
    ApprovalIn,
    CodeIn,
    DeletionFilter,
    DeletionOut,
    DescribeIn,
    DisksOut,
    FitOut,
    ModelOut,
    RepairOut,
    TemplateOut,
)
from panel.core.api import Reason, Token, answers
from panel.core.errors import NotFound

__all__ = ["router"]


@router.patch(
    "/models/{int:model_id}",
    response=answers({200: ModelOut}, 404, 413),
    auth=Token("models.describe"),
    summary=_("Change notes, tags, licence or source of a model"),
)
def describe_model(request: HttpRequest, model_id: int, body: DescribeIn) -> Any:
    shelf.describe(queries.one(model_id), actor=request.auth, **body.model_dump())
    return models([queries.one(model_id)], request.auth)[0]


@router.post(
    "/models/{int:model_id}/approval",
    response=answers({200: ModelOut}, 404, 413),
    auth=Token("models.approve"),
    summary=_("Approve a model, or withdraw that"),
)
def approve_model(request: HttpRequest, model_id: int, body: ApprovalIn) -> Any:
    shelf.approve(queries.one(model_id), body.approved, actor=request.auth)
    return models([queries.one(model_id)], request.auth)[0]


@router.post(
    "/models/{int:model_id}/code",
    response=answers({200: ModelOut}, 404, 409, 413),
    auth=Token("models.trust"),
    summary=_("Allow or forbid a model's own program code"),
    description=_("Allowed are the files as they are now. A look at the folder that finds others ends it."),
)
def trust_model(request: HttpRequest, model_id: int, body: CodeIn) -> Any:
    shelf.set_remote_code(queries.one(model_id), body.allowed, actor=request.auth, seen=body.digest)
    return models([queries.one(model_id)], request.auth)[0]


@router.get(
    "/models/{int:model_id}/fit",
    response=answers({200: FitOut}, 404),
    auth=Token("models.view"),
    summary=_("Where a model fits"),
    description=_("Estimated for the team's GPUs when nothing else uses them, by length of context."),
)
def fit_model(request: HttpRequest, model_id: int) -> Any:
    shown = contexts_fit.shown(queries.one(model_id))
    if shown is None:
        raise NotFound
    version = fits.engine_version()
    rows = table.table(shown.facts, fits.groups(), version)
    return {
        "artifact": shown.artifact.pk,
        "engine": "vllm",
        "engine_version": version,
        "rows": [
            {
                "gpu": row.group.name,
                **{name: getattr(row.group, name) for name in ("count", "total_mib", "cpu")},
                "hosts": list(row.group.hosts),
                "cells": [asdict(cell) for cell in row.cells],
            }
            for row in rows
        ],
    }


@router.get(
    "/models/forms/{int:artifact_id}/template",
    response=answers({200: TemplateOut}, 404),
    auth=Token("models.view"),
    summary=_("The chat template of a form, with examples"),
)
def template_of_form(request: HttpRequest, artifact_id: int) -> Any:
    found = contexts_model.template_page(queries.artifact(artifact_id))
    tried = found["tried"]
    return {
        "artifact": artifact_id,
        "source": found["facts"].template_source,
        "text": found["text"],
        **{name: tried is not None and getattr(tried, name) for name in ("works", "system", "tools")},
        "tries": [
            {"name": one.name, "text": one.text, "reason": Reason.of(one.words)}
            for one in (tried.tries if tried is not None else ())
        ],
    }


@router.get(
    "/models/disk",
    response=answers({200: DisksOut}),
    auth=Token("models.view"),
    summary=_("Where the hosts' disks go"),
)
def disk_use(request: HttpRequest) -> Any:
    names = ("models", "bytes", "unused", "unused_bytes", "total_mib", "free_mib")
    return {
        "items": [
            {
                "host": view.host.name,
                "host_id": view.host.pk,
                **{name: getattr(view, name) for name in names},
                "duplicates": [{**asdict(one), "paths": list(one.paths)} for one in view.duplicates[:100]],
            }
            for view in disk.by_host()
        ]
    }


@router.delete(
    "/models/copies/{int:copy_id}",
    response=answers({202: DeletionOut}, 404, 409),
    auth=Token("models.delete"),
    summary=_("Delete a copy of a model on its host"),
)
def delete_copy(request: HttpRequest, copy_id: int, asked: Query[DeletionFilter]) -> Any:
    job = deleting.delete(queries.copy(copy_id), actor=request.auth, confirmed=asked.confirmed)
    return Status(202, {"job": job.pk})


@router.post(
    "/models/copies/{int:copy_id}/repair",
    response=answers({202: RepairOut}, 404, 409),
    auth=Token("models.download"),
    summary=_("Download the damaged files of a copy again"),
)
def repair_copy(request: HttpRequest, copy_id: int) -> Any:
    made = repairs.repair(queries.copy(copy_id), actor=request.auth)
    return Status(202, {"ordered": True, "download": getattr(made, "pk", None)})
