"""What the pages of pasted and exported commands show."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from deployments import pasted, pasted_secrets
from deployments.exporting.forms import Form
from deployments.pasting.read import ENGINES
from models_catalog.downloads.hubs import REPO


def findings(reading: pasted.Reading, actor: Any) -> dict[str, Any]:
    """The findings by how grave they are, the models to choose from, and where an unknown one can be had."""
    groups: dict[str, list[Any]] = {"error": [], "warning": [], "note": []}
    for finding in reading.findings:
        groups[finding.level].append(pasted.say(finding))
    errors = [finding for finding in reading.findings if finding.level == "error"]
    unknown = any(finding.code == "paste.model_unknown" for finding in reading.findings)
    return {
        "engine": ENGINES.get(reading.engine, ""),
        "errors": groups["error"],
        "warnings": groups["warning"],
        "notes": groups["note"],
        "candidates": reading.candidates if reading.artifact is None else (),
        "unknown": unknown,
        # Nothing else is wrong than that no model is chosen yet: the page drops it when one is.
        "until_chosen": reading.artifact is None and all(each.place == "artifact" for each in errors),
        "download": _download(reading.model) if unknown else "",
        "offers": reading.offers,
        "sealed": pasted_secrets.sealed(reading.offers, reading.kept, actor),
        "artifact": reading.artifact,
    }


def _download(model: str) -> str:
    """The page that downloads a repository; "" where the name is none."""
    if not REPO.fullmatch(model):
        return ""
    return f"{reverse('download-new')}?{urlencode({'source': 'huggingface', 'repo': model})}"


def boxes(texts: Mapping[Form, str]) -> list[dict[str, str]]:
    """Each form with its heading and what to do with it."""
    said: dict[Form, tuple[str, str]] = {
        "command": (
            _("Command"),
            _("As the host runs it, with a port of its own. Set VLLM_API_KEY first; it protects the engine."),
        ),
        "compose": (
            _("Compose file"),
            _("For docker compose, with the image that vLLM publishes. The folder with the models is only read."),
        ),
        "systemd": (
            _("systemd unit"),
            _("For /etc/systemd/system. The key stands in a file of its own, which the unit names."),
        ),
    }
    return [{"form": form, "title": said[form][0], "hint": said[form][1], "text": text} for form, text in texts.items()]
