"""What a download may be: this host's limits, and the addresses of a hub's files. Raises guard.Refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

from panel.fleet.agent.config import is_loopback
from panel.fleet.agent.guard import Refused
from panel.fleet.agent.install_plan import is_below, without_login
from panel.fleet.wire import DownloadTask

TOKENS = {"huggingface": "HF_TOKEN", "modelscope": "MODELSCOPE_API_TOKEN"}
PROXY = "BERTH_DOWNLOAD_PROXY"
SECRETS = (*TOKENS.values(), PROXY)
OURS = ".berth-download"  # the folder of unfinished files in a plain model folder; no file of a model is called so
REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?")
REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")
COMMIT = re.compile(r"[0-9a-f]{40}")
SUMS = {"sha256": re.compile(r"[0-9a-f]{64}"), "etag": re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")}
SECRET = re.compile(r"[!-~]{1,2000}")  # of a header


def check(
    task: DownloadTask,
    *,
    allowed: bool,
    endpoints: Sequence[str] | None,
    roots: Iterable[Path],
    secrets: Mapping[str, str] | None = None,
) -> None:
    """Raises Refused when this host's owner forbids it, or when a field could mean anything else than it should.

    `endpoints`: the owner's list of hubs and proxies; None for no such list. `secrets`: None for those of the order.
    """
    if not allowed:
        raise Refused("download.forbidden")
    secrets = task.secret_env if secrets is None else secrets
    _check_secrets(secrets)
    _check_address("endpoint", task.endpoint, endpoints)
    if secrets.get(TOKENS[task.source]) and _is_open(task.endpoint):
        raise Refused("download.plain_http", endpoint=task.endpoint[:300])
    proxy = secrets.get(PROXY) or task.proxy
    if proxy:
        _check_address("proxy", without_login(proxy) if secrets.get(PROXY) else proxy, endpoints)
    _check_names(task)
    folder = Path(task.folder)
    if not folder.is_absolute() or "\0" in task.folder or not within(folder, roots):
        raise Refused("download.path_not_allowed", path=task.folder[:500])
    _check_files(task)


def _invalid(field: str) -> Refused:
    return Refused("download.order_invalid", field=field[:200])


def _check_secrets(secrets: Mapping[str, str]) -> None:
    for name, value in secrets.items():
        if name not in SECRETS:
            raise Refused("environment_not_allowed", name=name[:100])
        if value and not SECRET.fullmatch(value):
            raise _invalid(name)


def _check_address(field: str, address: str, allowed: Sequence[str] | None) -> None:
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    plain = address.isascii() and address.isprintable() and not any(sign in address for sign in " @?#\\%")
    if not good or not plain or ".." in address:
        raise _invalid(field)
    if allowed is not None and not is_below(address, allowed):
        raise Refused("download.endpoint_not_allowed", endpoint=address[:300])


def _is_open(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _check_names(task: DownloadTask) -> None:
    if not REPO.fullmatch(task.repo) or ".." in task.repo:
        raise _invalid("repo")
    for field, value in (("revision", task.revision), ("ref", task.ref)):
        parts = value.split("/")
        if (value or field == "revision") and (
            not REVISION.fullmatch(value) or ".." in value or "" in parts or value.endswith(".lock")
        ):
            raise _invalid(field)
    if task.layout == "hf_cache":
        if task.source != "huggingface" or task.name:
            raise _invalid("layout")
    elif not is_plain_path(task.name, most=3) or task.name.startswith("."):
        raise _invalid("name")


def is_plain_path(text: str, most: int = 20) -> bool:
    """A relative path that stays where it begins, with printable names only."""
    parts = text.split("/")
    good = all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= 250 for part in parts)
    return good and len(parts) <= most and text.isprintable() and "\\" not in text and OURS not in parts


def _check_files(task: DownloadTask) -> None:
    paths: set[str] = set()
    sizes: dict[str, int] = {}
    for file in task.files:
        if not is_plain_path(file.path):
            raise Refused("download.path_not_allowed", path=file.path[:500])
        for field, pattern in SUMS.items():
            value = getattr(file, field)
            if value and not pattern.fullmatch(value):
                raise _invalid(field)
        if not file.sum:  # nothing to compare it with
            raise _invalid("sha256")
        if file.path in paths or sizes.setdefault(file.sum, file.size) != file.size:
            raise _invalid("files")
        paths.add(file.path)


def within(path: Path, roots: Iterable[Path]) -> bool:
    """Whether a path, which need not be there yet, lies in (or is) one of the roots, whatever links are on the way."""
    try:
        resolved = path.resolve()
        return any(resolved.is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError):  # a loop of links, a name too long
        return False


def address_of(task: DownloadTask, path: str, revision: str) -> str:
    """Where the hub serves a file."""
    base = task.endpoint.rstrip("/")
    if task.source == "modelscope":
        query = f"Revision={quote(revision, safe='')}&FilePath={quote(path, safe='')}"
        return f"{base}/api/v1/models/{task.repo}/repo?{query}"
    return f"{base}/{task.repo}/resolve/{quote(revision, safe='')}/{quote(path)}"
