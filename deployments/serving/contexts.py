"""What the ready page, the list and the API show of an engine that serves. Nothing is decided or written here."""

import datetime as dt
import time
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from deployments.diagnosis.serving_window import Window
from deployments.fix_words import in_sentences
from deployments.mending.fix import Fix
from deployments.models import Deployment, Run
from deployments.pages import fixes as fixes_page
from deployments.serving import fixes
from deployments.states import State
from deployments.wording import words
from panel.core.numbers import ngroup
from panel.fleet import serving_points
from panel.fleet.wire_serving import Point

RATE_S = 60.0  # over which tokens per second are counted
NOTES = {"bad": ("bad", "alert-circle"), "warn": ("warn", "alert-triangle"), "note": ("", "info-circle")}


def findings_of(row: Deployment) -> list[dict[str, Any]]:
    """What is not well with a deployment that is ready, in words, the worst first."""
    run = row.run
    if run is None or row.state != State.READY:
        return []
    return [_said(row, each) for each in run.findings.get("found", [])]


def _said(row: Deployment, kept: Mapping[str, Any]) -> dict[str, Any]:
    said, fix = words(kept), kept.get("fix")
    assert said is not None
    kind, icon = NOTES.get(kept["level"], NOTES["note"])
    return {
        **{name: kept[name] for name in ("code", "family", "level", "params")},
        "kind": kind,
        "icon": icon,
        "text": said.text,
        "hint": said.hint,
        "since": dt.datetime.fromtimestamp(kept["since"], dt.UTC),
        "fix": {**fix, "said": in_sentences(Fix.of_kept(fix))} if fix else None,
        "fixes": [_fix(row, Fix.of_kept(each)) for each in fixes.all_of(kept)],
        "id": kept["family"].replace(".", "-"),
    }


def _fix(row: Deployment, fix: Fix) -> dict[str, Any]:
    """One thing that helps, with its button."""
    view = fixes_page.fix_view(row, fix) | {"said": in_sentences(fix), "patch": dict(fix.patch)}
    if fix.kind == "patch":
        return {**view, "post": "change", "label": _("Change it and restart")}
    if fix.kind == "again":
        return {**view, "post": "restart", "label": _("Restart")}
    return view


def worst(row: Deployment) -> dict[str, Any] | None:
    """The finding that the list's row says, if there is one worth a mark."""
    found = [each for each in findings_of(row) if each["level"] != "note"]
    return found[0] if found else None


# --- live numbers -----------------------------------------------------------------------------------------------------


def numbers(run: Run) -> list[tuple[str, str, str]]:
    """(name, number, what it counts) of this moment; empty where the engine or its host tells nothing now."""
    if run.job_id is None:
        return []
    window = Window(serving_points.read([run.job_id], newest=30)[str(run.job_id)], time.time())
    if not window.fresh:
        return []
    point = window.points[-1]
    told: list[tuple[str, str | None, str]] = [
        (_("Being answered"), _whole(point.running), _("requests now")),
        (_("In the queue"), _whole(point.waiting), _("requests now")),
        (_("Memory for conversations"), _percent(point), _("in use (KV cache)")),
        (_("Speed"), _rate(window), _("tokens per second, last minute")),
    ]
    return [(name, value, unit) for name, value, unit in told if value is not None]


def _whole(value: float | None) -> str | None:
    return None if value is None else str(ngroup(int(value)))


def _percent(point: Point) -> str | None:
    return None if point.kv_usage is None else f"{round(100 * point.kv_usage)} %"


def _rate(window: Window) -> str | None:
    per_s = window.rate(RATE_S, "generation_tokens")
    if per_s is None:
        return None
    return str(ngroup(round(per_s))) if per_s >= 10 or not per_s else f"{per_s:.1f}"
