"""Program code that a Hugging Face folder brings or points to. Pure; it is hashed and never run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from models_catalog.facts import FileFact
from models_catalog.inspect.listing import Listing
from models_catalog.inspect.reading import clean, obj, open_regular

MAX_CODE = 100  # files
MAX_BYTES = 4 << 20  # of one file that is hashed; real ones have 100 KiB


def code_files(listing: Listing) -> list[FileFact]:
    """The .py files with their SHA-256, so that a change of what an admin allowed is seen."""
    return [
        FileFact(name=clean(file.name), size=file.size, kind="code", sha256=_sha256(file.real, file.size))
        for file in listing.named(end=".py")[:MAX_CODE]
    ]


def _sha256(path: str, size: int) -> str:
    """ "" when it is too large for code, or cannot be read."""
    if size > MAX_BYTES:
        return ""
    try:
        with open_regular(path) as stream:
            return hashlib.sha256(stream.read(MAX_BYTES + 1)).hexdigest()
    except OSError:
        return ""


def needs_remote_code(*configs: dict[str, Any]) -> bool:
    """True when a configuration points to Python code that must run to load the model as its makers meant it."""
    return any(bool(obj(config.get("auto_map"))) for config in configs)


def absent_code(listing: Listing, *configs: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(repositories that auto_map takes code from, files it names that are not in the folder)."""
    elsewhere, absent = set(), set()
    for name in _references(configs):
        repository, _, place = name.rpartition("--")
        if repository:
            elsewhere.add(clean(repository))
        elif (file := place.rpartition(".")[0].replace(".", "/") + ".py") not in listing.files and "/" not in file:
            absent.add(clean(file))
    return sorted(elsewhere)[:20], sorted(absent)[:20]


def _references(configs: tuple[dict[str, Any], ...]) -> Iterator[str]:
    """The texts in auto_map: "file.Class", "org/repo--file.Class", or lists of both."""
    for config in configs:
        for value in list(obj(config.get("auto_map")).values())[:50]:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str) and "." in item:
                    yield item
