"""Shapes of the check before a start in the API."""

from typing import Any, Literal

from django.utils.translation import gettext_noop as _
from ninja import Field, Schema

from deployments.api import schemas, schemas_plan
from deployments.checklist.look import CheckList
from deployments.pages import check as check_page


class CheckIn(schemas.PlanIn):
    again: bool = Field(False, description=_("Ask the engine once more, also where its answer is known."))
    deployment_id: int | None = Field(
        None, ge=1, le=2**62, description=_("The deployment that these settings are for; its name is its own.")
    )


class FixOut(Schema):
    message: str
    spec: dict[str, Any] = Field(description=_("The fields of the spec to set; empty where it is done elsewhere."))
    name: str = Field("", description=_("The name to use instead, where that is what helps."))
    page: str = Field("", description=_("The address of the panel's page where it is done, where there is one."))


class CheckFindingOut(Schema):
    """One thing that was found. An error would make the start fail."""

    level: Literal["error", "warning", "note"]
    code: str
    option: str = Field(description=_("The option that it is about, if it is about one."))
    message: str
    hint: str
    proof: str = Field(description=_("The engine's own line that proves it."))
    run: str | None = Field(None, description=_("The start that failed with these settings, where there was one."))
    fixes: list[FixOut] = Field(description=_("Changes of the settings that would help, the likeliest first."))


class PartOut(Schema):
    name: Literal["files", "settings", "plan", "engine", "host"]
    state: Literal["passed", "running", "skipped", "warning", "error"]
    title: str
    seconds: float | None = Field(description=_("How long the engine took to answer."))
    findings: list[CheckFindingOut]


class CheckOut(Schema):
    """The list as it is now. While it says `running`, send the same again after a second."""

    verdict: Literal["running", "passed", "warnings", "refused"]
    parts: list[PartOut]
    plan: schemas_plan.PlanOut


def check_out(found: CheckList) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "parts": check_page.parts_of(found),
        "plan": schemas_plan.plan_out(found.check),
    }
