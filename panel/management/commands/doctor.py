"""Looks at everything the panel needs, one line each; the exit code is 1 when something is wrong."""

import http.client
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils import timezone
from django.utils.translation import gettext as _

from panel import lock
from panel.children import OwnerLock
from panel.core import checks, env, network
from panel.core.checks import NotReady
from panel.embedded import Embedded, postgres_folders, valkey_binary

OLDEST_PYTHON = (3, 11)
SIGNS = {"good": "✓", "bad": "✗", "idle": "–"}


class Idle(Exception):
    """Nothing to say yet: it is not started. The text says what starts it."""


@dataclass(frozen=True)
class Finding:
    name: str
    verdict: str  # good, bad or idle
    text: str
    hint: str = ""


def look(name: str, check: Callable[[], str]) -> Finding:
    """Run one check; what is not a known refusal is shown as what it is, and the next check goes on."""
    try:
        return Finding(name, "good", check())
    except Idle as idle:
        return Finding(name, "idle", str(idle))
    except Exception as exc:
        text, hint = checks.explain(exc) or (f"{type(exc).__name__}: {exc}", "")
        return Finding(name, "bad", text, hint)


# --- the checks -----------------------------------------------------------------------------------------------------
def python() -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise NotReady(
            "python_old",
            _("Python %(version)s is too old; the panel needs 3.11 or newer."),
            _("Install a newer Python, remove .venv and run `make up`."),
            params={"version": version},
        )
    own = _("in a virtual environment") if sys.prefix != sys.base_prefix else _("outside a virtual environment")
    return f"Python {version}, {own}"


def packages() -> str:
    """The installed versions are the locked ones. Entries with a marker are for other machines, or not for all."""
    groups = {"panel"} if env.raw("DATABASE_URL") and env.raw("REDIS_URL") else {"panel", "embedded"}
    entries = [entry for entry in lock.read(lock.LOCK.read_text(encoding="utf-8")) if entry.groups & groups]
    wrong = []
    for name, _sign, version in (entry.pin.partition("==") for entry in entries if ";" not in entry.pin):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = _("missing")
        if found != version:
            wrong.append(f"{name} {found} ({version})")
    if wrong:
        raise NotReady(
            "packages_differ",
            _("%(count)s packages differ from requirements.lock: %(names)s"),
            _("Run `make up`, which installs the locked ones."),
            params={"count": len(wrong), "names": ", ".join(wrong[:4]) + (" …" if len(wrong) > 4 else "")},
        )
    return _("%(count)s packages as locked") % {"count": len(entries)}


def data_folder() -> str:
    checks.folder_writable(settings.BERTH_DATA)
    free = checks.disk_free(settings.BERTH_DATA)
    return _("%(folder)s, %(gib)s GiB free") % {"folder": settings.BERTH_DATA, "gib": free >> 30}


def embedded_servers() -> str:
    if env.raw("DATABASE_URL") and env.raw("REDIS_URL"):
        raise Idle(_("not used: DATABASE_URL and REDIS_URL are set"))
    if not env.raw("REDIS_URL"):
        valkey_binary()
    if not env.raw("DATABASE_URL"):
        Embedded(settings.BERTH_DATA).postgres.as_user()
    return _("binaries are here (PostgreSQL %(versions)s)") % {"versions": ", ".join(map(str, postgres_folders()))}


def running() -> int | None:
    """Pid of the `up` that owns this data folder."""
    return OwnerLock(settings.BERTH_DATA / "up.lock").owner()


def web() -> str:
    address = f"{network.bracketed(settings.BERTH_BIND_HOST)}:{settings.BERTH_PORT}"
    if running() is None:
        checks.port_free(settings.BERTH_BIND_HOST, settings.BERTH_PORT)
        raise Idle(_("not running; the address %(address)s is free. `make up` starts it.") % {"address": address})
    host, _colon, port = settings.BERTH_INTERNAL_URL.rpartition("//")[2].rpartition(":")
    asked = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=5)
    try:
        asked.request("GET", "/healthz")
        status = asked.getresponse().status
    except OSError as exc:
        status = 0
        why = exc.strerror or str(exc)
    else:
        why = f"HTTP {status}"
    finally:
        asked.close()
    if status != 200:
        hint = _("Its log is %(log)s.") % {"log": settings.BERTH_DATA / "log" / "web.log"}
        text = _("The web process does not answer at %(address)s: %(why)s")
        raise NotReady("web_away", text, hint, params={"address": address, "why": why})
    return settings.BERTH_PUBLIC_URL


def _needs_up(name: str) -> None:
    """An embedded server lives only while `up` does."""
    if not env.raw(name) and running() is None:
        raise Idle(_("embedded, not running; `make up` starts it"))


def database() -> str:
    _needs_up("DATABASE_URL")
    version = checks.database_answers()
    if waiting := checks.pending_migrations():
        raise NotReady(
            "migrations_wait",
            _("%(count)s migrations wait."),
            _("`make up` applies them, or run `manage.py migrate`."),
            params={"count": waiting},
        )
    return _("PostgreSQL %(version)s, all migrations applied") % {"version": version}


def broker() -> str:
    _needs_up("REDIS_URL")
    return _("answers, version %(version)s") % {"version": checks.broker_answers()}


def agent() -> str:
    if not settings.BERTH_LOCAL_AGENT:
        raise Idle(_("not used: BERTH_LOCAL_AGENT=0"))
    _needs_up("DATABASE_URL")
    try:
        checks.database_answers()
    except NotReady:
        raise Idle(_("cannot be looked up without the database")) from None
    from panel.fleet.models import Host

    host = Host.objects.filter(is_local=True).first()
    if host is None or host.last_seen_at is None:
        raise NotReady("agent_unseen", _("The agent of this machine has never reported."), _agent_hint())
    age = (timezone.now() - host.last_seen_at).total_seconds()
    if age > settings.BERTH_HOST_LOST_S:
        text = _("The agent of this machine was last seen %(age)s s ago.")
        raise NotReady("agent_silent", text, _agent_hint(), params={"age": round(age)})
    return _("reported %(age)s s ago as %(name)s") % {"age": round(age), "name": host.name}


def _agent_hint() -> str:
    return _("`make up` starts it; its log is %(log)s.") % {"log": settings.BERTH_DATA / "log" / "agent.log"}


CHECKS: list[tuple[str, Callable[[], str]]] = [
    ("python", python),
    ("packages", packages),
    ("data folder", data_folder),
    ("embedded servers", embedded_servers),
    ("web", web),
    ("database", database),
    ("message server", broker),
    ("agent", agent),
]


class Command(BaseCommand):
    help = "Check everything the panel needs; one line each, with the next step where something is wrong."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        findings = [look(name, check) for name, check in CHECKS]
        for finding in findings:
            self.stdout.write(f"{SIGNS[finding.verdict]} {finding.name}: {finding.text}")
            if finding.hint:
                self.stdout.write(f"    {finding.hint}")
        if any(finding.verdict == "bad" for finding in findings):
            raise SystemExit(1)
