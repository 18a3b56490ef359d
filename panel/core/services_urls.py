"""DATABASE_URL and REDIS_URL, or the sockets of the embedded servers when they are not set."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from panel.core.env import SettingError


def socket_folder(data: Path) -> Path:
    """The 0700 folder of the embedded servers' sockets; short, since a socket path may hold 107 bytes only.

    `<data>/run` names it: panel/embedded.py makes that a symbolic link to a short folder when the data path is long.
    """
    return data / "run"


def database_settings(url: str, data: Path) -> dict[str, Any]:
    """Django's DATABASES entry. Only PostgreSQL; every statement has a time limit.

    Raises SettingError when the URL names another database.
    """
    settings: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"pool": {"min_size": 0, "max_size": 16, "timeout": 10}, "options": "-c statement_timeout=30000"},
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
