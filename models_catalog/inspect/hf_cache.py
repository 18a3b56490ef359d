"""The layout of the Hugging Face cache: models--org--name/{blobs,refs,snapshots/<revision>}. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from models_catalog.inspect.reading import Fence, Unusable, clean, read_bounded

CACHE_FOLDER = "models--"
MAX_BLOBS = 100_000
MAX_REFS = 100


@dataclass(frozen=True)
class Snapshot:
    """One revision in the cache. `incomplete` part files belong to the download as a whole, not to a revision."""

    name: str
    revision: str
    refs: tuple[str, ...]
    has_snapshots: bool
    incomplete: int = 0


def read_cache_folder(path: str, fence: Fence) -> Snapshot | None:
    """The snapshot that a folder is; None when it is not one (…/models--org--name/snapshots/<revision>)."""
    folder = Path(path)
    repo = folder.parent.parent
    if folder.parent.name != "snapshots" or not repo.name.startswith(CACHE_FOLDER):
        return None
    if not fence.holds(os.path.realpath(repo)):
        return None
    return Snapshot(
        name=clean(repo.name.removeprefix(CACHE_FOLDER).replace("--", "/")),
        revision=clean(folder.name, 64),
        refs=_refs(repo / "refs", folder.name),
        has_snapshots=_has_snapshots(repo / "snapshots"),
        incomplete=_incomplete(repo / "blobs"),
    )


def _refs(folder: Path, revision: str) -> tuple[str, ...]:
    """The branches and tags that point to a revision."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, MAX_REFS):
                try:
                    target = read_bounded(f"{os.path.realpath(folder)}/{entry.name}", 200)
                except (OSError, Unusable):
                    continue  # a ref that cannot be read points nowhere
                if target.strip() == revision.encode("utf-8", "surrogateescape"):
                    found.append(clean(entry.name, 100))
    except OSError:
        return ()
    return tuple(sorted(found))


def _incomplete(blobs: Path) -> int:
    """Number of blobs whose download has not ended."""
    try:
        with os.scandir(blobs) as entries:
            return sum(entry.name.endswith(".incomplete") for entry in islice(entries, MAX_BLOBS))
    except OSError:
        return 0


def _has_snapshots(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(not entry.name.startswith(".") for entry in entries)
    except OSError:
        return False
