"""All models below some folders, one after the other. Pure; used by the agent, standard library and pydantic only.

Yields dicts of the shape wire.ScannedModel. After the models of a root comes one item of format "folder" for the root
itself: it says that the root was looked through, and what could not be (problems). Nothing outside the roots is read:
symbolic links are followed only to targets inside them, and no folder is entered twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models_catalog.facts import ModelFacts, Problem
from models_catalog.inspect.found import Found
from models_catalog.inspect.gguf_facts import group_gguf, inspect_gguf
from models_catalog.inspect.hf import inspect_hf
from models_catalog.inspect.hf_cache import CACHE_FOLDER, Snapshot, read_cache_folder
from models_catalog.inspect.listing import Listing, list_folder
from models_catalog.inspect.reading import Fence, clean

MAX_ENTRIES = 200_000
MAX_DEPTH = 10
MAX_PROBLEMS = 50  # of one root
MAX_PATH = 1000  # characters; the panel's column
# Folders that hold no models of their own, or copies of what lies elsewhere.
SKIPPED = frozenset({"__pycache__", "node_modules", "lost+found", "site-packages", "blobs"})
HF_HOME_SKIPPED = frozenset({"xet", "datasets", "modules", "assets", "accelerate", "metrics"})
OTHER_REPOS = ("datasets--", "spaces--", "kernels--")


def scan_roots(
    roots: list[Path], *, max_entries: int = MAX_ENTRIES, max_depth: int = MAX_DEPTH
) -> Iterator[dict[str, Any]]:
    """Models below the roots, then one "folder" item per root. Never raises for what lies on the disk.

    `max_entries` bounds the directory entries looked at in all, `max_depth` the folders within folders.
    """
    walk = _Walk(fence=Fence(str(root) for root in roots), left=max_entries, max_depth=max_depth)
    for root in dict.fromkeys(os.path.abspath(root) for root in roots):  # noqa: PTH100  (no symlink resolution wanted)
        yield from walk.root(root)


@dataclass
class _Walk:
    fence: Fence
    left: int
    max_depth: int
    entered: set[tuple[int, int]] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    current: str = ""
    models: int = 0

    def root(self, root: str) -> Iterator[dict[str, Any]]:
        self.current, self.problems, self.models = root, [], 0
        stack: list[tuple[str, int]] = [(root, 0)]
        while stack and self.left > 0:
            path, depth = stack.pop()
            listing = self.open(path)
            if listing is None:
                continue
            yield from self.models_in(listing, depth)
            below = self.below(listing, path)
            if below and depth >= self.max_depth:
                self.say("too_deep", folder=clean(path, MAX_PATH))
                continue
            stack.extend((folder, depth + 1) for folder in reversed(below))
        if self.left <= 0:
            self.problems.insert(0, Problem(code="too_many_entries"))
        yield self.folder_item(root)

    def open(self, path: str) -> Listing | None:
        """List a folder once; None when it was seen before, cannot be read, or the count of entries ran out."""
        try:
            real = os.path.realpath(path)
            if not self.fence.holds(real):
                self.say("link_outside", file=clean(path, MAX_PATH))
                return None
            info = os.stat(real)  # noqa: PTH116
            if (info.st_dev, info.st_ino) in self.entered:
                return None
            self.entered.add((info.st_dev, info.st_ino))
            entries = []
            with os.scandir(path) as found:
                for entry in found:
                    self.left -= 1
                    if self.left <= 0:
                        return None
                    entries.append(entry)
            return list_folder(path, entries, self.fence)
        except FileNotFoundError:
            self.say("root_missing" if path == self.current else "vanished", folder=clean(path, MAX_PATH))
        except NotADirectoryError:
            self.say("not_a_folder", folder=clean(path, MAX_PATH))
        except OSError as exc:
            code = "no_permission" if isinstance(exc, PermissionError) else "cannot_read"
            self.say(code, folder=clean(path, MAX_PATH))
        return None

    def below(self, listing: Listing, path: str) -> list[str]:
        """The sub-folders worth entering."""
        names = listing.folders
        if listing.has("model_index.json"):
            return []  # an image pipeline: its parts are no models of their own
        is_cache = Path(path).name.startswith(CACHE_FOLDER) and "snapshots" in names
        skipped = SKIPPED | HF_HOME_SKIPPED if Path(path).name == "huggingface" else SKIPPED
        wanted = [n for n in names if not n.startswith((".", *OTHER_REPOS)) and n not in skipped]
        if is_cache:
            wanted = ["snapshots"]
        elif ".cache" in names and not listing.has("config.json") and Path(path, ".cache", "huggingface").is_dir():
            wanted.append(".cache/huggingface")
        return [f"{path.rstrip('/')}/{name}" for name in wanted]

    def models_in(self, listing: Listing, depth: int) -> Iterator[dict[str, Any]]:
        snapshot = read_cache_folder(listing.path, self.fence)
        name = snapshot.name if snapshot else self.folder_name(listing.path, depth)
        if Path(listing.path).name.startswith(CACHE_FOLDER):
            yield from self.empty_cache(listing)
        hf = inspect_hf(listing, name=name)
        if hf is not None:
            yield from self.item(listing.path, hf, snapshot)
        for group in group_gguf(listing.named(end=".gguf")):
            found = inspect_gguf(group, listing, fallback_name=name)
            yield from self.item(f"{listing.path.rstrip('/')}/{group.parts[0].name}", found, snapshot)

    def empty_cache(self, listing: Listing) -> Iterator[dict[str, Any]]:
        """A download that has not even a snapshot yet would be invisible without this."""
        started = read_cache_folder(f"{listing.path}/snapshots/-", self.fence)
        if started and started.incomplete and not started.has_snapshots:
            found = Found(facts=ModelFacts(format="hf"), name=started.name)
            yield from self.item(listing.path, found, started)

    def folder_name(self, path: str, depth: int) -> str:
        """The folder's own name; one level deeper (publisher/model) both."""
        own = Path(path).name or path
        return clean(f"{Path(path).parent.name}/{own}" if depth == 2 else own) or "model"

    def item(self, path: str, found: Found, snapshot: Snapshot | None) -> Iterator[dict[str, Any]]:
        if len(path) > MAX_PATH:
            self.say("path_too_long", folder=clean(path, MAX_PATH))
            return
        problems, facts = list(found.problems), found.facts
        if snapshot:
            facts = facts.model_copy(update={"revision": snapshot.revision, "refs": list(snapshot.refs)})
        part_files = snapshot.incomplete if snapshot else _part_files(path)
        if part_files:
            # With everything else in place they are what an interrupted, later repeated download left behind.
            broken = found.blocked or (snapshot is not None and not snapshot.has_snapshots)
            code = "incomplete_download" if broken else "leftover_parts"
            problems.insert(0, Problem(code=code, params={"files": part_files}))
        shown = clean(path, MAX_PATH)
        if shown != path:
            problems.insert(0, Problem(code="unreadable_name"))
        self.models += 1
        yield {
            "path": shown,
            "root": clean(self.current, MAX_PATH),
            "format": facts.format,
            "name": clean(found.name) or "model",
            "size_bytes": found.size_bytes,
            "files": facts.file_count,
            "facts": facts.to_dict(),
            "problems": [problem.model_dump() for problem in problems],
        }

    def folder_item(self, root: str) -> dict[str, Any]:
        return {
            "path": clean(root, MAX_PATH),
            "root": clean(root, MAX_PATH),
            "format": "folder",
            "name": clean(Path(root).name) or "/",
            "size_bytes": 0,
            "files": self.models,
            "facts": {},
            "problems": [problem.model_dump() for problem in self.problems],
        }

    def say(self, code: str, **params: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(code=code, params=params))


def _part_files(path: str) -> int:
    """Unfinished files of a download into a plain folder, which lie in the folder's own .cache."""
    parts = Path(path) / ".cache" / "huggingface" / "download"
    try:
        with os.scandir(parts) as entries:
            return sum(entry.name.endswith(".incomplete") for entry in entries)
    except OSError:
        return 0
