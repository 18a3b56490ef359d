"""Shapes of deployments and their runs in the API; rows in, plain values out. Nothing is decided here."""

from collections.abc import Iterable
from copy import copy
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.utils.translation import gettext_noop as _
from ninja import Field, Schema
from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import PydanticUndefined

from deployments import contact, queries
from deployments.api.schemas_failed import DiagnosisOut, Reaches, diagnosis_out
from deployments.models import Deployment, Run
from deployments.serving.contexts import findings_of
from deployments.spec import NAME, DeploymentSpec
from deployments.states import State
from deployments.wording import words
from panel.core.api import Paging, Reason
from panel.core.mask import mask
from panel.fleet.wording import ENGINES

StateName = Literal["queued", "placing", "preparing", "starting", "ready", "stopping", "stopped", "failed", "lost"]
EXAMPLE = {"artifact_id": 1, "device": "auto", "options": {"max_model_len": 4096}}

# --- what comes in ----------------------------------------------------------------------------------------------------


class DeploymentFilter(Paging):
    state: list[StateName] = Field([], max_length=9, description=_("One or several states."))
    host: str = Field("", max_length=64, description=_("Name of the host of the newest start."))
    q: str = Field("", max_length=100, description=_("Words of the name, model, host or person."))


class DeploymentIn(Schema):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"name": "team-chat", "spec": EXAMPLE, "start": True}]}
    )

    name: str = Field(max_length=63, description=_("The model name at the door. Small letters, digits, dots, dashes."))
    spec: DeploymentSpec
    start: bool = Field(True, description=_("False: made, and left stopped."))


def _optional(model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model, none of them needed and none with a default of its own."""
    made: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        loose = copy(field)
        loose.default, loose.default_factory = PydanticUndefined, lambda: None
        made[name] = (field.annotation, loose)
    return made


# Made from the fields of the spec, so that the two cannot differ.
SpecChange: Any = create_model(
    "SpecChange",
    __config__=ConfigDict(extra="forbid"),
    __doc__="The fields to change; those left out stay. A list or an object is replaced whole.",
    **_optional(DeploymentSpec),
)


class PlanIn(Schema):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"spec": EXAMPLE}]})

    name: str = Field("model", max_length=63, pattern=NAME.pattern, description=_("The name that it would have."))
    spec: DeploymentSpec


class DeploymentChange(Schema):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"spec": {"options": {"max_model_len": 8192}}, "revision": 1}]}
    )

    spec: SpecChange
    revision: int | None = Field(
        None, ge=1, le=2**31 - 1, description=_("The revision that you changed; 409 when there is a newer one.")
    )


class LogFilter(Schema):
    offset: int = Field(
        0, ge=-(2**62), le=2**62, description=_("First byte; negative: so many bytes before the present end.")
    )
    limit: int = Field(65_536, ge=1, le=1_048_576, description=_("How many bytes at most."))


# --- what goes out ----------------------------------------------------------------------------------------------------


class ChangeOut(Schema):
    """A change that was checked by planning with it."""

    code: str
    message: str
    hint: str
    spec: dict[str, Any] = Field(description=_("The fields of the spec to set; empty where it is done elsewhere."))


class ServingFixOut(ChangeOut):
    """One thing that helps against a finding."""

    kind: str = Field(description=_("patch: a change of the spec; again: a restart; else what people do elsewhere."))
    command: str = Field(description=_("To be run on the host; empty where nothing is."))


class ServingFindingOut(Schema):
    """Something that is not well with a deployment that serves."""

    code: str
    level: Literal["bad", "warn", "note"]
    message: str
    hint: str
    since: datetime
    facts: dict[str, Any] = Field(description=_("The numbers that show it."))
    fix: ChangeOut | None = Field(description=_("A change that would help and that the planner accepts."))
    fixes: list[ServingFixOut] = Field(description=_("All that would help, that change among them."))


class DeploymentOut(Schema):
    id: int
    name: str
    state: StateName
    state_since: datetime
    desired: Literal["running", "stopped"] = Field(description=_("What people want; the state follows it."))
    step: str = Field(description=_("Where a start is, from placed, process, config, weights … to answered."))
    reason: Reason | None = Field(description=_("Why it waits, failed or is without contact."))
    no_contact_since: datetime | None = Field(
        description=_("When the agent of its host called last, while there is no contact with it.")
    )
    deadline_at: datetime | None = Field(description=_("Until then the state ends, or says what holds it up."))
    next_attempt_at: datetime | None = Field(description=_("When it is tried again by itself."))
    attempts: int
    url: str = Field(description=_("Base address for programs; the model name is the deployment's name."))
    model: str
    host: str | None = Field(description=_("Where the newest start is or was."))
    gpus: list[int]
    engine: str
    engine_version: str
    run: UUID | None = Field(description=_("The newest start."))
    revision: int
    spec: DeploymentSpec
    created_at: datetime
    created_by: str
    wanted_by: str = Field(description=_("Who pressed start or stop last."))
    findings: list[ServingFindingOut] = Field(description=_("What is not well while it serves, the worst first."))


class StepOut(Schema):
    """One of the eight steps of a start."""

    code: str
    state: Literal["yes", "now", "todo", "skip"]
    seconds: float | None
    done: int | None
    total: int | None


class RunOut(Schema):
    """The record of one start; it stays after stop, restart and deletion."""

    id: UUID
    deployment: str
    deployment_id: int
    number: int
    revision: int
    outcome: Literal["going", "stopped", "failed"]
    reason: Reason | None
    host: str
    gpus: list[int]
    model: str
    engine: str
    engine_version: str
    started_by: str
    cause: str = Field(description=_("person, restart_policy, host_restarted, edit, or fix (by Berth itself)."))
    parent: UUID | None = Field(description=_("The failed start that it followed."))
    created_at: datetime
    ready_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    signal: int | None
    steps: list[StepOut]
    answer: dict[str, Any] | None = Field(description=_("The test question, its answer and how long it took."))
    foreseen: dict[str, Any] = Field(description=_("What the estimate said before this start; GiB of one GPU."))
    measured: dict[str, Any] = Field(description=_("The same by the engine's log."))
    golden: list[dict[str, Any]] = Field(description=_("Golden questions and answers, as far as they were asked."))
    error: list[str] = Field(description=_("The first error of the log."))
    diagnosis: DiagnosisOut | None = Field(description=_("Why it failed; null for a start that did not."))
    command: list[str]
    env: dict[str, Any] = Field(description=_("Secrets are hidden."))
    log_size: int


class LogOut(Schema):
    """A part of a log. Ask again with `next` as the offset; at the end `text` is empty."""

    start: int = Field(description=_("Where `text` begins; later than asked where bytes are gone."))
    next: int = Field(description=_("The offset to ask for next."))
    size: int = Field(description=_("Bytes of the whole log so far."))
    gap: int = Field(description=_("Bytes before `start` that are not kept any more."))
    ended: bool = Field(description=_("Nothing is added any more."))
    text: str


# --- rows into shapes -------------------------------------------------------------------------------------------------


def reason_out(reason: dict[str, Any]) -> Reason | None:
    return Reason.of(words(reason))


def deployments_out(rows: Iterable[Deployment]) -> list[dict[str, Any]]:
    """Rows of `queries.listed`; one query for all."""
    found = list(rows)
    names, silent = queries.model_names(found), contact.silent(found)
    return [deployment_out(row, names[row.pk], silent.get(row.pk)) for row in found]


def deployment_out(row: Deployment, model: str, silence: contact.Silence | None) -> dict[str, Any]:
    run = row.run
    names = ("id", "name", "state", "state_since", "desired", "deadline_at", "next_attempt_at", "attempts")
    more = ("created_at", "created_by", "wanted_by")
    assert row.revision is not None
    return {
        **{name: getattr(row, name) for name in names + more},
        "step": _step(row, run),
        "reason": reason_out(contact.reason_of(row, silence)),
        "no_contact_since": silence.since if silence is not None else None,
        "url": f"{settings.BERTH_PUBLIC_URL}/v1",
        "model": model,
        **_place(run),
        "host": (run.host_name or None) if run is not None else None,
        "run": row.run_id,
        "revision": row.revision.number,
        "spec": mask(row.revision.spec),
        "findings": [_finding_out(each) for each in findings_of(row)],
    }


def _finding_out(found: dict[str, Any]) -> dict[str, Any]:
    fix = found["fix"]
    facts = {name: value for name, value in found["params"].items() if name not in ("title", "why")}
    return {
        **{name: found[name] for name in ("code", "level", "since")},
        "message": found["text"],
        "hint": found["hint"],
        "facts": facts,
        "fix": fix and _change_out(fix),
        "fixes": [{**_change_out(each), "kind": each["kind"], "command": each["command"]} for each in found["fixes"]],
    }


def _change_out(fix: dict[str, Any]) -> dict[str, Any]:
    told = {"code": fix["code"], "message": fix["said"].text, "hint": fix["said"].hint}
    return {**told, "spec": mask(fix["patch"])}  # options are in it whole


def _step(row: Deployment, run: Run | None) -> str:
    if run is None or row.state not in (State.PREPARING, State.STARTING):
        return ""
    return next((step.code for step in queries.steps_of(run) if step.state == "now"), "")


def _place(run: Run | None) -> dict[str, Any]:
    """Where a start is, and with which engine."""
    if run is None:
        return {"host": None, "gpus": [], "engine": "", "engine_version": ""}
    engine = ENGINES.get(run.runtime.engine, run.runtime.engine) if run.runtime is not None else ""
    return {
        "host": run.host_name,
        "gpus": run.placement.get("gpus") or [],
        "engine": engine,
        "engine_version": run.engine_version,
    }


def run_out(run: Run, reaches: Reaches | None = None) -> dict[str, Any]:
    """A row with its deployment, revision, runtime and job's log; with `reaches` also what only a query tells."""
    names = ("id", "deployment_id", "number", "started_by", "cause", "created_at", "ready_at", "ended_at")
    more = ("exit_code", "signal", "answer", "foreseen", "measured")
    status = run.job.status if run.job is not None else {}
    return {
        **{name: getattr(run, name) for name in names + more},
        **_place(run),
        "deployment": run.deployment.name,
        "revision": run.revision.number,
        "parent": run.parent_id,
        "model": run.model_name,
        "outcome": run.outcome or "going",
        "reason": reason_out(run.reason),
        "steps": [_step_out(step) for step in queries.steps_of(run)],
        "golden": run.golden.get("answers", []),
        "error": (run.error_block or {}).get("lines", []),
        "diagnosis": diagnosis_out(run, reaches),
        "command": mask(status.get("argv") or run.command),
        "env": mask(run.env),
        "log_size": run.job.log.size if run.job is not None else 0,
    }


def _step_out(step: Any) -> dict[str, Any]:
    return {name: getattr(step, name) for name in ("code", "state", "seconds", "done", "total")}


def log_out(part: Any, *, ended: bool) -> dict[str, Any]:
    """A part of the log store as text, cut before a character that is not whole yet."""
    data = part.data
    if not (ended and part.end >= part.size):
        data = _whole_characters(data) or data
    return {
        "start": part.start,
        "next": part.start + len(data),
        "size": part.size,
        "gap": part.gap,
        "ended": ended,
        "text": data.decode("utf-8", "replace"),
    }


def _whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character at the end (at most three bytes)."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue  # goes on with a character that began before
        needed = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return data[:-back] if needed > back else data
    return data
