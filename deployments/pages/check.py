"""The check before a start in the viewer's words: for its card on the deploy page, and for the API."""

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from deployments.checklist import failed_here
from deployments.checklist.findings import Finding, Part
from deployments.checklist.look import CheckList
from deployments.codes_check import NOT_YET, PARTS
from deployments.fix_words import title
from deployments.mending.fix import Fix
from deployments.pages.fixes import PAGES
from deployments.pages.form import field_values
from deployments.spec import DeploymentSpec
from deployments.wording import candidates, words
from models_catalog import wording as catalog
from panel.core.mask import mask
from panel.core.numbers import ago

KINDS = {"passed": "ok", "running": "busy", "warning": "warn", "error": "bad", "skipped": "off"}
NAMES = {
    "passed": _("Right"), "running": _("Asking"), "warning": _("Look at this"), "error": _("Would fail"),
    "skipped": _("Not looked at"),
}  # fmt: skip
SUMMARY = {
    "passed": _("Nothing speaks against a start."),
    "warnings": _("It can start; look at what is said below first."),
    "refused": _("It would not start so."),
    "running": _("So far nothing speaks against a start. The engine is being asked; this takes some seconds."),
}


def parts_of(found: CheckList) -> list[dict[str, Any]]:
    """Every part with its state and its findings, as plain values."""
    return [_part(part) for part in found.parts]


def _part(part: Part) -> dict[str, Any]:
    title, right = PARTS[part.name]
    said = str(right)
    if part.state == "running":
        said = gettext("The engine is being asked. This takes some seconds.")
    elif part.state == "skipped":
        said = str(NOT_YET.get(part.name, ""))
    elif part.findings:
        said = ""
    return {
        "name": part.name,
        "state": part.state,
        "kind": KINDS[part.state],
        "word": str(NAMES[part.state]),
        "title": str(title),
        "text": "" if part.findings and part.state != "running" else said,
        "seconds": part.seconds,
        "findings": [_finding(finding) for finding in part.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    said = words(_known(finding))
    if said is None or finding.code in catalog.FILES:
        said = catalog.of_file(finding.reason)
    root = str(finding.params.get("root") or "") if finding.code == "check.refused" else ""
    return {
        "level": finding.level,
        "code": str(finding.params.get("cause") or finding.code) if root else finding.code,
        "option": finding.option,
        "message": said.text,
        "hint": said.hint,
        "proof": root,
        "run": finding.params.get("run"),
        "places": candidates(finding.reason),
        "fixes": [_fix(fix) for fix in finding.fixes],
    }


def _fix(fix: Fix) -> dict[str, Any]:
    """A change of the settings, a name, or the page where it is done."""
    spec = {name: value for name, value in fix.patch.items() if name != "name"}
    name = str(fix.patch.get("name") or "")
    return {"message": fix_text(fix), "spec": spec, "name": name, **_page(fix)}


def _page(fix: Fix) -> dict[str, str]:
    """Where it is done, as an address of this panel; nothing for what a click sets here."""
    if fix.patch or fix.link not in PAGES or fix.link == "settings":
        return {"page": "", "label": ""}
    name, of_one, word = PAGES[fix.link]
    if of_one and fix.target is None:
        return {"page": "", "label": ""}
    return {"page": reverse(name, args=[fix.target] if of_one else []), "label": str(word)}


def _known(finding: Finding) -> dict[str, Any]:
    reason = finding.reason
    params = reason["params"]
    if "at" not in params:
        return reason
    told = {"when": ago(datetime.fromisoformat(params["at"]))}
    if finding.code == failed_here.CODE:
        told["said"] = gettext(params["said"]).rstrip(".")
    return {**reason, "params": {**params, **told}}


def fix_text(fix: Fix) -> str:
    """What the click does, as the page of a failed start says it."""
    return f"{title(fix)[0]}."


def summary(found: CheckList) -> str:
    return str(SUMMARY[found.verdict])


def standing(found: CheckList) -> dict[str, Any]:
    """What speaks against a start of what is stopped, for its page; {} where nothing does."""
    findings = [one for part in parts_of(found) for one in part["findings"] if one["level"] != "note"]
    if not findings:
        return {}
    return {"said": summary(found), "findings": findings, "bad": found.verdict == "refused"}


def card(found: CheckList, spec: DeploymentSpec, *, is_new: bool) -> dict[str, Any]:
    """The card on the deploy page."""
    parts = parts_of(found)
    for part in parts:
        for finding in part["findings"]:
            for fix in finding["fixes"]:
                patch = {**fix["spec"], **({"name": fix["name"]} if fix["name"] else {})}
                fix["patch"] = json.dumps(_fields(patch, spec)) if patch else ""
    return {
        "checked": found.verdict,
        "parts": parts,
        "said": summary(found),
        "first": next((f["message"] for part in parts for f in part["findings"] if f["level"] == "error"), ""),
        "waits": any(part["state"] == "running" for part in parts),
        "anyway": is_new and found.verdict == "warnings",
    }


def _fields(patch: Mapping[str, Any], spec: DeploymentSpec) -> dict[str, str]:
    """A patch as the form's fields, secrets hidden as the form hides them; what is a list there as its field's text."""
    plain = mask({name: value for name, value in patch.items() if name not in ("extra_args", "env")})
    found = field_values(plain, spec)
    if "extra_args" in patch:
        found["extra_args"] = shlex.join(mask(patch["extra_args"]))
    if "env" in patch:
        found["env"] = "\n".join(f"{name}={value}" for name, value in mask(patch["env"]).items())
    return found
