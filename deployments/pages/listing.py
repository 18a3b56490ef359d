"""What the list of deployments shows: rows, alerts, numbers and chips. Nothing is decided or written here."""

import datetime as dt
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from deployments import contact, queries
from deployments.models import Deployment, Run
from deployments.pages.run import badge, engine, place, step_name
from deployments.serving.contexts import worst
from deployments.states import Desired, State
from deployments.wording import candidates, person, words
from panel.core.numbers import ago, approx, gib

ALERTS = 5


def index(rows: list[Deployment], counts: dict[str, int], *, group: str, text: str) -> dict[str, Any]:
    names, silent = queries.model_names(rows), contact.silent(rows)
    return {
        "section": "deployments",
        "rows": [list_row(row, names[row.pk], silent.get(row.pk)) for row in rows],
        "alerts": alerts(rows, silent),
        "chips": _chips(counts),
        "strip": _strip(counts),
        "group": group or "all",
        "text": text,
    }


def _chips(counts: dict[str, int]) -> list[dict[str, Any]]:
    named = [
        ("all", _("All")),
        ("ready", _("Ready")),
        ("starting", _("Starting or stopping")),
        ("waiting", _("Waiting")),
        ("attention", _("Needs you")),
        ("stopped", _("Stopped")),
    ]
    return [{"value": value, "word": word, "n": counts[value]} for value, word in named]


def _strip(counts: dict[str, int]) -> list[tuple[str, int, str]]:
    return [
        (
            _("Answering"),
            counts["ready"],
            ngettext("of %(n)s deployment", "of %(n)s deployments", counts["all"]) % {"n": counts["all"]},
        ),
        (_("Starting or stopping"), counts["starting"], ""),
        (_("Waiting"), counts["waiting"], _("for room or their turn")),
        (_("Needs you"), counts["attention"], _("failed or without contact")),
    ]


def list_row(row: Deployment, model: str, silence: contact.Silence | None = None) -> dict[str, Any]:
    run = row.run
    return {
        "d": row,
        "badge": badge(row.state),
        "detail": _row_detail(row, silence),
        "model": model,
        "where": place(run) if run else "",
        "engine": engine(run) if run else "",
        "memory": _reserved(run) if run and run.ended_at is None else "",
        "who": person(row.wanted_by or row.created_by),
        "mark": worst(row),
    }


def _row_detail(row: Deployment, silence: contact.Silence | None) -> str:
    reason = words(contact.reason_of(row, silence))
    if reason is not None:
        return reason.text
    if row.state == State.STARTING and row.run is not None:
        now = next((step for step in queries.steps_of(row.run) if step.state == "now"), None)
        return step_name(now) if now else ""
    if row.state == State.READY and row.run is not None and row.run.answer:
        at = dt.datetime.fromtimestamp(row.run.answer["at"], dt.UTC)
        return _("answered %(ago)s") % {"ago": ago(at)}
    return ""


def _reserved(run: Run) -> str:
    total = sum(share[1] for share in run.placement.get("reserve", []))
    return approx(gib(total)) if total else ""


def alerts(rows: list[Deployment], silent: dict[int, contact.Silence]) -> list[dict[str, str]]:
    """What needs a person, worst first; at most five."""
    found = []
    for row in rows:
        if row.state != State.LOST and (row.state, row.desired) != (State.FAILED, Desired.RUNNING):
            continue
        title = _("%(name)s failed") if row.state == State.FAILED else _("No contact with the host of %(name)s")
        found.append(
            {
                "icon": "alert-circle" if row.state == State.FAILED else "plug-connected-x",
                "title": title % {"name": row.name},
                "text": _why(contact.reason_of(row, silent.get(row.pk))),
                "url": reverse("deployment", args=[row.pk]),
            }
        )
    return found[:ALERTS]


def _why(reason: dict[str, Any]) -> str:
    """The reason in one line: of several places the first one's, since the list itself stands on its own page."""
    found, places = words(reason), candidates(reason)
    if found is None:
        return ""
    if not places:
        return f"{found.text} {found.hint}".strip()
    return " ".join(part for part in (found.text, f"{places[0]['name']}: {places[0]['text']}") if part)
