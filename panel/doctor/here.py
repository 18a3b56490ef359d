"""What the doctor looks at on this machine: Python, packages, the data folder and who may read it, the servers."""

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.utils.translation import gettext as _

from panel import lock
from panel.core import checks, env
from panel.core.checks import NotReady
from panel.doctor import Check, Idle
from panel.embedded import Embedded, postgres_folders, valkey_binary

OLDEST_PYTHON = (3, 11)
PART = 2 << 20  # bytes; a log is written down in parts of somewhat less
# Below the data folder: what only this user may read, and folders that only this user may enter.
SECRET_FILES = ("secret.key", "agent/token", "agent/agent.json")
OWN_FOLDERS = (".", "agent", "run", "postgres", "logs", "log")
OTHERS = 0o077


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
    logs_taken()
    free = checks.disk_free(settings.BERTH_DATA)
    return _("%(folder)s, %(gib)s GiB free") % {"folder": settings.BERTH_DATA, "gib": free >> 30}


def logs_taken() -> None:
    """A log can be written down, in whatever storage logs have."""
    name = f"jobs/doctor-{os.getpid()}"
    store = storages["logs"]
    try:
        store.delete(store.save(name, ContentFile(bytes(PART))))
    except OSError as exc:
        with contextlib.suppress(OSError):
            store.delete(name)
        raise NotReady(
            "logs_refused",
            _("Logs cannot be written down: %(why)s."),
            _("Make room, or give this user the right to write there. Hosts keep the logs and send them again."),
            params={"why": exc.strerror or exc},
        ) from exc


def permissions() -> str:
    """Secrets and data are this user's alone. Every problem is told at once, with one command that mends them all."""
    data: Path = settings.BERTH_DATA
    foreign = [path for path in _own_paths(data) if path.stat().st_uid != os.getuid()]
    if foreign:
        raise NotReady(
            "foreign_files",
            _("Not owned by the user that runs this (%(user)s): %(paths)s"),
            _("Run as root: chown -R %(user)s: %(folder)s. Did someone start Berth as another user?"),
            params={"user": os.getuid(), "paths": _names(data, foreign), "folder": data},
        )
    open_files = [data / name for name in SECRET_FILES if _mode(data / name) & OTHERS]
    open_folders = [data / name for name in OWN_FOLDERS if (data / name).is_dir() and _mode(data / name) & 0o022]
    if open_files or open_folders:
        steps = [f"chmod {mode} {' '.join(map(str, paths))}" for mode, paths in
                 (("600", open_files), ("700", open_folders)) if paths]  # fmt: skip
        raise NotReady(
            "open_files",
            _("Others can read or change: %(paths)s"),
            _("Run: %(command)s. Who has read secret.key or a token may have used it."),
            params={"paths": _names(data, [*open_files, *open_folders]), "command": " && ".join(steps)},
        )
    return _("only this user can read the secrets")


def _own_paths(data: Path) -> Iterator[Path]:
    """Where a file of another user stops something: secrets, folders, what lies in them at the top."""
    for path in [
        *(data / name for name in (*SECRET_FILES, *OWN_FOLDERS)),
        *sorted(data.glob("*")),
        *data.glob("log/*"),
    ]:
        if path.exists() and not path.is_symlink():
            yield path


def _mode(path: Path) -> int:
    return path.stat().st_mode if path.exists() else 0


def _names(data: Path, paths: list[Path]) -> str:
    names = list(dict.fromkeys(str(path.relative_to(data)) if path != data else str(data) for path in paths))
    return ", ".join(names[:6]) + (" …" if len(names) > 6 else "")


def embedded_servers() -> str:
    if env.raw("DATABASE_URL") and env.raw("REDIS_URL"):
        raise Idle(_("not used: DATABASE_URL and REDIS_URL are set"))
    if not env.raw("REDIS_URL"):
        valkey_binary()
    if not env.raw("DATABASE_URL"):
        Embedded(settings.BERTH_DATA).postgres.as_user()
    return _("binaries are here (PostgreSQL %(versions)s)") % {"versions": ", ".join(map(str, postgres_folders()))}


CHECKS: list[tuple[str, Check]] = [
    ("python", python),
    ("packages", packages),
    ("data folder", data_folder),
    ("permissions", permissions),
    ("embedded servers", embedded_servers),
]
