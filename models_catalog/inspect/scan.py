"""All models below some folders, one after the other. Pure; used by the agent, standard library and pydantic only.

Yields dicts of the shape wire.ScannedModel. After the models of a root comes one item of format "folder" for the root
itself: it says that the root was looked through, and what could not be (problems). Nothing outside the roots is read:
symbolic links are followed only to targets inside them, and no folder is entered twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from models_catalog.facts import ModelFacts, Problem
from models_catalog.inspect import chat_template
from models_catalog.inspect.found import Found
from models_catalog.inspect.gguf_facts import beside, inspect_gguf
from models_catalog.inspect.gguf_split import group_gguf
from models_catalog.inspect.hf import inspect_hf
from models_catalog.inspect.hf_cache import CACHE_FOLDER, Snapshot, read_cache_folder
from models_catalog.inspect.hf_extras import not_whole_yet
from models_catalog.inspect.known import Known, sign_of
from models_catalog.inspect.listing import Listing, LocalFile, list_folder
from models_catalog.inspect.reading import Fence, clean
from models_catalog.sources.lmstudio import origin_of
from models_catalog.sources.local import source_of
from models_catalog.sources.ollama import inspect_ollama, is_store, models_of

MAX_ENTRIES = 200_000
MAX_DEPTH = 10
MAX_PROBLEMS = 50  # of one root
MAX_PATH = 1000  # characters; the panel's column
# Folders that hold no models of their own, or copies of what lies elsewhere.
SKIPPED = frozenset({"__pycache__", "node_modules", "lost+found", "site-packages", "blobs"})
HF_HOME_SKIPPED = frozenset({"xet", "datasets", "modules", "assets", "accelerate", "metrics"})
OTHER_REPOS = ("datasets--", "spaces--", "kernels--")
HIDDEN = ((".cache", "huggingface"), (".ollama", "models"), (".lmstudio", "models"))  # looked into below a home


def scan_roots(
    roots: list[Path],
    *,
    max_entries: int = MAX_ENTRIES,
    max_depth: int = MAX_DEPTH,
    known: Path | None = None,
    allowed: Sequence[Path] = (),
) -> Iterator[dict[str, Any]]:
    """Models below the roots, then one "folder" item per root. Never raises for what lies on the disk.

    `max_entries` bounds the directory entries looked at in all, `max_depth` the folders within folders. `known` is a
    file for what was found, so that the next scan opens only files that changed. Links may also lead to `allowed`.
    """
    with Known(known) as memory:
        walk = _Walk(Fence(str(root) for root in [*roots, *allowed]), max_entries, max_depth, memory)
        for root in dict.fromkeys(os.path.abspath(root) for root in roots):  # noqa: PTH100  (links stay)
            yield from walk.root(root)


@dataclass
class _Walk:
    fence: Fence
    left: int
    max_depth: int
    known: Known
    entered: set[tuple[int, int]] = field(default_factory=set)
    counted: set[object] = field(default_factory=set)  # files whose bytes a model before had already
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    current: str = ""
    models: int = 0

    def root(self, root: str) -> Iterator[dict[str, Any]]:
        self.current, self.problems, self.models, self.bytes = root, [], 0, 0
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
        if is_store(names):
            return []  # Ollama's: read by its manifests
        is_cache = Path(path).name.startswith(CACHE_FOLDER) and "snapshots" in names
        skipped = SKIPPED | HF_HOME_SKIPPED if Path(path).name == "huggingface" else SKIPPED
        wanted = [n for n in names if not n.startswith((".", *OTHER_REPOS)) and n not in skipped]
        if is_cache:
            wanted = ["snapshots"]
        elif not listing.has("config.json"):
            wanted += [f"{top}/{sub}" for top, sub in HIDDEN if top in names and Path(path, top, sub).is_dir()]
        return [f"{path.rstrip('/')}/{name}" for name in wanted]

    def models_in(self, listing: Listing, depth: int) -> Iterator[dict[str, Any]]:
        snapshot = read_cache_folder(listing.path, self.fence)
        name = snapshot.name if snapshot else self.folder_name(listing.path, depth)
        if Path(listing.path).name.startswith(CACHE_FOLDER):
            yield from self.empty_cache(listing)
        if is_store(listing.folders):
            yield from self.ollama(listing.path)
        files = list(listing.files.values())
        record = None
        if any(file.name.endswith((".json", ".safetensors")) for file in files):
            sign = sign_of(name, files, listing.problems, _stamp(listing.path, listing.folders))
            record = self.record(listing.path, sign, files, lambda: inspect_hf(listing, name=name))
        if record:
            own = [listing.files[one] for one in record["own"] if one in listing.files]
            yield from self.item(listing.path, record, own, snapshot)
        yield from self.ggufs(listing, name, snapshot)

    def ggufs(self, listing: Listing, name: str, snapshot: Snapshot | None) -> Iterator[dict[str, Any]]:
        groups = group_gguf(listing.named(end=".gguf"))
        if not groups:
            return
        around = beside(listing)
        for group in groups:
            path = f"{listing.path.rstrip('/')}/{group.parts[0].name}"
            sign = sign_of(name, group, around.mark)
            record = self.record(path, sign, group.parts, partial(inspect_gguf, group, around, fallback_name=name))
            if record and any(not_whole_yet(listing, part.name) for part in group.parts):
                record = {**record, "problems": [_unfinished(1), *record["problems"]]}
            if record:
                yield from self.item(path, record, group.parts, snapshot)

    def ollama(self, store: str) -> Iterator[dict[str, Any]]:
        for model in models_of(store, self.fence):
            self.left -= 1
            files = list(model.files.values())
            record = self.record(model.path, sign_of(model.sign), files, partial(inspect_ollama, model))
            if record:
                record["facts"] |= {"source": "ollama", "refs": [clean(name) for name in model.names]}
                yield from self.item(model.path, record, files, None)

    def record(
        self, path: str, sign: str, files: Sequence[LocalFile], make: Callable[[], Found | None]
    ) -> dict[str, Any] | None:
        """What is found of one model, as plain data; from memory when its files are as they were."""
        name = path.encode("utf-8", "surrogateescape").hex() if not path.isprintable() else path
        known = self.known.find(name, sign)
        if known is not None:
            return known or None
        found = make()
        record = plain(found) if found else {}
        newest = max((max(file.stamp[2:]) for file in files), default=0)
        self.known.keep(name, sign, record, newest)
        return record or None

    def empty_cache(self, listing: Listing) -> Iterator[dict[str, Any]]:
        """A download that has not even a snapshot yet would be invisible without this."""
        started = read_cache_folder(f"{listing.path}/snapshots/-", self.fence)
        if started and started.incomplete and not started.has_snapshots:
            found = Found(facts=ModelFacts(format="hf"), name=started.name)
            yield from self.item(listing.path, plain(found), [], started)

    def folder_name(self, path: str, depth: int) -> str:
        """The folder's own name; one level deeper (publisher/model) both."""
        own = Path(path).name or path
        return clean(f"{Path(path).parent.name}/{own}" if depth == 2 else own) or "model"

    def item(
        self, path: str, record: dict[str, Any], own: Sequence[LocalFile], snapshot: Snapshot | None
    ) -> Iterator[dict[str, Any]]:
        if len(path) > MAX_PATH:
            self.say("path_too_long", folder=clean(path, MAX_PATH))
            return
        facts: dict[str, Any] = {**record["facts"], "own_bytes": self.count(own)}
        facts["source"] = facts["source"] or source_of(path)
        facts["origin"] = facts["origin"] or (snapshot.name if snapshot else origin_of(path))
        if snapshot:
            facts |= {"revision": snapshot.revision, "refs": list(snapshot.refs)}
        problems = [*self.parts_left(path, record, snapshot), *record["problems"]]
        shown = clean(path, MAX_PATH)
        if shown != path:
            problems.insert(0, {"code": "unreadable_name", "params": {}})
        self.models += 1
        yield {
            "path": shown,
            "root": clean(self.current, MAX_PATH),
            "format": facts["format"],
            "name": record["name"],
            "size_bytes": record["size"],
            "files": facts["file_count"],
            "facts": facts,
            "problems": problems,
        }

    def parts_left(self, path: str, record: dict[str, Any], snapshot: Snapshot | None) -> list[dict[str, Any]]:
        """What a download into the cache, or into a folder by the Hub's own tool, left unfinished."""
        part_files = snapshot.incomplete if snapshot else _part_files(path)
        if not part_files or any(p["code"] == "incomplete_download" for p in record["problems"]):
            return []
        # With everything else in place they are what an interrupted, later repeated download left behind.
        broken = record["blocked"] or (snapshot is not None and not snapshot.has_snapshots)
        return [_unfinished(part_files)] if broken else [{"code": "leftover_parts", "params": {"files": part_files}}]

    def count(self, own: Sequence[LocalFile]) -> int:
        """Bytes of these files that nothing before had; links to one file count once in the whole scan."""
        fresh = {file.identity: file.size for file in own if file.identity not in self.counted}
        self.counted |= fresh.keys()
        total = sum(fresh.values())
        self.bytes += total
        return total

    def folder_item(self, root: str) -> dict[str, Any]:
        return {
            "path": clean(root, MAX_PATH),
            "root": clean(root, MAX_PATH),
            "format": "folder",
            "name": clean(Path(root).name) or "/",
            "size_bytes": self.bytes,
            "files": self.models,
            "facts": {},
            "problems": [problem.model_dump() for problem in self.problems],
        }

    def say(self, code: str, **params: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(code=code, params=params))


def plain(found: Found) -> dict[str, Any]:
    """A find as it is kept and sent."""
    return {
        "name": clean(found.name) or "model",
        "size": found.size_bytes,
        "facts": found.facts.to_dict(),
        "problems": [problem.model_dump() for problem in found.problems],
        "own": [file.name for file in found.own],
        "blocked": found.blocked,
    }


def _unfinished(parts: int) -> dict[str, Any]:
    return {"code": "incomplete_download", "params": {"files": parts}}


def _stamp(path: str, folders: list[str]) -> object:
    """Changes with the templates in the one sub-folder that belongs to a model."""
    if chat_template.FOLDER not in folders:
        return None
    try:
        with os.scandir(f"{path.rstrip('/')}/{chat_template.FOLDER}") as entries:
            seen = [(entry.name, entry.stat()) for entry in islice(entries, 200)]
        return sorted((name, info.st_size, info.st_mtime_ns) for name, info in seen)
    except OSError:
        return None


def _part_files(path: str) -> int:
    """Unfinished files of a download into a plain folder, which lie in the folder's own .cache."""
    parts = Path(path) / ".cache" / "huggingface" / "download"
    try:
        with os.scandir(parts) as entries:
            return sum(entry.name.endswith(".incomplete") for entry in entries)
    except OSError:
        return 0
