"""What the downloads' pages show, made ready for the templates: words, badges, progress. Reads only."""

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from models_catalog.downloads import access, fits, hubs, offline, origins, picks, places, queries, there, wording
from models_catalog.downloads.asking import HubTrouble
from models_catalog.downloads.catalogue import Found, Repo
from models_catalog.downloads.models import ACTIVE, Download, Source, State
from models_catalog.downloads.starters import STARTERS, Starter
from models_catalog.estimate.need import Needs
from models_catalog.fits import engine_version
from panel.core.numbers import duration, ngroup, size
from panel.fleet.models import Host

OVER = (State.DONE, State.FAILED, State.CANCELLED)
PHASES = ("checking", "downloading", "verifying", "placing")
SILENT_S = 60.0
FILES_SHOWN = 30
THERE_SHOWN = 3


def count(number: int | None) -> str:
    """1234567 → "1.2 M"."""
    if number is None:
        return "—"
    if number >= 1_000_000:
        return f"{number / 1e6:.1f} M"
    return f"{number / 1e3:.1f} K" if number >= 10_000 else ngroup(number)


# --- one download, as rows and pages show it --------------------------------------------------------------------------


def stage(row: Download) -> str:
    """The state, with the stage of a running one: waiting, ordered, running, verifying, …"""
    if row.state == State.WAITING and row.job_id:
        return "ordered"
    if row.state == State.RUNNING and row.progress.get("phase") in ("verifying", "placing"):
        return "verifying"
    return row.state


def numbers(row: Download) -> dict[str, Any]:
    """Bytes, percent, speed and time left of what goes on; of what ended, how far it came."""
    progress = row.progress if row.state in (State.RUNNING, State.PAUSING, State.CANCELLING) else {}
    total, done, rate = row.bytes_total, row.bytes_done, 0.0
    phase = str(progress.get("phase") or "")
    away = row.host.lost_at is not None  # its newest word is an old one: how far it was then holds, how fast does not
    if phase in ("downloading", "verifying") and progress.get("total"):
        total, done = int(progress["total"]), int(progress.get("done") or 0)
        rate = float(progress.get("rate") or 0) if phase == "downloading" and not away else 0.0
    silent = float(progress.get("silent_s") or 0) if phase == "downloading" and not away else 0.0
    percent = min(100.0, 100 * done / total) if total and row.state != State.WAITING else None
    return {
        "done": done,
        "total": total,
        "percent": percent if row.state != State.DONE else None,
        "amount": f"{size(done)} / {size(total)}" if total and row.state != State.DONE else size(total),
        "rate": f"{size(rate)}/s" if rate else "",
        "left": duration((total - done) / rate) if rate and total > done else "",
        "left_s": round((total - done) / rate) if rate and total > done else None,
        "silent": int(silent) if silent >= SILENT_S else 0,
        "rate_bytes": round(rate),
        "trouble": wording.failure({"code": f"download.{progress['trouble']}"}) if progress.get("trouble") else None,
    }


def download_row(row: Download) -> dict[str, Any]:
    kind, word = wording.BADGES[stage(row)]
    return {
        "row": row,
        "title": str(row),
        "hub": row.get_source_display(),
        "badge": (kind, str(word)),
        "numbers": numbers(row),
        "why": wording.failure(row.refusal) if row.state == State.FAILED else None,
        "away": row.state in ACTIVE and row.host.lost_at is not None,
    }


def acts(row: Download, *, may: bool) -> dict[str, bool]:
    return {
        "can_pause": may and row.state in (State.WAITING, State.RUNNING),
        "can_resume": may and row.state in (State.PAUSED, State.FAILED, State.CANCELLED),
        "can_cancel": may and row.state in (State.WAITING, State.RUNNING, State.PAUSING, State.PAUSED, State.FAILED),
    }


def index(rows: Iterable[Download], show: str, *, first: bool, may: bool) -> dict[str, Any]:
    going = queries.going() if first else []
    return {
        "section": "models",
        "may_download": may,
        "going": [{**download_row(row), **acts(row, may=may)} for row in going],
        "rows": [download_row(row) for row in rows],
        "moving": any(row.state in ACTIVE for row in going),
        "chips": [(value, wording.SHOW[value], value == show) for value in queries.SHOW],
    }


def look_of(row: Download) -> str:
    return f"{row.job_id}-{row.state if row.state in (*OVER, State.PAUSED) else 'on'}"


def page(row: Download, *, may: bool) -> dict[str, Any]:
    going = row.state in ACTIVE
    log = getattr(row.job, "log", None)
    return {
        "section": "models",
        **download_row(row),
        **acts(row, may=may),
        "look": look_of(row),
        "going": going,
        "lead": _lead(row),
        "steps": _steps(row),
        "files": row.files[:FILES_SHOWN],
        "more_files": max(0, len(row.files) - FILES_SHOWN),
        "file_count": len(row.files),
        "mirror": "" if row.endpoint == hubs.USUAL[Source(row.source)] else row.endpoint,
        "page_url": origins.page_of(row),
        "limit": row.limit_mib_s,
        "has_log": row.job is not None and (going or bool(log and log.size)),
        "log_url": reverse("download-log", args=[row.pk]),
        "offline": offline_of(row) if row.state == State.FAILED and _is_network(row) else [],
    }


def _is_network(row: Download) -> bool:
    return (row.refusal or {}).get("code") in wording.NETWORK


def _lead(row: Download) -> str:
    host = row.host.name
    if row.state in ACTIVE and row.host.lost_at is not None:
        return str(_away(row)) % {"host": host}
    if row.state == State.WAITING and not row.job_id:
        n = queries.ahead(row)
        text = ngettext("%(n)s download is before it on %(host)s.", "%(n)s downloads are before it on %(host)s.", n)
        return text % {"n": n, "host": host} if n else _("It begins as soon as another download on the host has ended.")
    words = {
        State.WAITING: _("%(host)s has been asked and has not begun yet."),
        State.RUNNING: _("%(host)s fetches it. This page may be closed."),
        State.PAUSED: _("Paused by %(who)s. What came is kept on %(host)s."),
        State.DONE: _("It lies on %(host)s; every file was compared with the hub's sum."),
        State.CANCELLED: _("Cancelled by %(who)s. What came was deleted on %(host)s."),
    }
    return str(words.get(State(row.state), "")) % {"host": host, "who": row.moved_by or row.asked_by}


def _away(row: Download) -> str:
    """What is true of one whose host does not call: the host goes on by itself, and nobody sees it."""
    if row.state in (State.PAUSING, State.CANCELLING):
        return _("No contact with %(host)s now. It is stopped there as soon as the host is back.")
    if row.state == State.RUNNING:
        return _(
            "No contact with %(host)s now. The host goes on by itself if it can; how far it came shows when it is back."
        )
    return _("No contact with %(host)s now. It begins when the host is back.")


def _steps(row: Download) -> list[dict[str, Any]]:
    """The stages for the design system's timeline."""
    progress = row.progress
    now, passed = str(progress.get("phase") or ""), [str(code) for code in progress.get("passed") or []]
    made = []
    for code in PHASES if now != "waiting" else ("waiting", *PHASES):
        done, doing = wording.STEPS[code]
        kind = "todo"
        if row.state == State.DONE:
            kind = "yes" if code in (*passed, now) or not progress else "over"
        elif code == now and row.tries and row.state != State.WAITING:
            kind = "now" if row.state in ACTIVE else "no" if row.state == State.FAILED else "todo"
        elif code in passed:
            kind = "yes"
        detail = str(progress.get("note") or "")[:120] if kind == "now" else ""
        made.append({"kind": kind, "name": str(doing if kind == "now" else done), "detail": detail})
    return made


def offline_of(row: Download) -> list[str]:
    names = [file["path"] for file in row.files] if row.label or len(row.files) <= 12 else []
    source = Source(row.source)
    return offline.commands(
        row.source, row.endpoint, hubs.USUAL[source], row.repo, row.revision, names, row.folder, row.host.name,
        cache=row.layout == "hf_cache",
    )  # fmt: skip


# --- looking for models -----------------------------------------------------------------------------------------------


def found_rows(found: Iterable[Found]) -> list[dict[str, Any]]:
    """What a search found, each with whether it fits some host, where the hub tells the size of its weights."""
    machines = [places.machine(host, "/") for host in queries.hosts()]
    return [_found_row(item, machines) for item in found]


def _found_row(found: Found, machines: list[fits.Host]) -> dict[str, Any]:
    gguf = "gguf" in (tag.lower() for tag in found.tags) or found.repo.lower().endswith("gguf")
    return {
        "found": found,
        "downloads": count(found.downloads),
        "size": size(found.size) if found.size else "",
        "kind": " · ".join(part for part in (found.task, "GGUF" if gguf else "") if part),
        "fits": _best(found.weights, machines) if found.weights and machines and not gguf else None,
    }


def _best(weights: int, machines: list[fits.Host]) -> tuple[str, str]:
    """Kind and word of the best host, by the size alone: the choice of files says it exactly."""
    choice = picks.Choice("", "", "hf", (), weights)
    needs = fits.needs_of(choice, {})
    verdicts = {fits.fit(choice, needs, machine).verdict for machine in machines}
    kind, word = wording.FITS[next(verdict for verdict in wording.FITS if verdict in verdicts)]
    return kind, str(word)


def trouble(exc: HubTrouble) -> dict[str, Any]:
    """Why the panel got no answer, and whether it is about the network."""
    return {"words": wording.asked(exc.as_dict()), "network": exc.code in wording.NETWORK}


def search_page(hub: hubs.HubAt, text: str, *, may_team: bool) -> dict[str, Any]:
    return {
        "section": "models",
        "hub": hub,
        "hubs": hubs.every(),
        "q": text,
        "proxied": bool(hubs.proxy()),
        "starters": [] if text else starters(hub)["starters"],
        "may_team": may_team,
    }


def starters(hub: hubs.HubAt | None = None) -> dict[str, Any]:
    """What templates/models_catalog/downloads/_starters.html shows, also in an empty catalog."""
    hub = hub or hubs.at(Source.HUGGINGFACE)
    hosts = queries.hosts()
    return {"hub": hub, "starters": [starter_row(starter, hosts) for starter in STARTERS]}


def starter_row(starter: Starter, hosts: list[Host]) -> dict[str, Any]:
    """A starter with where it fits, told by its size alone; nobody is asked."""
    weight = int(starter.gib * fits.GIB)
    choice = picks.Choice(starter.key, "", "hf", (), weight)
    needs = fits.needs_of(choice, {})
    where = [host.name for host in hosts if _fits(choice, needs, host)]
    return {"starter": starter, "size": size(weight), "hosts": ", ".join(where)}


def _fits(choice: picks.Choice, needs: Needs, host: Host) -> bool:
    return fits.fit(choice, needs, places.machine(host, "/")).verdict in fits.GOOD


def best_place(hub: hubs.HubAt, choice: picks.Choice, repo: Repo) -> tuple[Host, str] | None:
    """The first host where it fits, and the first folder there that suits; None when there is none."""
    needs, version = fits.needs_of(choice, repo.config), engine_version()
    for host in queries.hosts():
        if host.facts.get("allow_download") is False or host.lost_at is not None:
            continue
        for place in places.suits(host, hub.source, choice.format):
            found = fits.fit(choice, needs, places.machine(host, place.path), version)
            if found.verdict in fits.GOOD and found.disk is not False:
                return host, place.path
    return None


# --- one repository ---------------------------------------------------------------------------------------------------


def repo_page(hub: hubs.HubAt, repo: Repo, *, chosen: str, form: Any, token: bool) -> dict[str, Any]:
    """The choices of a repository, and for each where it fits."""
    found = picks.choices(repo.files)
    hosts, version = queries.hosts(), engine_version()
    current = next((choice for choice in found if choice.key == chosen), usual(found))
    return {
        "section": "models",
        "hub": hub,
        "repo": repo,
        "found": repo.found,
        "downloads": count(repo.found.downloads),
        "choices": [_choice(choice, repo, hosts, version, current) for choice in found],
        "places": _places(hub, current, hosts) if current else [],
        "current": current,
        "form": form,
        "token": token,
        "page_url": hub.page_of(repo.found.repo),
        "default_limit": settings.BERTH_DOWNLOAD_LIMIT_MIB_S,
    }


def usual(found: list[picks.Choice]) -> picks.Choice | None:
    """The one that is marked at first: the Hugging Face kind, else Q4_K_M, else the first."""
    whole = [choice for choice in found if choice.complete] or found
    return next((c for c in whole if c.format == "hf"), None) or next(
        (c for c in whole if c.label == "Q4_K_M"), whole[0] if whole else None
    )


def _choice(
    choice: picks.Choice, repo: Repo, hosts: list[Host], version: str, current: picks.Choice | None
) -> dict[str, Any]:
    needs = fits.needs_of(choice, repo.config)
    told = []
    for host in hosts:
        where = fits.fit(choice, needs, places.machine(host, "/"), version)
        kind, word = wording.FITS[where.verdict]
        told.append({"host": host.name, "kind": kind, "word": str(word), "on": _on(where)})
    return {
        "choice": choice,
        "title": choice.label or _("Hugging Face folder"),
        "size": size(choice.size),
        "count": len(choice.files),
        "fits": told,
        "missing": ", ".join(choice.missing[:3]),
        "there": [f"{copy.host.name}: {copy.path}" for copy in there.of(repo.found.repo, choice)[:THERE_SHOWN]],
        "checked": current is not None and choice.key == current.key,
    }


def _on(found: fits.Fit) -> str:
    if not found.gpus:
        return _("in its memory, on the CPU")
    return f"{found.gpus} × {found.card}"


def _places(hub: hubs.HubAt, choice: picks.Choice, hosts: list[Host]) -> list[dict[str, Any]]:
    made = []
    for host in hosts:
        for place in places.suits(host, hub.source, choice.format):
            free = "" if place.free_mib is None else _("%(size)s free") % {"size": size(place.free_mib << 20)}
            forbidden = host.facts.get("allow_download") is False
            away = host.lost_at is not None or host.last_seen_at is None
            note = _("not allowed there") if forbidden else _("no contact now") if away else ""
            kind = _("cache of Hugging Face tools") if place.cache else ""
            words = " · ".join(part for part in (kind, free, note) if part)
            made.append({"value": f"{host.pk}:{place.path}", "text": f"{host.name}: {place.path}", "words": words,
                         "off": forbidden})  # fmt: skip
    return made


def access_page(form: Any, actor: Any, *, may_team: bool) -> dict[str, Any]:
    rows = access.of(actor)
    return {
        "section": "models",
        "form": form,
        "may_team": may_team,
        "hubs": hubs.every(),
        "tokens": [{"row": row, "can_remove": row.owner_id is not None or may_team,
                    "elsewhere": row.endpoint != hubs.at(row.source).endpoint} for row in rows],
    }  # fmt: skip
