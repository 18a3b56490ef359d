"""What can be done about a failure, for programs: the fixes of the failed page, and one of them applied."""

from typing import Any, Literal

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Path, Router, Schema, Status
from pydantic import ConfigDict, Field

from deployments import applying, queries, remedies
from deployments.api.deployments import reached, shown
from deployments.api.schemas import DeploymentOut
from deployments.models import Deployment
from deployments.pages.fixes import fix_view
from panel.core.api import Token, answers
from panel.core.mask import mask

router = Router(tags=["deployments"])
KEY = Path(..., max_length=40, pattern=r"^[0-9a-f]{1,40}$", description=_("The `id` of a fix."))


class RemedyEffectOut(Schema):
    good: bool
    message: str


class RemedyOut(Schema):
    """Something that may help, the most promising first. A patch was accepted by the planner in this moment."""

    id: str = Field(description=_("Names this fix as long as it stays the same."))
    kind: Literal["patch", "again", "runtime", "package", "repair", "permission", "stop", "host", "model", "settings"]
    title: str
    message: str
    effects: list[RemedyEffectOut]
    applies: bool = Field(description=_("It can be applied here; the others are done elsewhere."))
    spec: dict[str, Any] = Field(description=_("The fields of the spec that it sets; secrets are hidden."))
    command: str = Field(description=_("What to run on the host, where it is done there."))


class RemediesOut(Schema):
    revision: int = Field(description=_("The settings that the fixes are for."))
    items: list[RemedyOut]


class RemedyIn(Schema):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"revision": 1}]})

    revision: int | None = Field(
        None, ge=1, le=2**31 - 1, description=_("The settings that you looked at; 409 when there are newer ones.")
    )


def _out(row: Deployment, fix: Any) -> dict[str, Any]:
    view = fix_view(row, fix)
    return {
        "id": fix.key,
        "kind": fix.kind,
        "title": view["title"],
        "message": view["text"],
        "effects": [{"good": each["good"], "message": each["text"]} for each in view["effects"]],
        "applies": fix.by_click,
        "spec": mask(dict(fix.patch)),
        "command": fix.command,
    }


@router.get(
    "/deployments/{int:deployment_id}/fixes",
    response=answers({200: RemediesOut}, 404),
    auth=Token("deployments.view"),
    summary=_("What would help after a failure"),
    description=_("Empty for a deployment that has not failed."),
)
def list_fixes(request: HttpRequest, deployment_id: int) -> Any:
    row = queries.one(reached(request, deployment_id).pk)
    assert row.revision is not None
    return {"revision": row.revision.number, "items": [_out(row, fix) for fix in remedies.of(row, request.auth)]}


@router.post(
    "/deployments/{int:deployment_id}/fixes/{fix_id}",
    response=answers({202: DeploymentOut}, 404, 409, 413),
    auth=Token("deployments.edit"),
    summary=_("Apply a fix and start again"),
    description=_("Makes a revision that differs by this fix alone, and starts it; 409 where it fits no more."),
)
def apply_fix(request: HttpRequest, deployment_id: int, body: RemedyIn, fix_id: str = KEY) -> Any:
    row = queries.one(reached(request, deployment_id).pk)
    applying.apply(row, fix_id, base_number=body.revision, actor=request.auth)
    return Status(202, shown(row.pk))
