"""Bounded, careful reading: what every inspector uses to touch a disk that may hold anything. Pure.

A name may be a pipe that never answers, a link out of the allowed folders, a JSON that nests for ever.
"""

from __future__ import annotations

import json
import os
import stat
import unicodedata
from collections.abc import Iterable
from typing import Any, BinaryIO

from models_catalog.facts import Problem

MAX_JSON = 8 << 20  # bytes of one configuration file; tokenizer_config.json reaches 1 MiB in practice
MAX_INT = 1 << 53
LFS_MARK = b"version https://git-lfs"


class Unusable(Exception):
    """A file that cannot be used, as a problem."""

    def __init__(self, code: str, **params: Any) -> None:
        super().__init__(code)
        self.problem = Problem(code=code, params=params)


class Fence:
    """The folders outside of which nothing is read, whatever a symbolic link says."""

    def __init__(self, roots: Iterable[str]) -> None:
        self.roots = tuple(os.path.realpath(root) for root in roots)

    def holds(self, real: str) -> bool:
        """Whether a resolved path lies in one of the folders."""
        return any(real == root or real.startswith(root.rstrip("/") + "/") for root in self.roots)


def open_regular(path: str) -> BinaryIO:
    """Open a resolved path for reading; a pipe, socket, device or last-minute link raises OSError, and never blocks."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"not a regular file: {path}")
    return os.fdopen(fd, "rb")


def read_bounded(path: str, limit: int = MAX_JSON) -> bytes:
    """The whole file, at most `limit` bytes. Raises Unusable (header_too_large) beyond it, OSError when unreadable."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise Unusable("header_too_large", file=clean(path.rpartition("/")[2]), limit=limit)
    return data


def read_json_object(path: str, *, code: str = "bad_config", limit: int = MAX_JSON) -> dict[str, Any]:
    """A JSON object from a file. Raises Unusable with `code` when it is not one, OSError when unreadable."""
    name = clean(path.rpartition("/")[2])
    data = read_bounded(path, limit)
    if not data.strip():
        raise Unusable("zero_bytes", file=name)
    if data.startswith(LFS_MARK):
        raise Unusable("lfs_pointer", file=name)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise Unusable(code, file=name) from exc
    if not isinstance(value, dict):
        raise Unusable(code, file=name)
    return value


def clean(value: object, limit: int = 200) -> str:
    """Text that every database and page takes: no control characters, no half characters, bounded. "" if not text."""
    if not isinstance(value, str):
        return ""
    if value.isprintable():  # nearly always: nothing to take out
        return value[:limit].strip()
    text = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value[: limit * 2])
    return "".join(c for c in text if unicodedata.category(c) != "Cc")[:limit].strip()


def whole(value: object, *, low: int = 1) -> int | None:
    """A sane whole number, else None. True is not a number here."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value < MAX_INT:
        return value
    return None


def real(value: object) -> float | None:
    """A sane number, else None. Seven significant digits: a 32-bit number read as it was written."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        return None
    return float(f"{value:.7g}")


def first_whole(source: dict[str, Any], *names: str, low: int = 1) -> tuple[int | None, str]:
    """(value, name) of the first of these keys that holds a sane whole number, else (None, "")."""
    for name in names:
        number = whole(source.get(name), low=low)
        if number is not None:
            return number, name
    return None, ""


def texts(value: object, limit: int = 20) -> list[str]:
    """The texts of a list, cleaned and bounded."""
    if not isinstance(value, list):
        return []
    return [text for item in value[:limit] if (text := clean(item))]


def obj(value: object) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}
