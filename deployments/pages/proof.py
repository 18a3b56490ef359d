"""What a start said of itself, and its failure in numbers, as pages and the API show it: words and numbers out."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from deployments import failures
from deployments.codes_failed import EXCLUDED, FACTS
from deployments.diagnosis import told
from deployments.diagnosis.excluded import excluded as ruled_out_by
from deployments.diagnosis.notices import sentence
from deployments.diagnosis.result import Evidence
from deployments.diagnosis.rules import BY_CODE
from deployments.models import Run
from panel.core.numbers import day, duration, gib, ngroup, unit
from panel.core.wording import said
from panel.fleet.wording import ENGINES

MIB = 1024


def numbers(run: Run) -> Mapping[str, Any]:
    """What its root line tells in numbers (told.Told); read once more for a run that ended before they were kept."""
    kept = run.diagnosis.get("told")
    rule = BY_CODE.get(str((run.reason.get("params") or {}).get("cause") or ""))
    if kept is not None or rule is None:
        return kept or {}
    root = failures.root_of(run.error_block or {})
    return told.of(rule, root, run.diagnosis.get("facts") or {}, Evidence()).as_dict() if root else {}


def why(run: Run, known: Mapping[str, Any]) -> str:
    """Why it failed, with its numbers."""
    return told.sentence(str((run.reason.get("params") or {}).get("why") or ""), known, _)


def pair(run: Run, known: Mapping[str, Any]) -> dict[str, Any]:
    """The two bars: what was needed and what there was; {} where no numbers are known."""
    bars = known.get("bars")
    if not bars:
        return {}
    need, have, kind = bars
    names = (_("Asked for"), _("Allowed")) if known.get("limit") else (_("Needed"), _("Available"))
    rows = [
        {"name": name, "text": _amount(value, kind), "segments": [(paint, value, "")]}
        for name, value, paint in zip(names, (need, have), ("bad", "k"), strict=True)
    ]
    for row in rows:
        row["label"] = f"{row['name']}: {row['text']}"
    return {"rows": rows, "total": max(need, have), "by": _by(run, known), "plan": _plan(run, kind)}


def _plan(run: Run, kind: str) -> str:
    """What the estimate had said before the start of the memory that was too small."""
    foreseen = run.foreseen.get("kv_gib")
    if foreseen is None or kind != "GiB" or (run.reason.get("params") or {}).get("cause") != "mem.kv_lt_len":
        return ""
    return _("the plan had foreseen ≈ %(room)s") % {"room": _amount(float(foreseen), kind)}


def _by(run: Run, known: Mapping[str, Any]) -> str:
    engine = ENGINES.get(run.runtime.engine, run.runtime.engine) if run.runtime is not None else _("the engine")
    time = str(known.get("clock") or "")[6:14]
    if time:
        return _("both numbers by %(engine)s at %(time)s") % {"engine": engine, "time": time}
    return _("both numbers by %(engine)s") % {"engine": engine}


def _amount(value: float, kind: str) -> str:
    if kind == "GiB":
        return gib(value * MIB) if value >= 100 else f"{value:.2f}\u00a0GiB"
    number = ngroup(int(value)) if float(value).is_integer() else f"{value:g}"
    return _("%(n)s tokens") % {"n": number} if kind == "tokens" else number


def pieces(root: str, known: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The root line in pieces: (text, whether it is marked)."""
    pieces, at = [], 0
    for start, end in known.get("marks") or []:
        if not at <= start < end <= len(root):
            break
        pieces += [(root[at:start], False), (root[start:end], True)]
        at = end
    return [piece for piece in (*pieces, (root[at:], False)) if piece[0]]


def excluded(run: Run) -> list[dict[str, str]]:
    """What it was not, by what was known of the host and the start."""
    params = run.reason.get("params") or {}
    engine = ENGINES.get(run.runtime.engine, run.runtime.engine) if run.runtime is not None else ""
    phase = str(params.get("phase") or run.diagnosis.get("phase") or "")
    found = ruled_out_by(
        run.diagnosis, str(params.get("cause") or ""), phase, engine=engine, version=run.engine_version
    )
    return [_excluded(code, values) for code, values in found]


def _excluded(code: str, values: Mapping[str, Any]) -> dict[str, str]:
    shown = dict(values)
    if "free_mib" in shown:
        shown |= {"free": gib(shown["free_mib"]), "total": gib(shown["total_mib"])}
    if "gib" in shown:
        shown["room"] = gib(shown["gib"] * MIB)
    if "n" in shown:
        shown["n"] = ngroup(shown["n"])
    if "at" in shown:
        shown["day"] = day(_moment(shown["at"]))
    words = said(EXCLUDED, {"code": code, "params": shown})
    return {"code": code, "title": words.text, "text": words.hint}


def _moment(text: Any) -> datetime | None:
    return parse_datetime(text) if isinstance(text, str) else None


def effects_by(run: Run | None, fixes: Iterable[Mapping[str, Any]]) -> str:
    """Where the effects of fixes come from, and how exact such a number is: as exact as this start's estimate."""
    if not any(fix.get("effects") for fix in fixes):
        return ""
    low, high = (((run.foreseen if run is not None else {}).get("ranges") or {}).get("kv_gib") or [None, None])[:2]
    if low is None or high is None or high <= low:
        return _("effects estimated")
    return _("effects estimated, ± %(gib)s GiB") % {"gib": f"{max(0.1, (high - low) / 2):.1f}"}


# --- what the engine said of itself ---------------------------------------------------------------------------------


def itself(run: Run) -> dict[str, Any]:
    """Versions and numbers that its log tells, and warnings that matter with their lines; {} where it told nothing."""
    known = run.diagnosis.get("facts") or run.parser.get("facts") or {}
    facts = [(str(label), _fact(known[name], kind)) for name, (label, kind) in FACTS.items() if _told(known.get(name))]
    warned = notices(known)
    return {"facts": facts, "notices": warned} if facts or warned else {}


def notices(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Warnings that matter, each with its line in the log (None where that is not known)."""
    return [_notice(each) for each in known.get("notices") or [] if sentence(each)]


def _told(value: Any) -> bool:
    return value not in (None, "", 0)


def _fact(value: Any, kind: str) -> str:
    if kind == "GiB":
        return _amount(float(value), kind)
    if kind == "s":
        return duration(value)
    if kind == "tokens":
        return _("%(n)s tokens") % {"n": ngroup(value)}
    return unit(f"{value:g}", "×") if isinstance(value, float) else str(value)


def _notice(each: Mapping[str, Any]) -> dict[str, Any]:
    return {"code": each["code"], "text": sentence(each, _), "line": each.get("line") or None}
