"""Pages for a command that is pasted, and for a deployment as a command: load, call, render."""

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods

from deployments import exported, pasted, pasted_secrets, queries
from deployments.forms import REST, DeploymentForm
from deployments.pages import form as form_page
from deployments.pages.paste import boxes, findings
from deployments.spec import DeploymentSpec
from panel.accounts.guard import right
from panel.core.errors import Conflict
from panel.core.pages import form_again, page

EXAMPLE = "vllm serve Qwen/Qwen3-8B --max-model-len 32768"


@sensitive_post_parameters("text", "sealed")
@require_http_methods(["GET", "POST"])
@right("deployments.create")
def paste(request: HttpRequest) -> HttpResponse:
    """The box; and what comes of its text: the usual form, filled. Nothing is written but a secret that was clicked."""
    if request.method == "GET":
        return page(request, "deployments/paste.html", {"section": "deployments", "example": EXAMPLE})
    chosen = request.POST.get("artifact", "")
    artifact_id = int(chosen) if chosen.isascii() and chosen.isdecimal() and len(chosen) < 10 else None
    brought = pasted_secrets.carried(request.POST.get("sealed", ""), request.actor, keep=request.POST.get("keep", ""))
    text = request.POST.get("text", "")
    reading = pasted.read(text, actor=request.actor, artifact_id=artifact_id, page=brought)
    told = {
        "section": "deployments",
        "pasted": findings(reading, request.actor),
        "text": reading.text,
        "example": EXAMPLE,
    }
    if not reading.found:
        return form_again(request, "deployments/paste.html", told)
    initial = _initial(reading)
    schema = form_page.schema_for(str(initial.get("runtime") or ""))
    form = DeploymentForm(initial=initial, gpu_choices=form_page.gpu_choices(), schema=schema)
    context = {**form_page.form(form, None, request.actor), **told, "expert_open": _expert(reading)}
    response = page(request, "deployments/form.html", context)
    response["Cache-Control"] = "no-store"  # going back asks for the text again rather than showing an old one
    return response


def _initial(reading: pasted.Reading) -> dict[str, Any]:
    """The form's values. A model that is not known yet is left to be chosen."""
    values = {name: value for name, value in reading.values.items() if name in DeploymentSpec.model_fields}
    if reading.spec is None:
        kept = (
            "device",
            "options",
            "extra_args",
            "env",
            "env_secrets",
            "kv_cache_gib",
            "task",
            "gpu_count",
            "gpu_uuids",
        )
        values = {name: values[name] for name in kept if name in values}
    spec = reading.spec or DeploymentSpec.model_construct(**{"artifact_id": 0, **values})
    initial = DeploymentForm.initial_of(spec, reading.name)
    rest = {name: reading.values[name] for name in REST if name in reading.values}
    return {
        **initial,
        "artifact": reading.artifact.pk if reading.artifact is not None else None,
        "rest": json.dumps(rest) if rest else "",
    }


def _expert(reading: pasted.Reading) -> bool:
    """Whether the command says anything that stands under the expert settings."""
    values = reading.values
    names = ("extra_args", "env", "env_secrets", "gpu_uuids", "kv_cache_gib", "host_id", "runtime_id")
    options = set(values.get("options", {})) & {"gpu_memory_utilization", "dtype"}
    many = values.get("gpu_count", 1) > 1 or values.get("device", "auto") != "auto"
    return bool(options) or many or any(values.get(name) for name in names)


@require_GET
@right("deployments.view")
def export(request: HttpRequest, pk: int) -> HttpResponse:
    """The deployment as a command, a compose file and a systemd unit, to be copied."""
    row = queries.one(pk)
    context: dict[str, Any] = {"section": "deployments", "d": row, "back": reverse("deployment", args=[pk])}
    try:
        context["boxes"] = boxes(exported.exports(row))
    except Conflict as exc:
        context["why"] = exc
    return page(request, "deployments/export.html", context)
