"""The agent's own settings: one file that only this user may write, and the limits in it bind the panel too."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from models_catalog.sources.local import usual_folders
from panel.fleet.agent.pins import is_pin

log = logging.getLogger(__name__)


class ConfigError(Exception):
    """The settings cannot be used; the text is one sentence for the terminal."""


@dataclass(frozen=True)
class Config:
    """agent.json. `runtimes` are executables the owner of this host vouches for, whatever their names.

    `model_roots` are the folders that models may lie in: the usual ones where nothing was said, and `added_roots`.
    `allow_flags` and `allow_env` lift single entries of the deny lists of guard.py. Log bounds are upper limits, MiB.
    """

    folder: Path
    panel: str = ""
    token: str = field(default="", repr=False)
    ca_file: str | None = None
    panel_pin: str = ""  # the panel's certificate when no authority vouches for it, see pins.py
    plain_http: bool = False  # True lets the panel be reached without TLS outside this machine
    host_id: int = 0  # this host's number at the panel, to notice that it became another one
    instance: str = ""  # this process, see seat.py; never in the file
    model_roots: list[Path] = field(default_factory=list)
    runtimes: list[Path] = field(default_factory=list)
    engine_cache: Path | None = None
    remote_code: bool = True  # False forbids --trust-remote-code even where the panel's admin allowed it
    allow_flags: list[str] = field(default_factory=list)
    allow_env: list[str] = field(default_factory=list)
    log_head_mib: int = 64
    log_tail_mib: int = 1024
    max_jobs: int = 100
    door_bind: str = "0.0.0.0:8443"  # where this host's door listens; "" for no door. Taken: the next free port
    door_address: str = ""  # where the panel reaches it; "" for this machine's address on the way to the panel
    report_s: float = 10.0
    allow_install: bool = True  # False: the panel may neither install nor remove engines here
    install_sources: list[str] | None = None  # addresses and folders that an install may name; None: any
    allow_download: bool = True  # False: the panel may fetch no models to this host
    download_endpoints: list[str] | None = None  # addresses of hubs (and proxies) that a download may name; None: any
    allow_delete: bool = True  # False: the panel may delete no models here
    delete_from_programs: bool = False  # True: also out of Ollama's and LM Studio's folders

    @property
    def managed_folder(self) -> Path:
        """Where installed engines live; with `engine_cache` beside the prepared ones."""
        return self.engine_cache or self.folder.absolute() / "engines"

    def current_roots(self) -> list[Path]:
        """`model_roots` as agent.json says now: a folder that its owner adds counts without a restart."""
        path = self.folder / "agent.json"
        if not path.exists():
            return self.model_roots
        try:
            return _roots(_checked(path), os.environ, self.engine_cache)
        except ConfigError as exc:
            log.warning("the folders stay as they were: %s", exc)
            return self.model_roots

    @property
    def work_url(self) -> str:
        return self.panel.rstrip("/") + "/agent/v1/"


def default_roots(env: Mapping[str, str]) -> list[Path]:
    """Where models lie when nothing was said: the Hugging Face cache, ~/models, and other programs' folders."""
    return usual_folders(env)


def load(folder: Path, env: Mapping[str, str] | None = None, *, with_panel: bool = True) -> Config:
    """Read agent.json and the token. Raises ConfigError with one sentence."""
    env = os.environ if env is None else env
    path = folder / "agent.json"
    raw = _checked(path)
    cache = raw.get("engine_cache") or env.get("BERTH_ENGINE_CACHE")
    own = ("token_file", "model_roots", "added_roots", "runtimes", "engine_cache")
    plain = {k: v for k, v in raw.items() if k not in own}
    engine_cache = Path(cache).expanduser() if cache else None
    config = Config(
        folder=folder,
        token=_token(folder, raw.get("token_file", "token")) if with_panel else "",
        model_roots=_roots(raw, env, engine_cache),
        runtimes=[Path(p).expanduser() for p in raw.get("runtimes", [])],
        engine_cache=engine_cache,
        **plain,
    )
    if with_panel:
        check_panel_url(config.panel, plain_http=config.plain_http)
    return config


def _checked(path: Path) -> dict[str, Any]:
    """agent.json with known names and kinds of values only."""
    raw = _read(path)
    unknown = set(raw) - set(FIELDS)
    if unknown:
        raise ConfigError(f"{path}: unknown setting {sorted(unknown)[0]!r}.")
    for name, value in raw.items():
        if not FIELDS[name](value):
            raise ConfigError(f"{path}: {name} has a value of the wrong kind.")
    return raw


def _roots(raw: Mapping[str, Any], env: Mapping[str, str], engine_cache: Path | None) -> list[Path]:
    """The folders that models may lie in; where none are named, also the one that `make engine` fills."""
    if "model_roots" in raw:
        roots = [Path(p).expanduser() for p in raw["model_roots"]]
    else:
        roots = [*default_roots(env), *([engine_cache / "models"] if engine_cache else [])]
    return list(dict.fromkeys([*roots, *(Path(p).expanduser() for p in raw.get("added_roots", []))]))


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


FIELDS: dict[str, Any] = {
    "panel": _is_text,
    "token_file": _is_text,
    "ca_file": lambda value: value is None or isinstance(value, str),
    "panel_pin": lambda value: isinstance(value, str) and (not value or is_pin(value)),
    "plain_http": lambda value: isinstance(value, bool),
    "host_id": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "model_roots": _is_list,
    "added_roots": _is_list,
    "runtimes": _is_list,
    "engine_cache": lambda value: value is None or isinstance(value, str),
    "remote_code": lambda value: isinstance(value, bool),
    "allow_flags": _is_list,
    "allow_env": _is_list,
    "log_head_mib": _is_count,
    "log_tail_mib": _is_count,
    "max_jobs": _is_count,
    "door_bind": lambda value: (
        isinstance(value, str) and (not value or re.fullmatch(r"\S+:\d{1,5}", value) is not None)
    ),
    "door_address": lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9.:_-]{0,253}", value) is not None,
    "report_s": lambda value: isinstance(value, int | float) and value > 0,
    "allow_install": lambda value: isinstance(value, bool),
    "install_sources": lambda value: value is None or _is_list(value),
    "allow_download": lambda value: isinstance(value, bool),
    "download_endpoints": lambda value: value is None or _is_list(value),
    "allow_delete": lambda value: isinstance(value, bool),
    "delete_from_programs": lambda value: isinstance(value, bool),
}


def _private(path: Path, forbidden: int) -> None:
    mode = path.stat()
    if mode.st_uid not in (os.getuid(), 0) or stat.S_IMODE(mode.st_mode) & forbidden:
        raise ConfigError(f"{path} must belong to this user with mode 0600.")


def _read(path: Path) -> dict[str, Any]:
    try:
        _private(path, 0o022)
        raw = json.loads(path.read_text())
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.") from exc
    except ValueError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}.") from exc
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} does not hold settings.")
    return raw


def _token(folder: Path, name: str) -> str:
    path = folder / name
    try:
        _private(path, 0o077)
        token = path.read_text().strip()
    except OSError as exc:
        raise ConfigError(f"The host token {path} cannot be read: {exc.strerror}.") from exc
    if not token or len(token) > 512 or not token.isascii() or any(c.isspace() for c in token):
        raise ConfigError(f"{path} does not hold a host token.")
    return token


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_panel_url(url: str, *, plain_http: bool = False) -> None:
    """TLS outside loopback: the panel can start processes here, so nobody may stand in between."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"panel={url!r} is not the address of a panel.")
    if parts.scheme == "http" and not plain_http and not is_loopback(parts.hostname):
        raise ConfigError(f"panel={url!r} must be https outside this machine.")
