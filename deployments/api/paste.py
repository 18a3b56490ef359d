"""A pasted command for programs: what deployment it would be. Nothing is written."""

from typing import Any, Literal

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Field, Router, Schema
from pydantic import ConfigDict

from deployments import pasted
from panel.core.api import Token, answers
from panel.core.mask import mask

router = Router(tags=["deployments"])
EXAMPLE = "CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-8B --max-model-len 32k"


class CommandIn(Schema):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"text": EXAMPLE}]})

    text: str = Field(
        max_length=pasted.LONGEST, description=_("The command as it stands somewhere, also a compose file or a unit.")
    )
    artifact_id: int | None = Field(
        None, ge=1, le=2**31 - 1, description=_("Which form of a model is meant, where the command leaves that open.")
    )


class FindingOut(Schema):
    """Something to know of what became of the command."""

    level: Literal["error", "warning", "note"] = Field(description=_("With an error there is no spec yet."))
    code: str
    message: str
    hint: str
    place: str = Field(description=_("The field of the spec that it is about."))
    outcome: Literal["taken", "changed", "left_out", ""]


class FormOut(Schema):
    """A form of a model that could be meant."""

    artifact_id: int
    model: str
    form: str
    host: str
    path: str


class OfferOut(Schema):
    """A secret of the command that an engine can be given."""

    variable: str
    name: str = Field(description=_("Of the stored secret: one that is there, or a free name to keep it under."))
    there: bool = Field(description=_("Whether a secret of this name is stored already."))


class CommandOut(Schema):
    """What a command means here; `spec` and `name` can be sent to make the deployment."""

    engine: str = Field(
        description=_("The engine that the command starts: vllm, sglang, llamacpp, ollama; empty: none.")
    )
    model: str = Field(description=_("The model as the command names it."))
    name: str = Field(description=_("A free name, from the command or the model."))
    spec: dict[str, Any] | None = Field(description=_("Null while something is missing; the findings say what."))
    findings: list[FindingOut]
    candidates: list[FormOut]
    secrets: list[OfferOut] = Field(
        description=_("Keep them by PUT /secrets/{name}, and name them in the spec's `env_secrets`.")
    )


@router.post(
    "/deployments/from-command",
    response=answers({200: CommandOut}, 413),
    auth=Token("deployments.create"),
    summary=_("What a command means"),
    description=_(
        "Reads a command that starts vLLM, SGLang, llama.cpp or Ollama, and says which deployment it would be, what was"
        " left out and why. It is never run; nothing is written; secrets in it are neither kept nor shown."
    ),
)
def read_command(request: HttpRequest, body: CommandIn) -> Any:
    return command_out(pasted.read(body.text, actor=request.auth, artifact_id=body.artifact_id))


def command_out(reading: pasted.Reading) -> dict[str, Any]:
    """A reading as the API and the shell show it."""
    ready = reading.spec is not None and not any(finding.level == "error" for finding in reading.findings)
    return {
        "engine": reading.engine,
        "model": reading.model,
        "name": reading.name,
        "spec": mask(reading.spec.model_dump(mode="json")) if ready and reading.spec is not None else None,
        "findings": [_finding(finding) for finding in reading.findings],
        "candidates": [
            {"artifact_id": c.artifact_id, "model": c.model, "form": c.label, "host": c.host, "path": c.path}
            for c in reading.candidates
        ],
        "secrets": [{"variable": o.variable, "name": o.name, "there": o.there} for o in reading.offers],
    }


def _finding(finding: Any) -> dict[str, Any]:
    said = pasted.say(finding)
    return {
        "level": finding.level,
        "code": finding.code,
        "message": said.text,
        "hint": said.hint,
        "place": finding.place,
        "outcome": finding.outcome,
    }
