"""What was foreseen beside what was measured, as pages show it: one start, two settings, all starts."""

from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from deployments import golden, measured, measured_runs, revisions
from deployments.models import Deployment, Revision, Run
from deployments.pages.revisions import changes_between
from deployments.spec import DeploymentSpec
from deployments.wording import words
from models_catalog.estimate.plan import Reason
from models_catalog.estimate.words import say
from panel.core.numbers import approx, duration, gib, ngroup
from panel.fleet.wording import ENGINES

LABELS: dict[str, Any] = {
    "weights_gib": gettext_lazy("Weights"),
    "activation_gib": gettext_lazy("Working memory"),
    "overhead_gib": gettext_lazy("Libraries"),
    "graphs_gib": gettext_lazy("CUDA graphs"),
    "kv_gib": gettext_lazy("KV cache"),
    "kv_tokens": gettext_lazy("Tokens that fit"),
    "concurrency": gettext_lazy("Conversations at once"),
}


def shown(name: str, value: float | None) -> str:
    """A value with its unit."""
    if value is None:
        return "—"
    if name.endswith("_gib"):
        return gib(value * 1024) if abs(value) >= 10 else f"{value:.2f}\u00a0GiB"
    return ngroup(round(value)) if name == "kv_tokens" or value >= 100 else f"{value:.1f}"


def compared(run: Run) -> list[dict[str, Any]]:
    """Each quantity that was foreseen and measured, the time of the start last. Empty without either."""
    before, after = run.foreseen, run.measured
    sources = (run.placement.get("estimate") or {}).get("sources") or {}
    found = [
        {**_line(str(LABELS[name]), name, before, after), "why": _source(sources.get(name))}
        for name in measured.NAMES
        if name in after and (name in before or name in ("kv_gib", "kv_tokens"))
    ]
    if run.ready_at is not None and found:
        took = (run.ready_at - run.created_at).total_seconds()
        usual = before.get("start_s")
        told = approx(duration(usual)) if usual is not None else "—"
        found.append({"name": _("Time until ready"), "foreseen": told, "measured": duration(took), "off": ""})
    return found


def _source(told: dict[str, Any] | None) -> str:
    """Where the estimate took a number from, as it was kept with the run; "" where it was not."""
    return say(Reason(told["code"], told.get("params") or {}), _) if told else ""


def _line(label: str, name: str, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    value, low_high = before.get(name), before.get("ranges", {}).get(name)
    off = measured.error(name, before, after)
    exact = low_high is not None and low_high[0] == low_high[1]
    span = ""
    if low_high and None not in low_high and not exact:
        span = _("%(low)s to %(high)s") % {"low": shown(name, low_high[0]), "high": shown(name, low_high[1])}
    told = "—" if value is None else shown(name, value) if exact else approx(shown(name, value))
    if name in measured.BY_LENGTH and value is not None and not measured.same_length(before, after):
        span = _("of %(context)s tokens each") % {"context": ngroup(before.get("context"))}
        label = f"{label} ({ngroup(after.get('context') or after.get('max_model_len'))})"
    return {"name": label, "foreseen": told, "span": span, "measured": shown(name, after[name]), "off": _off(off)}


def _off(share: float | None) -> str:
    if share is None:
        return ""
    return _("exact") if abs(share) < 0.00005 else f"{share:+.2%}".replace("%", "\u00a0%")


def note_of(run: Run) -> str:
    """That earlier launches corrected this estimate, where they did."""
    return corrected_by(run.foreseen.get("launches") or 0)


def corrected_by(launches: int) -> str:
    if not launches:
        return ""
    text = ngettext(
        "The estimate was corrected by %(n)s start on this host.",
        "The estimate was corrected by %(n)s starts on this host.",
        launches,
    )
    return text % {"n": launches}


# --- settings beside each other ---------------------------------------------------------------------------------------


def came_of(run: Run | None) -> dict[str, Any]:
    """Room, start and first answer of a start with these settings; foreseen values have ≈. `ended` where it never got
    ready: its badge and why."""
    if run is None:
        return {}
    after, before = run.measured, run.foreseen
    room = after.get("concurrency")
    told = before.get("concurrency")
    like = measured.same_length(before, after)
    took = (run.answer or {}).get("latency_ms")
    return {
        "room": shown("concurrency", room) if room is not None else "",
        "context": ngroup(after["context"]) if after.get("context") else "",
        "foreseen": approx(shown("concurrency", told)) if told is not None and like else "",
        "tokens": shown("kv_tokens", after["kv_tokens"]) if "kv_tokens" in after else "",
        "ready": duration((run.ready_at - run.created_at).total_seconds()) if run.ready_at else "",
        "usual": approx(duration(before["start_s"])) if before.get("start_s") is not None else "",
        "answer": _("%(ms)s ms") % {"ms": ngroup(took)} if took is not None else "",
        "url": reverse("run", args=[run.pk]),
        "ended": _ended(run) if run.ready_at is None else None,
    }


def _ended(run: Run) -> dict[str, str]:
    """What became of a start that did not get ready."""
    if run.ended_at is None:
        return {"kind": "busy", "word": _("Starting"), "why": ""}
    if run.outcome != "failed":
        return {"kind": "off", "word": _("Stopped"), "why": ""}
    why = words(run.reason)
    return {"kind": "bad", "word": _("Failed"), "why": why.text if why else ""}


def compare(row: Deployment, old: Revision, new: Revision, *, may_edit: bool) -> dict[str, Any]:
    """Two settings side by side: what differs, what was measured, what was answered."""
    starts = revisions.best_starts([old, new])
    changed = changes_between(old, new)
    return {
        "section": "deployments",
        "d": row,
        "sides": [_side(row, each, starts.get(each.pk)) for each in (old, new)],
        "changes": changed,
        "many": len(changed) > 1,
        "lines": _side_by_side(starts.get(old.pk), starts.get(new.pk)),
        "answers": revisions.answers(row, [old.number, new.number]),
        "can_go_back": may_edit,
        "numbers": list(row.revisions.order_by("-number").values_list("number", flat=True)[:50]),
    }


def _side(row: Deployment, revision: Revision, run: Run | None) -> dict[str, Any]:
    return {"revision": revision, "current": revision.pk == row.revision_id, "run": run, "came": came_of(run)}


def _side_by_side(old: Run | None, new: Run | None) -> list[dict[str, str]]:
    """One line a quantity: both measured values, and both foreseen ones."""
    found = []
    for name, label in LABELS.items():
        pair = [(run.foreseen.get(name), run.measured.get(name)) if run else (None, None) for run in (old, new)]
        if any(value is not None for both in pair for value in both):
            found.append({"name": str(label), "sides": [_both(name, *both) for both in pair]})
    times = [came_of(run) for run in (old, new)]
    for key, also, label in (("ready", "usual", _("Time until ready")), ("answer", "", _("First answer"))):
        if any(each.get(key) for each in times):
            sides = [{"measured": each.get(key) or "—", "foreseen": each.get(also, "")} for each in times]
            found.append({"name": label, "sides": sides})
    return found


def _both(name: str, before: float | None, after: float | None) -> dict[str, str]:
    return {"measured": shown(name, after), "foreseen": approx(shown(name, before)) if before is not None else ""}


def answers(row: Deployment, *, may_edit: bool, texts: list[str] | None = None) -> dict[str, Any]:
    """The golden questions: what was answered by which kind of start, and the form to change them."""
    spec = DeploymentSpec.model_validate(row.revision.spec)
    questions = texts if texts is not None else golden.questions_of(row, spec)
    return {
        "section": "deployments",
        "d": row,
        "writes": spec.task == "generate",
        "answers": revisions.answers(row),
        "fields": [*questions, *[""] * golden.MOST][: max(golden.MOST, len(questions))],
        "usual": row.questions is None,
        "longest": golden.LONGEST,
        "may_edit": may_edit,
    }


SETTINGS_BEFORE = 20  # of which answers are compared with those of now


def other_answers(row: Deployment, number: int) -> dict[str, str] | None:
    """That golden questions are answered otherwise than before these settings, or this engine; None where they are
    not. One query."""
    found = revisions.differing(row, range(number - SETTINGS_BEFORE, number + 1)).get(number)
    if found is None or not found.differ:
        return None
    url = reverse("deployment-answers", args=[row.pk])
    if found.version:
        text = ngettext(
            "%(differ)s of %(both)s golden answers differs from that of version %(than)s of the engine.",
            "%(differ)s of %(both)s golden answers differ from those of version %(than)s of the engine.",
            found.differ,
        )
        return {"url": url, "text": text % {"differ": found.differ, "both": found.both, "than": found.version}}
    text = ngettext(
        "%(differ)s of %(both)s golden answers differs from settings %(than)s.",
        "%(differ)s of %(both)s golden answers differ from settings %(than)s.",
        found.differ,
    )
    url = f"{reverse('deployment-compare', args=[row.pk])}?a={found.than}&b={number}"
    return {"url": url, "text": text % {"differ": found.differ, "both": found.both, "than": found.than}}


# --- all starts -------------------------------------------------------------------------------------------------------


def accuracy() -> dict[str, Any]:
    rows = [
        {
            "row": row,
            "engine": f"{ENGINES.get(row.engine, row.engine)} {row.version}".strip(),
            "cells": [
                {"name": LABELS[each.name], "median": _share(each.median), "p90": _share(each.p90)}
                for each in row.closeness
            ],
        }
        for row in measured_runs.accuracy()
    ]
    return {"section": "engines", "rows": rows, "names": [str(LABELS[name]) for name in measured_runs.COMPARED]}


def _share(value: float | None) -> str:
    return "—" if value is None else f"{value:.2%}".replace("%", "\u00a0%")
