"""DATABASE_URL and REDIS_URL, or the sockets of the embedded servers when they are not set."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from panel.core.env import SettingError

LONGEST_FOLDER = 107 - len("/.s.PGSQL.5432.lock")


# A page never waits longer for a statement, and a process that sleeps inside a transaction does not keep its rows.
LIMITS = "-c statement_timeout=30000 -c idle_in_transaction_session_timeout=60000"


def socket_folder(data: Path) -> Path:
    """The 0700 folder of the embedded servers' sockets; short, since a socket's path may hold 107 bytes only.

    It is `<data>/run`. When that is too long it is a folder in /tmp whose name follows from the user and the data
    folder, so that every process finds the same one; panel/embedded.py makes it and puts a symbolic link at
    `<data>/run`, and an existing link is followed (the data folder may have been moved).
    """
    run = data / "run"
    if run.is_symlink():
        return run.readlink()
    if len(os.fsencode(run)) <= LONGEST_FOLDER:
        return run
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:10]
    return Path(tempfile.gettempdir()) / f"berth-{os.getuid()}-{name}"


def database_settings(url: str, data: Path) -> dict[str, Any]:
    """Django's DATABASES entry. Only PostgreSQL; every statement has a time limit.

    Raises SettingError when the URL names another database.
    """
    settings: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"pool": {"min_size": 0, "max_size": 16, "timeout": 10}, "options": LIMITS},
    }
    if not url:
        return {**settings, "NAME": "berth", "USER": "berth", "HOST": str(socket_folder(data)), "PORT": "5432"}
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise SettingError("DATABASE_URL must begin with postgresql://; Berth works with PostgreSQL only.")
    query = dict(parse_qsl(parts.query))
    host = query.pop("host", None) or unquote(parts.hostname or "")
    settings["OPTIONS"].update(query)
    return {
        **settings,
        "NAME": unquote(parts.path.lstrip("/")) or "berth",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or ""),
    }


def redis_urls(url: str, data: Path) -> tuple[str, str]:
    """(URL for redis-py, URL for Celery). They spell a Unix socket differently."""
    if url.startswith("unix://"):
        return url, url.replace("unix://", "redis+socket://", 1)
    if url:
        return url, url
    sock = socket_folder(data) / "valkey.sock"
    return f"unix://{sock}", f"redis+socket://{sock}"
