"""Settings from the environment, parsed strictly: a wrong value stops the start with one sentence.

A secret may come from a file: `NAME_FILE=/run/secrets/name` is read when `NAME` is not set.
"""

import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from panel.core.mask import mask_text

T = TypeVar("T")


class SettingError(Exception):
    """A setting that cannot be used; the text names the setting and what it takes."""


def raw(name: str) -> str | None:
    """The value of a setting, from the variable or from the file that `NAME_FILE` names; None when unset or empty."""
    value = os.environ.get(name)
    if value:
        return value
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except OSError as exc:
        raise SettingError(f"{name}_FILE={path} cannot be read: {exc.strerror}.") from exc


def _parse(name: str, default: T, parse: Callable[[str], T], takes: str) -> T:
    value = raw(name)
    if value is None:
        return default
    try:
        return parse(value)
    except ValueError as exc:
        raise SettingError(f"{name}={mask_text(value)!r} is not {takes}.") from exc


def text(name: str, default: str = "") -> str:
    return raw(name) or default


def integer(name: str, default: int, *, low: int | None = None, high: int | None = None) -> int:
    def parse(value: str) -> int:
        number = int(value)
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError
        return number

    bounds = f" between {low} and {high}" if low is not None and high is not None else ""
    return _parse(name, default, parse, f"a whole number{bounds}")


def number(name: str, default: float, *, low: float = 0.0) -> float:
    def parse(value: str) -> float:
        result = float(value)
        if result < low:
            raise ValueError
        return result

    return _parse(name, default, parse, f"a number of at least {low:g}")


def boolean(name: str, default: bool) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

    def parse(value: str) -> bool:
        if value.lower() not in words:
            raise ValueError
        return words[value.lower()]

    return _parse(name, default, parse, "1 or 0")


def choice(name: str, default: str, options: tuple[str, ...]) -> str:
    """One of a few words."""

    def parse(value: str) -> str:
        if value not in options:
            raise ValueError(value)
        return value

    return _parse(name, default, parse, f"one of {', '.join(options)}")


def words(name: str, default: list[str] | None = None) -> list[str]:
    """A comma-separated list; spaces around items are dropped."""
    value = raw(name)
    if value is None:
        return list(default or [])
    return [item.strip() for item in value.split(",") if item.strip()]


def networks(name: str, default: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Ranges of addresses, parted by commas: `10.0.0.0/8, fd00::/8`. `none` is none of them."""

    def parse(value: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        if value.strip().lower() == "none":
            return ()
        return tuple(ipaddress.ip_network(item.strip()) for item in value.split(",") if item.strip())

    return _parse(name, parse(default), parse, "a list of ranges such as 10.0.0.0/8, or none")


def path(name: str, default: Path) -> Path:
    value = raw(name)
    return Path(value).expanduser().absolute() if value else default


def address(name: str, default: str) -> tuple[str, int]:
    """Where to listen: `127.0.0.1:8080`, `[::1]:8080`, `0.0.0.0:8080`. A name is not taken: it may mean anything."""

    def parse(value: str) -> tuple[str, int]:
        host, _, port = value.rpartition(":")
        if host.startswith("[") != host.endswith("]") or not 1 <= int(port) <= 65535:
            raise ValueError
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))), int(port)

    return _parse(name, parse(default), parse, "an address and a port, such as 127.0.0.1:8080 or 0.0.0.0:8080")


def url(name: str, default: str = "") -> str:
    """An http(s) address without a path's last slash."""

    return _parse(name, default, _url, "an address such as https://berth.example.org")


def urls(name: str) -> list[str]:
    """Several http(s) addresses, parted by blanks or commas."""

    def parse(value: str) -> list[str]:
        return [_url(item) for item in value.replace(",", " ").split()]

    return _parse(name, [], parse, "a list of addresses such as https://berth.example.org")


def absolute(name: str) -> str:
    """A full path on another machine, which cannot be looked at from here; "" when unset."""

    def parse(value: str) -> str:
        if not value.startswith("/") or ".." in value.split("/") or "\0" in value:
            raise ValueError
        return value.rstrip("/") or "/"

    return _parse(name, "", parse, "a full path such as /srv/wheels")


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError
    return value.rstrip("/")
