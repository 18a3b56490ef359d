"""What the engines' pages show, made ready for the templates: words, badges, steps. Reads only."""

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from panel.core.numbers import duration, gib
from panel.fleet import samples
from panel.fleet.agent.install_plan import download_commands, release
from panel.fleet.models import Host, InstallState, Runtime, RuntimeInstall
from panel.fleet.runtimes import install_checks, queries, sources, users, wording
from panel.fleet.runtimes.services import ACTIVE, REMOVABLE
from panel.fleet.runtimes.users import Use
from panel.fleet.wording import DEVICES, ENGINES
from panel.fleet.wording import engine as engine_name

USES_SHOWN = 8  # of one engine in the list; the page that removes it shows all
PHASES = ("checking", "downloading", "installing", "extras", "verifying", "trying")
OVER = (InstallState.DONE, InstallState.FAILED, InstallState.CANCELLED)


# --- all engines ------------------------------------------------------------------------------------------------------


def index(rows: Iterable[Runtime], *, first: bool, may_manage: bool) -> dict[str, Any]:
    """Hosts with the engines of this slice of the list; on the first one also hosts that have none."""
    shown = list(rows)
    uses = users.of(row.pk for row in shown)
    hosts = {host.pk: host for host in queries.hosts()}
    by_host: dict[int, list[dict[str, Any]]] = {pk: [] for pk in hosts} if first else {}
    for row in sorted(shown, key=_rank):
        by_host.setdefault(row.host_id, []).append(runtime_row(row, uses.get(row.pk, []), may_manage=may_manage))
    searching = queries.searching()
    going = queries.going()
    return {
        "section": "runtimes",
        "may_manage": may_manage,
        "hosts": [_host(hosts[pk], found, searching) for pk, found in by_host.items() if pk in hosts],
        "going": [install_row(row) for row in going],
        "recent": [install_row(row) for row in queries.recent()] if first else [],
        "moving": bool(going or searching),
    }


def _rank(row: Runtime) -> tuple[Any, ...]:
    """vLLM first, what is there before what is gone, the newest before the older ones."""
    kinds = list(ENGINES)
    kind = kinds.index(row.engine) if row.engine in kinds else len(kinds)
    return (kind, not row.present, [-part for part in release(row.version)] or [1], row.executable)


def _host(host: Host, engines: list[dict[str, Any]], searching: set[int]) -> dict[str, Any]:
    gpus = [gpu.name for gpu in host.gpus.all()]
    parts = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)] or [_("no GPU")]
    driver = host.facts.get("cuda_driver_version")
    return {
        "host": host,
        "engines": engines,
        "searching": host.pk in searching,
        "away": host.last_seen_at is None or host.lost_at is not None,
        "subtitle": " · ".join([*parts, *([f"CUDA {driver}"] if driver else [])]) if host.facts else "",
    }


def runtime_row(row: Runtime, uses: list[Use], *, may_manage: bool) -> dict[str, Any]:
    """One engine of the list."""
    removing = row.remove_job_id is not None
    facts = [
        f"Python {row.python}" if row.python else "",
        ", ".join(map(str, row.plugins)),
        str(wording.ORIGINS.get(row.origin, row.origin)),
        _settings_word(getattr(row, "flag_count", 0)),
    ]
    failed = wording.failure(row.remove_refusal) if row.remove_refusal else None
    return {
        "row": row,
        "name": engine_name(row),
        "badge": _badge(row),
        "facts": " · ".join(part for part in facts if part),
        "why": wording.failure(row.refusal) if row.refusal else None,
        "remove_failed": failed,
        "uses": [{"use": use, "word": wording.USES[use.kind]} for use in uses[:USES_SHOWN]],
        "more_uses": max(0, len(uses) - USES_SHOWN),
        "can_remove": may_manage and row.origin in REMOVABLE and row.present and not removing,
    }


def _settings_word(count: int) -> str:
    """How many settings its own parser knows."""
    return ngettext("%(n)s setting", "%(n)s settings", count) % {"n": count} if count else ""


def _badge(row: Runtime) -> tuple[str, str]:
    if row.remove_job_id is not None:
        return "busy", _("Being removed")
    if not row.present:
        return "off", _("Not found any more")
    if row.refusal and row.refusal.get("code") == "engine_not_used_yet":
        return "off", _("Found, not used yet")
    return ("bad", _("Does not work")) if row.refusal else ("ok", _("Works"))


def title(row: RuntimeInstall) -> str:
    """ "vLLM 0.32.0 for CPU", as it was asked for."""
    version = {"": _("newest"), sources.NIGHTLY: _("nightly")}.get(row.version, row.version)
    return f"{ENGINES.get(row.engine, row.engine)} {version} {DEVICES.get(row.variant, '')}".strip()


def install_row(row: RuntimeInstall) -> dict[str, Any]:
    kind, word = wording.BADGES[row.state]
    now = row.steps[-1] if row.steps and row.state in ACTIVE else None
    return {
        "row": row,
        "title": title(row),
        "badge": (kind, str(word)),
        "now": str(wording.STEPS[now["code"]][1]) if now and now["code"] in wording.STEPS else "",
        "percent": _percent(now) if now else None,
        "why": wording.failure(row.refusal) if row.state == InstallState.FAILED else None,
    }


def _percent(step: dict[str, Any]) -> float | None:
    done, total = step.get("done") or 0, step.get("total") or 0
    return min(100.0, 100 * done / total) if total else None


# --- one install ------------------------------------------------------------------------------------------------------


def look_of(row: RuntimeInstall) -> str:
    """What the page's frame is made of: the try whose log it follows, and whether that is over."""
    return f"{row.job_id}-{row.state if row.state in OVER else 'on'}"


def install_page(row: RuntimeInstall, *, may_manage: bool) -> dict[str, Any]:
    going = row.state in ACTIVE
    size = row.job.log.size if row.job is not None and hasattr(row.job, "log") else 0
    return {
        "section": "runtimes",
        **install_row(row),
        "look": look_of(row),
        "going": going,
        "lead": _lead(row),
        "deadline": _deadline(row) if going else "",
        "steps": install_steps(row),
        "so_far": duration((timezone.now() - row.began_at).total_seconds()) if going and row.began_at else "",
        "stalled": _stalled(row) if row.state == InstallState.RUNNING else 0,
        "line": str((row.refusal or {}).get("params", {}).get("line") or ""),
        "extras": ", ".join(str(wording.EXTRAS.get(extra, extra)) for extra in row.extras),
        "settings": sources.shown_settings(row.version),
        "runtime": runtime_row(row.runtime, [], may_manage=False) if row.runtime is not None else None,
        "can_cancel": may_manage and row.state in (InstallState.WAITING, InstallState.RUNNING),
        "can_try_again": may_manage and row.state in (InstallState.FAILED, InstallState.CANCELLED),
        "has_log": size > 0 or going,
        "log_url": reverse("runtime-install-log", args=[row.pk]),
        "log_file": reverse("runtime-install-log-file", args=[row.pk]),
    }


def _lead(row: RuntimeInstall) -> str:
    host = row.host.name
    if row.state in ACTIVE and row.host.lost_at is not None:
        return _("No contact with %(host)s now. It goes on when the host is back.") % {"host": host}
    words = {
        InstallState.WAITING: _("%(host)s has been asked and has not begun yet.") % {"host": host},
        InstallState.RUNNING: _("It is being installed on %(host)s.") % {"host": host},
        InstallState.CANCELLING: _("It is being cancelled."),
        InstallState.DONE: _("It is installed on %(host)s and was verified.") % {"host": host},
        InstallState.CANCELLED: _("It was cancelled. Nothing of it is used."),
    }
    return words.get(InstallState(row.state), "")


def _deadline(row: RuntimeInstall) -> str:
    if row.deadline_at is None:
        return ""
    minutes = max(1, round((row.deadline_at - timezone.now()).total_seconds() / 60))
    text = ngettext(
        "If it is not done within %(n)s min, Berth ends it and says here why.",
        "If it is not done within %(n)s min, Berth ends it and says here why.",
        minutes,
    )
    return text % {"n": minutes}


def _stalled(row: RuntimeInstall) -> int:
    """Minutes without a sign of life, once they are many."""
    samples.freshen(row.job)
    since = row.job.status.get("still_since") if row.job is not None else None
    seconds = timezone.now().timestamp() - since if since else 0.0
    return int(seconds // 60) if seconds > settings.BERTH_STALL_S else 0


def planned(row: RuntimeInstall) -> list[str]:
    """The phases that this install goes through."""
    left_out = {"extras"} if not row.extras else set()
    left_out |= {"trying"} if row.variant != "cpu" else set()
    seen = {step["code"] for step in row.steps}
    return [code for code in PHASES if code in seen or code not in left_out]


def install_steps(row: RuntimeInstall) -> list[dict[str, Any]]:
    """The steps for the design system's timeline."""
    known = {step["code"]: step for step in row.steps}
    last = row.steps[-1]["code"] if row.steps else ""
    codes = planned(row)
    reached = max((at for at, code in enumerate(codes) if code in known), default=-1)
    over = len(codes) if row.state == InstallState.DONE else reached  # what lies before was not needed
    return [_step(row, code, known.get(code), is_last=code == last, passed=at < over) for at, code in enumerate(codes)]


def _step(
    row: RuntimeInstall, code: str, step: dict[str, Any] | None, *, is_last: bool, passed: bool
) -> dict[str, Any]:
    done, doing = wording.STEPS[code]
    if step is None:
        kind = "over" if passed else "todo"
        detail = _("not needed here") if kind == "over" else ""
        return {"kind": kind, "name": str(done), "detail": detail, "took": "", "value": None}
    open_end = is_last and step["end"] is None
    kind = "yes" if not open_end else "now" if row.state in ACTIVE else "no"
    until = step["end"] or (row.ended_at or timezone.now()).timestamp()
    return {
        "kind": kind,
        "name": str(done if kind == "yes" else doing),
        "detail": _detail(step),
        "took": duration(until - step["start"]),
        "value": _percent(step) if kind == "now" else None,
    }


def _detail(step: dict[str, Any]) -> str:
    parts = []
    if step.get("total"):
        parts.append(f"{step.get('done') or 0} / {step['total']}")
    if step.get("note"):
        parts.append(str(step["note"]))
    return " · ".join(parts)


# --- the form ---------------------------------------------------------------------------------------------------------


def first_values(host: Host | None, variant: str = "", version: str = "") -> dict[str, Any]:
    """The form as it opens: the variant that suits the host, and the version that Berth was tested with."""
    has_gpu = host is not None and any(True for _gpu in host.gpus.all())
    kind = variant if variant in install_checks.VARIANTS else ""
    suits = install_checks.preselected(host, has_gpu=has_gpu) if host is not None else "cpu"
    return {"host": host, "variant": kind or suits, "version": version or install_checks.GOOD_VERSION}


def form_page(form: Any, host: Host | None) -> dict[str, Any]:
    return {
        "section": "runtimes",
        "form": form,
        "good": install_checks.GOOD_VERSION,
        "has_hosts": host is not None,
        "chosen_extras": form["extras"].value() or [],
    }


def plan(host: Host, variant: str, version: str, extras: list[str]) -> dict[str, Any]:
    """What would be looked at and used, before anything is ordered."""
    checks = install_checks.checks(host, variant, version)
    folder = sources.current().wheel_folder
    python = "python" + ".".join(str(host.facts.get("python", "3.12")).split(".")[:2])
    commands = download_commands(variant, version, folder or sources.DEFAULT_FOLDER, extras, python)
    return {
        "host": host,
        "away": host.lost_at is not None or host.last_seen_at is None,
        "checks": [_check(check) for check in checks],
        "refused": [wording.failure(check.refusal()) for check in checks if check.ok is False],
        "settings": sources.shown_settings(version),
        "folder": folder,
        "commands": "\n".join(sources.quoted(command) for command in commands),
        "machine": host.facts.get("machine", ""),
        "cpu_build": variant == "cpu",
    }


def _check(check: install_checks.Check) -> dict[str, Any]:
    """One line of the list: the badge's icon and what is so."""
    kind = {True: "ok", False: "bad", None: "wait"}[check.ok]
    params = {
        **check.params,
        **{key: gib(check.params[key]) for key in ("need_mib", "free_mib") if key in check.params},
    }
    good, unknown = wording.CHECKS[check.code]
    shown = {key: "—" if value in (None, "") else value for key, value in params.items()}
    return {"kind": kind, "text": str(good if check.ok else unknown) % shown if check.ok is not False else ""}


# --- folders and removal ----------------------------------------------------------------------------------------------


def removal(row: Runtime) -> dict[str, Any]:
    """What uses an engine that someone wants to remove."""
    uses = users.of([row.pk]).get(row.pk, [])
    return {
        "section": "runtimes",
        **runtime_row(row, uses, may_manage=True),
        "running": [use for use in uses if use.kind == "running"],
        "chosen": [use for use in uses if use.kind == "chosen"],
        "last": [use for use in uses if use.kind == "last"],
    }
