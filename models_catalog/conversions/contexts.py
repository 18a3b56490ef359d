"""What pages show of conversions and of the ways to serve a GGUF file, made ready for templates. Reads only."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from models_catalog.conversions import queries, services, wording
from models_catalog.conversions.models import ACTIVE, Conversion, State
from models_catalog.models import Artifact, Copy
from panel.core.numbers import approx, gib, size
from panel.fleet.models import Runtime
from panel.fleet.runtimes import packages, sources
from panel.fleet.runtimes.wording import failure as package_failure
from panel.fleet.wire_models import DTYPE_BYTES
from panel.fleet.wording import engine as engine_name

PHASES = ("checking", "describing", "reading", "writing", "placing")
MOST_WAYS = 20


# --- the ways to serve a GGUF file ------------------------------------------------------------------------------------


def ways(artifact: Artifact, copies: Sequence[Copy], runtimes: Sequence[Runtime]) -> list[dict[str, Any]]:
    """What could be done so that an engine serves it, the nearest first; for models that none serves now."""
    there = [copy for copy in copies if services.is_convertible(copy)]
    if artifact.format != "gguf" or not there:
        return []
    hosts = {copy.host_id: copy.host.name for copy in there}
    here = [row for row in runtimes if row.host_id in hosts]
    found = [*_plugins(here, hosts), *_conversions(there, here), _llamacpp(there)]
    return found[:MOST_WAYS]


def _plugins(here: Sequence[Runtime], hosts: dict[int, str]) -> list[dict[str, Any]]:
    lacking = [row for row in here if packages.lacks_plugin(row)]
    told = packages.adding(lacking)
    made = []
    for row in lacking:
        adding = told.get(row.pk)
        made.append(
            {
                "kind": "plugin",
                "runtime": row,
                "name": engine_name(row),
                "host": hosts[row.host_id],
                "managed": packages.can_add(row),
                "command": packages.command(row),
                "going": adding is not None and adding.going,
                "failed": package_failure(adding.refusal) if adding is not None and adding.refusal else None,
            }
        )
    return made


def _conversions(copies: Sequence[Copy], here: Sequence[Runtime]) -> list[dict[str, Any]]:
    newest = queries.newest(copy.pk for copy in copies)
    made = []
    for copy in copies:
        row = newest.get(copy.pk)
        dtype = services.usual_dtype(copy.artifact)
        known = services.size_of(copy.artifact, dtype)
        came = queries.made_of(row) if row is not None and row.state == State.DONE else None
        made.append(
            {
                "kind": "convert",
                "copy": copy,
                "host": copy.host.name,
                "size": approx(size(known)) if known else "",
                "dtype": dtype,
                "can": bool(services.converters(here, copy.host_id)) and bool(known),
                "row": row if row is not None and row.state != State.DONE else None,
                "badge": tuple(map(str, wording.BADGES[row.state])) if row is not None else None,
                "model": came.artifact.model if came is not None else None,
            }
        )
    return made


def _llamacpp(copies: Sequence[Copy]) -> dict[str, Any]:
    """llama.cpp serves such files everywhere; Berth finds it and does not start it, so the command is for people."""
    hosts = {copy.host_id: copy for copy in copies}
    row = Runtime.objects.filter(engine="llamacpp", present=True, host__in=hosts).defer("flags").first()
    if row is None:
        return {"kind": "llamacpp", "host": "", "command": ""}
    copy = hosts[row.host_id]
    words = [row.executable, "-m", copy.path, "--host", "127.0.0.1", "--port", "8080"]
    return {"kind": "llamacpp", "host": copy.host.name, "command": sources.quoted(words)}


def offer(copy: Copy) -> dict[str, str]:
    """For a plan that cannot start: the conversion of this copy in one line."""
    known = services.size_of(copy.artifact, services.usual_dtype(copy.artifact))
    return {"url": reverse("model-convert", args=[copy.pk]), "size": approx(size(known)) if known else ""}


# --- before it begins -------------------------------------------------------------------------------------------------


def ask(copy: Copy, form: Any) -> dict[str, Any]:
    """What a conversion would take, and where it could go."""
    artifact = copy.artifact
    usual = services.usual_dtype(artifact)
    chosen = str(form["dtype"].value() or usual)
    need = services.need_mib(services.size_of(artifact, chosen if chosen in DTYPE_BYTES else usual))
    engines = services.converters(copy.host.runtimes.defer("flags").select_related("host"), copy.host_id)
    return {
        "section": "models",
        "copy": copy,
        "model": artifact.model,
        "form": form,
        "dtypes": [
            {
                "value": dtype,
                "words": str(wording.DTYPES[dtype]),
                "size": approx(size(services.size_of(artifact, dtype))),
                "checked": dtype == chosen,
            }
            for dtype in DTYPE_BYTES
        ],
        "spots": [_spot(place, need) for place in services.spots(copy.host, copy.root)],
        "folder": form["folder"].value() or "",
        "engine": engine_name(engines[0]) if engines else "",
        "can": services.is_convertible(copy) and bool(services.size_of(artifact, usual)) and bool(engines),
        "known": bool(services.size_of(artifact, usual)),
    }


def _spot(place: Any, need: int) -> dict[str, Any]:
    free = place.free_mib
    words = (
        _("%(size)s free") % {"size": gib(free)} if free is not None else _("the host has not told how much is free")
    )
    return {"path": place.path, "words": words, "small": free is not None and free < need}


# --- one conversion ---------------------------------------------------------------------------------------------------


def look_of(row: Conversion) -> str:
    return f"{row.job_id}-{row.state if row.state not in ACTIVE else 'on'}"


def page(row: Conversion, *, may: bool) -> dict[str, Any]:
    kind, word = wording.BADGES[row.state]
    going = row.state in ACTIVE
    log = getattr(row.job, "log", None)
    came = queries.made_of(row)
    return {
        "section": "models",
        "row": row,
        "title": row.name,
        "badge": (kind, str(word)),
        "look": look_of(row),
        "going": going,
        "lead": _lead(row),
        "steps": _steps(row),
        "size": approx(size(row.bytes_total)),
        "dtype": row.dtype,
        "why": wording.failure(row.refusal) if row.state == State.FAILED else None,
        "can_cancel": may and row.state in (State.WAITING, State.RUNNING),
        "can_again": may and row.state in (State.FAILED, State.CANCELLED) and row.copy_id is not None,
        "source": row.copy.artifact.model if row.copy is not None else None,
        "came": came.artifact if came is not None else None,
        "deploy": f"{reverse('deployment-new')}?{urlencode({'artifact': came.artifact_id})}"
        if came is not None
        else "",
        "has_log": row.job is not None and (going or bool(log and log.size)),
        "log_url": reverse("conversion-log", args=[row.pk]),
    }


def _lead(row: Conversion) -> str:
    host = row.host.name
    if row.state in ACTIVE and row.host.lost_at is not None:
        return _("No contact with %(host)s now. How far it came shows when it is back.") % {"host": host}
    words = {
        State.WAITING: _("%(host)s has been asked and has not begun yet."),
        State.RUNNING: _("%(host)s unpacks the weights. The GGUF file stays as it is. This page may be closed."),
        State.CANCELLING: _("%(host)s ends it and removes what came of it."),
        State.CANCELLED: _("It was cancelled. Nothing of it is left on %(host)s."),
        State.DONE: _("The folder lies on %(host)s. The GGUF file is as it was."),
        State.FAILED: _("Nothing half made is left on %(host)s."),
    }
    return str(words[State(row.state)]) % {"host": host}


def _steps(row: Conversion) -> list[dict[str, Any]]:
    """The stages for the design system's timeline."""
    progress = row.progress
    now, passed = str(progress.get("phase") or ""), [str(code) for code in progress.get("passed") or []]
    made = []
    for code in PHASES:
        done, doing = wording.STEPS[code]
        kind = "todo"
        if row.state == State.DONE:
            kind = "yes"
        elif code == now and row.state != State.WAITING:
            kind = "now" if row.state in ACTIVE else "no" if row.state == State.FAILED else "todo"
        elif code in passed:
            kind = "yes"
        value, detail = None, ""
        if kind == "now" and progress.get("total"):
            value = min(100.0, 100 * int(progress.get("done") or 0) / int(progress["total"]))
            if code in ("describing", "reading"):  # files made, tensors read
                detail = f"{int(progress.get('done') or 0)} / {int(progress['total'])}"
            elif code == "writing":
                detail = f"{size(int(progress.get('done') or 0))} / {size(int(progress['total']))}"
        made.append({"kind": kind, "name": str(doing if kind == "now" else done), "detail": detail, "value": value})
    return made


def percent(row: Conversion) -> float | None:
    """How far it is as a whole: reading and writing take about as long as each other."""
    progress = row.progress
    if row.state not in (State.RUNNING, State.CANCELLING) or not progress.get("total"):
        return None
    share = min(1.0, int(progress.get("done") or 0) / int(progress["total"]))
    start = {"reading": 0.0, "writing": 50.0}.get(str(progress.get("phase")))
    return None if start is None else start + 50 * share
