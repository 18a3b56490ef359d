"""The ways out of a failure that are always there, below the fixes of the diagnosis. Nothing is decided here."""

from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from deployments.models import Deployment
from deployments.pages import smaller
from deployments.pages.convert import conversions
from deployments.spec import DeploymentSpec
from deployments.wording import FIXED_WHERE
from deployments.wording import fixes as fixes_said
from models_catalog.models import Artifact


def ways(row: Deployment, fixes: list[dict[str, Any]] | None = None) -> list[dict[str, str]]:
    """The other ways out of a failure: the conversion of the file, the settings, the same again, the record.

    Without fixes that fit now, what the diagnosis said when it ended.
    """
    spec = DeploymentSpec.model_validate(row.revision.spec)
    found = [
        {
            "title": _("Change the settings"),
            "text": _("A new revision is made and this one is kept."),
            "url": reverse("deployment-edit", args=[row.pk]),
            "label": _("Open the settings"),
        },
        {
            "title": _("Start again unchanged"),
            "text": _("Helps when the cause was outside, such as a full disk or a busy GPU."),
            "post": reverse("deployment-start", args=[row.pk]),
            "label": _("Start again"),
        },
    ]
    if row.run is not None and row.run.outcome == "failed" and row.run.job_id:
        found.append(
            {
                "title": _("Start again with more detail"),
                "text": _(
                    "The engine writes all it can into the log of this one start. The settings stay as they are."
                ),
                "post": reverse("deployment-start-in-detail", args=[row.pk]),
                "label": _("Start with more detail"),
            }
        )
    if row.attempts >= spec.restart.max_attempts:
        gave_up = _("Berth tried %(n)s times and stopped trying.") % {"n": row.attempts}
        found[1]["text"] = f"{gave_up} {found[1]['text']}"
    if any(fix["kind"] == "again" for fix in fixes or []):  # said above, with why it helps
        del found[1]
    said = [] if fixes else map(_proposed, fixes_said(row.reason))
    return [*said, *_to_convert(row, spec), *_smaller(row, spec, fixes or []), *found, *_record(row)]


def _record(row: Deployment) -> list[dict[str, str]]:
    if not row.run_id:
        return []
    return [
        {
            "title": _("Look at the whole record"),
            "text": _("Command, environment, versions, times and the log of this start.")
            if row.run is not None and row.run.job_id is not None
            else _("Who started it, when and with which settings, and why it ended."),
            "url": reverse("run", args=[row.run_id]),
            "label": _("Open the record"),
        }
    ]


def _smaller(row: Deployment, spec: DeploymentSpec, fixes: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A search of the hub, where the model was too big and none of its forms that are known here would do."""
    if not smaller.is_too_big(row.reason) or any(fix["code"] in smaller.TWINS for fix in fixes):
        return []
    artifact = Artifact.objects.filter(pk=spec.artifact_id).select_related("model").first()
    if artifact is None:
        return []
    text = _("A quantised form of this model takes less memory.")
    return [{"title": _("Take a smaller form of the model"), "text": text, **smaller.search(artifact)}]


def _to_convert(row: Deployment, spec: DeploymentSpec) -> list[dict[str, str]]:
    """The same ways that the plan offers where no engine can take the GGUF file."""
    text = _(
        "The weights are unpacked into a copy that every vLLM can calculate with, also on a CPU. The GGUF file stays."
    )
    title = _("Convert it to a Hugging Face folder")
    return [
        {
            "title": f"{title} ({one['size']})" if one["size"] else title,
            "text": text,
            "url": one["url"],
            "label": _("Convert on %(host)s") % {"host": one["host"]},
        }
        for one in conversions(row.reason, spec.artifact_id, spec.host_id)
    ]


def _proposed(fix: tuple[str, str, str]) -> dict[str, str]:
    kind, text, command = fix
    return {"title": text, "text": str(FIXED_WHERE.get(kind, "")), "command": command}
