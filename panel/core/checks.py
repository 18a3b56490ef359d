"""Can the panel work here? Each check returns quietly or raises a PanelError: one sentence and the next step.

`up`, `migrate` and `doctor` share them, so that all three say the same.
"""

import errno
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import psutil
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from panel.core.env import SettingError
from panel.core.errors import PanelError
from panel.core.network import bracketed, listen_addresses

OLDEST_POSTGRES = 15
LEAST_FREE_BYTES = 1 << 30


class NotReady(PanelError):
    """Something outside the panel's code is not as it must be."""

    code = "not_ready"
    status = 503


def folder_writable(folder: Path) -> None:
    """A file can be made there."""
    probe = folder / f".write-test-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe.touch()
        probe.unlink()
    except OSError as exc:
        raise NotReady(
            "data_folder",
            _("The data folder %(folder)s cannot be used: %(why)s."),
            _("Give this user the right to write there, or choose another folder with BERTH_DATA."),
            params={"folder": folder, "why": exc.strerror},
        ) from exc


def disk_free(folder: Path) -> int:
    """Bytes free there; raises below 1 GiB, where PostgreSQL and logs soon fail."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise NotReady(
            "disk_full",
            _("Only %(mib)s MiB are free where the data folder lies."),
            _("Make room, or move the folder and name it with BERTH_DATA."),
            params={"mib": free >> 20},
        )
    return free


def port_free(host: str, port: int) -> None:
    """The web process can listen wherever it wants to."""
    for where, number in listen_addresses(host, port):
        with socket.socket(socket.AF_INET6 if ":" in where else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((where, number))
            except OSError as exc:
                raise _port_refused(where, number, exc) from exc


def _port_refused(host: str, port: int, exc: OSError) -> NotReady:
    where = f"{bracketed(host)}:{port}"
    other = _("Choose another address with BERTH_BIND, such as BERTH_BIND=%(other)s.")
    params = {"where": where, "other": f"{bracketed(host)}:{port + 1}", "why": exc.strerror, "who": _listener(port)}
    if exc.errno == errno.EADDRINUSE:
        return NotReady("port_taken", _("The address %(where)s is taken%(who)s."), other, params=params)
    if exc.errno == errno.EADDRNOTAVAIL:
        hint = _("Set BERTH_BIND to an address of this machine, or to 0.0.0.0 for all of them.")
        return NotReady("no_such_address", _("This machine has no address %(where)s."), hint, params=params)
    return NotReady("port_refused", _("The panel may not listen on %(where)s: %(why)s."), other, params=params)


def _listener(port: int) -> str:
    """` by nginx (process 12)` when this user may know it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                values = {"name": psutil.Process(connection.pid).name(), "pid": connection.pid}
                return str(_(" by %(name)s (process %(pid)s)") % values)
    except psutil.Error:
        return ""
    return ""


# --- database and broker ----------------------------------------------------------------------------------------------
def database_answers() -> str:
    """The server's version."""
    import psycopg

    from panel.core.database import own_connection

    try:
        with own_connection(connect_timeout=5) as connection:
            number = connection.info.server_version
            found = connection.execute("SHOW server_version").fetchone()
    except psycopg.OperationalError as exc:
        raise _no_database(exc) from exc
    if number < OLDEST_POSTGRES * 10000:
        raise NotReady(
            "database_old",
            _("The database is PostgreSQL %(version)s; Berth needs %(oldest)s or newer."),
            _("Upgrade it, or leave DATABASE_URL unset to use the embedded one."),
            params={"version": number // 10000, "oldest": OLDEST_POSTGRES},
        )
    return str(found[0]) if found else ""


def _no_database(exc: Exception) -> NotReady:
    embedded = str(settings.DATABASES["default"]["HOST"]).startswith("/")
    hint = (
        _("Start the panel with `make up`, which starts the embedded one, or set DATABASE_URL.")
        if embedded
        else _("Look at DATABASE_URL and at the server it names.")
    )
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    why = lines[0].removeprefix("connection failed: ").removeprefix("connection is bad: ")
    return NotReady("database_away", _("The database does not answer: %(why)s"), hint, params={"why": why})


def pending_migrations() -> int:
    """How many migrations wait. Raises when the database has some that this code does not know."""
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    ours = {app for app, _name in executor.loader.disk_migrations}
    unknown = sorted(
        f"{app}.{name}"
        for app, name in executor.loader.applied_migrations
        if app in ours and (app, name) not in executor.loader.disk_migrations
    )
    if unknown:
        raise NotReady(
            "database_newer",
            _("The database was made by a newer Berth: it has %(names)s, which this code does not know."),
            _("Start that version again, or restore a backup from before the upgrade."),
            params={"names": ", ".join(unknown[:3]) + ("…" if len(unknown) > 3 else "")},
        )
    executor.loader.check_consistent_history(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def broker_answers() -> str:
    """The broker's version."""
    import redis

    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)
    try:
        info: dict[str, Any] = client.info("server")
    except (redis.RedisError, OSError) as exc:
        raise NotReady(
            "broker_away",
            _("The message server (Valkey or Redis) does not answer: %(why)s"),
            _("Look at REDIS_URL and at the server it names, or leave it unset to use the embedded one."),
            params={"why": str(exc).splitlines()[0] if str(exc) else type(exc).__name__},
        ) from exc
    finally:
        client.close()
    return str(info.get("valkey_version") or info.get("redis_version") or "?")


# --- one sentence instead of a traceback ----------------------------------------------------------------------------
def explain(exc: BaseException) -> tuple[str, str] | None:
    """A sentence and a hint for an error that is not a fault of the code; None for one that is."""
    if isinstance(exc, PanelError):
        return exc.text, exc.hint_text
    if isinstance(exc, SettingError | ImproperlyConfigured):
        return str(exc), ""
    from django.db import DatabaseError, OperationalError
    from django.db.migrations.exceptions import BadMigrationError, InconsistentMigrationHistory

    if isinstance(exc, OperationalError):
        try:
            database_answers()  # a pool says only that it waited in vain
        except PanelError as known:
            return known.text, known.hint_text
    if isinstance(exc, DatabaseError | BadMigrationError | InconsistentMigrationHistory):
        return (
            str(_("The database is not in a state that Berth knows: %(why)s")) % {"why": str(exc).splitlines()[0]},
            str(_("Use an empty database, or restore a backup; `manage.py doctor` says more.")),
        )
    return None
