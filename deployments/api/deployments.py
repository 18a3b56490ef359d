"""Deployments for programs: the same services and queries as the pages, by token."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_noop as _
from ninja import Query, Router, Status

from deployments import preflight, queries, services
from deployments.api.schemas import (
    DeploymentChange,
    DeploymentFilter,
    DeploymentIn,
    DeploymentOut,
    PlanIn,
    deployments_out,
)
from deployments.api.schemas_check import CheckIn, CheckOut, check_out
from deployments.api.schemas_plan import PlanOut, plan_out
from deployments.checklist.look import look
from deployments.hidden import restored
from deployments.models import Deployment
from deployments.spec import DeploymentSpec
from panel.core.api import Page, Token, answers, page_of
from panel.core.errors import NotFound
from panel.core.idempotency import key_header, once

router = Router(tags=["deployments"])
OPERATE = Token("deployments.operate")
ACTED = answers({202: DeploymentOut}, 404, 409)


def reached(request: HttpRequest, deployment_id: int) -> Deployment:
    """The deployment, if it is within what the token reaches. Raises NotFound."""
    within_reach(request, deployment_id)
    return queries.known(deployment_id)


def within_reach(request: HttpRequest, deployment_id: int) -> None:
    if not request.auth.reaches(deployment_id):
        raise NotFound


def shown(deployment_id: int) -> DeploymentOut:
    row = queries.listed().filter(pk=deployment_id).first()
    if row is None:
        raise NotFound
    return DeploymentOut(**deployments_out([row])[0])


@router.get(
    "/deployments",
    response=answers({200: Page[DeploymentOut]}),
    auth=Token("deployments.view"),
    summary=_("List deployments"),
)
def list_deployments(request: HttpRequest, asked: Query[DeploymentFilter]) -> Any:
    rows = queries.listed(text=asked.q)
    reach = request.auth.deployments
    if reach is not None:
        rows = rows.filter(pk__in=reach)
    if asked.state:
        rows = rows.filter(state__in=asked.state)
    if asked.host:
        rows = rows.filter(run__host_name=asked.host)
    return page_of(rows, asked, deployments_out)


@router.post(
    "/deployments",
    response=answers({201: DeploymentOut}, 409, 413),
    auth=Token("deployments.create"),
    summary=_("Create a deployment"),
    description=_("Answers at once; the start goes on, and the deployment's state tells how far it is."),
)
def create_deployment(request: HttpRequest, body: DeploymentIn, response: HttpResponse, key: str = key_header()) -> Any:
    def make() -> DeploymentOut:
        row = services.create(name=body.name, spec=body.spec, actor=request.auth, start=body.start)
        return shown(row.pk)

    made = once(request, response, key, make)
    number = made["id"] if isinstance(made, dict) else made.id
    response["Location"] = f"/api/v1/deployments/{number}"
    return Status(201, made)


@router.post(
    "/deployments/plan",
    response=answers({200: PlanOut}, 413),
    auth=Token("deployments.create"),
    summary=_("What a start would do"),
    description=_(
        "Where it would run, how well, why there and with which command; or why it cannot, and what would make it fit."
        " Nothing is written."
    ),
)
def plan_deployment(request: HttpRequest, body: PlanIn) -> Any:
    return plan_out(preflight.check(body.spec, name=body.name, ahead=True, actor=request.auth))


@router.post(
    "/deployments/check",
    response=answers({200: CheckOut}, 404, 413),
    auth=Token("deployments.create"),
    summary=_("Check without starting"),
    description=_(
        "Everything that a start would meet. The engine itself is asked on its host, without loading the model."
    ),
)
def check_deployment(request: HttpRequest, body: CheckIn) -> Any:
    if body.deployment_id is not None:
        reached(request, body.deployment_id)
    return check_out(look(body.spec, name=body.name, actor=request.auth, again=body.again, own=body.deployment_id))


@router.get(
    "/deployments/{int:deployment_id}",
    response=answers({200: DeploymentOut}, 404),
    auth=Token("deployments.view"),
    summary=_("One deployment"),
)
def get_deployment(request: HttpRequest, deployment_id: int) -> Any:
    within_reach(request, deployment_id)
    return shown(deployment_id)


@router.patch(
    "/deployments/{int:deployment_id}",
    response=answers({200: DeploymentOut}, 404, 409, 413),
    auth=Token("deployments.edit"),
    summary=_("Change the settings"),
    description=_("Makes a new revision; a running deployment starts again with it. What is equal changes nothing."),
)
def change_deployment(request: HttpRequest, deployment_id: int, body: DeploymentChange) -> Any:
    row = reached(request, deployment_id)
    assert row.revision is not None
    old = DeploymentSpec.model_validate(row.revision.spec)
    sent = body.spec.model_dump(mode="json", exclude_unset=True)
    values = {**old.model_dump(mode="json"), **restored(sent, row.revision.spec)}
    spec = services.parse_spec(values)
    # what was not sent was taken from this revision: a newer one must not be undone by it
    services.edit(row, spec=spec, actor=request.auth, base_number=body.revision or row.revision.number)
    return shown(row.pk)


@router.delete(
    "/deployments/{int:deployment_id}",
    response=answers({204: None}, 404, 409),
    auth=Token("deployments.delete"),
    summary=_("Delete a deployment"),
    description=_("Stops it and takes it off the list. Its runs and logs are kept; the name is free again."),
)
def delete_deployment(request: HttpRequest, deployment_id: int) -> Any:
    services.delete(reached(request, deployment_id), actor=request.auth)
    return Status(204, None)


# --- start, stop, restart ---------------------------------------------------------------------------------------------


@router.post("/deployments/{int:deployment_id}/start", response=ACTED, auth=OPERATE, summary=_("Start"))
def start_deployment(request: HttpRequest, deployment_id: int) -> Any:
    services.start(reached(request, deployment_id), actor=request.auth)
    return Status(202, shown(deployment_id))


@router.post("/deployments/{int:deployment_id}/stop", response=ACTED, auth=OPERATE, summary=_("Stop"))
def stop_deployment(request: HttpRequest, deployment_id: int) -> Any:
    services.stop(reached(request, deployment_id), actor=request.auth)
    return Status(202, shown(deployment_id))


@router.post("/deployments/{int:deployment_id}/restart", response=ACTED, auth=OPERATE, summary=_("Restart"))
def restart_deployment(request: HttpRequest, deployment_id: int) -> Any:
    services.restart(reached(request, deployment_id), actor=request.auth)
    return Status(202, shown(deployment_id))
