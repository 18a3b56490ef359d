"""Why one start failed, as its pages show it: cause, proof, certainty, what it was not, what changed, errors alike."""

from collections.abc import Mapping
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from deployments import checking, failures, failures_read, run_log
from deployments.codes import CODES
from deployments.codes_classes import CLASSES
from deployments.diagnosis.rules import BY_CODE, causes_of, doc_of, versions_of
from deployments.models import Failure, Run
from deployments.pages import proof
from deployments.pages.revisions import changes_between
from deployments.wording import label_of, person, words
from panel.audit.models import Event
from panel.core.numbers import ngroup

CERTAIN, LIKELY = 0.9, 0.8


def diagnosis(run: Run, *, may_judge: bool) -> dict[str, Any]:
    """All that is known of why it failed; empty for a run that did not. A bounded number of queries."""
    if run.outcome != "failed":
        return {}
    params = run.reason.get("params") or {}
    row = failures_read.of_run(run.pk)
    known = bool(params.get("cause"))
    explained = known or run.reason.get("code") not in failures.UNEXPLAINED
    block = run.error_block or {}
    root, told = failures.root_of(block), proof.numbers(run)
    return {
        "run": run,
        "known": known,
        "explained": explained,
        "asks": run.job_id is not None or known,
        "code": params.get("cause", ""),
        "why": proof.why(run, told),
        "pair": proof.pair(run, told),
        **more(str(params.get("cause") or "")),
        "sure": certainty(params) if known else "" if explained else _("Not recognised"),
        "root": root,
        "proof": proof.pieces(root, told),
        "root_line": block.get("root_line"),
        "more": len(block.get("lines") or []) > 1,
        "ruled_out": ruled_out(run),
        "excluded": proof.excluded(run),
        "despite": despite(run),
        "changed": changed_since(run),
        "alike": [line(other) for other in failures_read.alike(row)] if row is not None and not explained else [],
        "seen": seen(row),
        "class_url": f"{reverse('failures')}?class={params['cause']}" if known else "",
        **verdict(run, row, may_judge=may_judge),
    }


def more(code: str) -> dict[str, Any]:
    """What a class may come from, which versions of the engine fail so, and where its documentation says more."""
    rule = BY_CODE.get(code)
    if rule is None:
        return {"causes": [], "versions": "", "doc": ""}
    return {"causes": [_(each) for each in causes_of(rule)], "versions": versions_of(rule), "doc": doc_of(rule)}


def certainty(params: Mapping[str, Any]) -> str:
    """How sure the diagnosis is, in words."""
    value = float(params.get("confidence") or 0.0)
    return _("Certain") if value >= CERTAIN else _("Very likely") if value >= LIKELY else _("Likely")


def ruled_out(run: Run) -> list[dict[str, Any]]:
    """What looked like a cause in the log and only follows from it, each with its line."""
    known = [each for each in run.diagnosis.get("ruled_out") or [] if each.get("class") in BY_CODE]
    return [
        {"code": each["class"], "title": _(BY_CODE[each["class"]].title), "line": each.get("line")} for each in known
    ]


def despite(run: Run) -> dict[str, Any]:
    """Who started it in spite of warnings, where its settings are still those; {} where nobody was warned."""
    rows = Event.objects.filter(target_kind="deployment", target_id=str(run.deployment_id))
    event = rows.filter(verb="deployment.started_despite").order_by("-pk").first()
    if event is None or event.facts.get("revision", 1) != run.revision.number:  # of a new deployment it is the first
        return {}
    return {"who": person(event.actor), "at": event.at}


def seen(row: Failure | None) -> str:
    """How often the team met this class, where it was more than this once."""
    times = failures_read.times_seen(row) if row is not None else 0
    if times < 2:
        return ""
    return _("Your team has met this %(n)s times.") % {"n": ngroup(times)}


def changed_since(run: Run) -> dict[str, Any]:
    """What is different from the last start of this deployment that worked; empty where none did before."""
    earlier = Run.objects.filter(deployment=run.deployment_id, number__lt=run.number).exclude(ready_at=None)
    good = earlier.select_related("revision").defer(*failures.HEAVY).order_by("-number").first()
    if good is None or run.ready_at is not None:
        return {}
    items = [] if good.revision_id == run.revision_id else changes_between(good.revision, run.revision)
    if run.engine_version and good.engine_version != run.engine_version:
        items.append({"name": _("Version"), "before": good.engine_version or "–", "after": run.engine_version or "–"})
    if run.host_name and good.host_name != run.host_name:
        items.append({"name": _("Host"), "before": good.host_name or "–", "after": run.host_name or "–"})
    if run.was_placed and _gpus(good) != _gpus(run):
        items.append({"name": _("GPUs"), "before": _gpus(good), "after": _gpus(run)})
    unset = [{**item, **{side: _("not set") for side in ("before", "after") if item[side] == "–"}} for item in items]
    return {"good": good, "items_of": unset}


def _gpus(run: Run) -> str:
    return " + ".join(map(str, run.placement.get("gpus") or [])) or "–"


# --- lines of lists ---------------------------------------------------------------------------------------------------


def title_of(code: str) -> str:
    """The sentence of a class."""
    if code in ("", failures_read.NOT_RECOGNISED):
        return _("Not recognised")
    if code in BY_CODE:
        return _(BY_CODE[code].title)
    if code in CLASSES:
        return str(CLASSES[code])
    said = words({"code": code, "params": {}})
    if code in CODES and "%(" not in str(CODES[code][0]):
        return str(CODES[code][0])
    kind = next((kind for kind in CLASSES if kind.endswith((".", "_")) and code.startswith(kind)), "")
    return str(CLASSES[kind]) if kind else said.text if said else code


def change_word(change: str) -> str:
    """What the next start did differently, in words."""
    if change == failures.SAME:
        return _("started again unchanged")
    names = [_name(name) for name in change.split(",") if name]
    return ", ".join(names) if names else _("other settings")


def _name(name: str) -> str:
    own = {"engine": _("another engine"), "host": _("another host")}
    return own.get(name) or label_of(name.removeprefix("restart."))


def line(row: Failure) -> dict[str, Any]:
    """One failure in a list."""
    return {
        "row": row,
        "title": title_of(row.code),
        "name": row.deployment.name,
        "number": row.run.number,
        "url": reverse("run", args=[row.run_id]),
        "mended": change_word(row.mended_change) if row.mended_by_id else "",
        "mended_url": reverse("run", args=[row.mended_by_id]) if row.mended_by_id else "",
        "mended_number": row.mended_by.number if row.mended_by_id and row.mended_by else None,
    }


def verdict(run: Run, row: Failure | None, *, may_judge: bool) -> dict[str, Any]:
    """The question "Was this right?" and what was answered."""
    who = person(row.judged_by) if row is not None else ""
    return {"run": run, "failure": row, "judge": who, "may_judge": may_judge, "longest": failures.LONGEST_NOTE}


# --- the log around the cause ---------------------------------------------------------------------------------------


def log_root(run: Run) -> dict[str, Any]:
    """How the log panel marks the cause: its line, where the page begins to show the log, lines that follow from it."""
    block = run.error_block or {}
    line_number, at = block.get("root_line"), block.get("root_at")
    job = checking.log_job_of(run)
    if not line_number or job is None:
        return {}
    place = run_log.window(job.pk, line_number, at) if at is not None else run_log.Window(0, 1)
    follows = [each["line"] for each in ruled_out(run)]
    until = at + run_log.NEAR_BYTES if at is not None else None
    return {"line": line_number, "offset": place.offset, "number": place.number, "until": until, "follows": follows}
