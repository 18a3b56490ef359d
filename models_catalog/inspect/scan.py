"""All models below some folders, one after the other. Pure; used by the agent, standard library and pydantic only.

Yields dicts of the shape wire.ScannedModel; facts that are not known are left out. After the models of a root comes one
item of format "folder" for the root itself: it says that the root was looked through, what could not be (problems), and
how many bytes its models take, each file counted once. Nothing outside the roots is read: symbolic links are followed
only to targets inside them, and no folder is entered twice.
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
from models_catalog.inspect.gguf_facts import Beside, beside, inspect_gguf, projectors
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
MAX_PARTS = 10_000
MAX_PROBLEMS = 50  # of one root
MAX_TEXTS = 3 << 20  # characters of all templates in one scan, whose result is one message
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
    texts: int = MAX_TEXTS

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
        if Path(listing.path).name.startswith(CACHE_FOLDER):
            yield from self.empty_cache(listing)
        if is_store(listing.folders):
            yield from self.ollama(listing.path)
        if not listing.files:
            return
        name = snapshot.name if snapshot else self.folder_name(listing.path, depth)
        place = _Place(listing, name, snapshot)
        files = list(listing.files.values())
        if any(file.name.endswith((".json", ".safetensors")) for file in files):
            sign = sign_of(name, files, listing.problems, _stamp(listing.path, listing.folders))
            record = self.record(listing.path, sign, files, lambda: inspect_hf(listing, name=name))
            if record:
                own = [listing.files[one] for one in record["own"] if one in listing.files]
                yield from self.item(place, listing.path, record, own)
        yield from self.ggufs(place)

    def ggufs(self, place: _Place) -> Iterator[dict[str, Any]]:
        listing = place.listing
        groups = group_gguf(listing.named(end=".gguf"))
        around = self.around(listing) if groups else Beside()
        for group in groups:
            path = f"{listing.path.rstrip('/')}/{group.parts[0].name}"
            sign = sign_of(place.name, group, around)
            make = partial(inspect_gguf, group, around, fallback_name=place.name)
            record = self.record(path, sign, group.parts, make)
            if record and any(not_whole_yet(listing, part.name) for part in group.parts):
                record = {**record, "problems": [_unfinished(1), *record["problems"]]}
            if record:
                yield from self.item(place, path, record, group.parts)

    def around(self, listing: Listing) -> Beside:
        """What lies beside the GGUF files of a folder; the file that sees for them is opened once in its life."""
        eyes = projectors(listing)
        if not eyes:
            return beside(listing)
        name, sign = f"{listing.path}/*", sign_of(eyes, sorted(listing.files))
        known = self.known.find(name, sign)
        if known is not None:
            return Beside(known["config"], known["projector"], tuple(known["inputs"]))
        found = beside(listing)
        record = {"config": found.config, "projector": found.projector, "inputs": found.inputs}
        self.known.keep(name, sign, record, _newest(eyes))
        return found

    def ollama(self, store: str) -> Iterator[dict[str, Any]]:
        place = _Place(Listing(store), "", None)
        for model in models_of(store, self.fence):
            self.left -= 1
            files = list(model.files.values())
            record = self.record(model.path, sign_of(model.sign), files, partial(inspect_ollama, model))
            if record:
                own = {"source": "ollama", "refs": [clean(name) for name in model.names]}
                yield from self.item(place, model.path, {**record, "facts": record["facts"] | own}, files)

    def record(
        self, path: str, sign: str, files: Sequence[LocalFile], make: Callable[[], Found | None]
    ) -> dict[str, Any] | None:
        """What is found of one model, as plain data; from memory when its files are as they were."""
        name = path if path.isprintable() else path.encode("utf-8", "surrogateescape").hex()
        known = self.known.find(name, sign)
        if known is not None:
            return known or None
        found = make()
        record = plain(found) if found else {}
        self.known.keep(name, sign, record, _newest(files))
        return record or None

    def empty_cache(self, listing: Listing) -> Iterator[dict[str, Any]]:
        """A download that has not even a snapshot yet would be invisible without this."""
        started = read_cache_folder(f"{listing.path}/snapshots/-", self.fence)
        if started and started.incomplete and not started.has_snapshots:
            found = Found(facts=ModelFacts(format="hf"), name=started.name)
            yield from self.item(_Place(listing, started.name, started), listing.path, plain(found), [])

    def folder_name(self, path: str, depth: int) -> str:
        """The folder's own name; one level deeper (publisher/model) both."""
        own = Path(path).name or path
        return clean(f"{Path(path).parent.name}/{own}" if depth == 2 else own) or "model"

    def item(
        self, place: _Place, path: str, record: dict[str, Any], own: Sequence[LocalFile]
    ) -> Iterator[dict[str, Any]]:
        if len(path) > MAX_PATH:
            self.say("path_too_long", folder=clean(path, MAX_PATH))
            return
        facts: dict[str, Any] = {**place.told, **record["facts"], "own_bytes": self.count(own)}
        self.texts -= len(facts.get("template_text", ""))
        if self.texts < 0:
            facts.pop("template_text", None)
        problems = [*place.parts_left(record), *record["problems"]]
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
            "files": facts.get("file_count", 0),
            "facts": facts,
            "problems": problems,
        }

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


class _Place:
    """A folder with models: what is the same for all of them, found out once."""

    def __init__(self, listing: Listing, name: str, snapshot: Snapshot | None) -> None:
        self.listing, self.name, self.snapshot = listing, name, snapshot
        told = {"source": source_of(listing.path), "origin": origin_of(listing.path)}
        if snapshot:
            told["origin"] = snapshot.name
        self.told: dict[str, Any] = {key: value for key, value in told.items() if value}
        if snapshot:
            self.told |= {"revision": snapshot.revision, "refs": list(snapshot.refs)}
        self.parts = snapshot.incomplete if snapshot else _part_files(listing) if ".cache" in listing.folders else 0

    def parts_left(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """What a download into the cache, or into a folder by the Hub's own tool, left unfinished."""
        if not self.parts or any(p["code"] == "incomplete_download" for p in record["problems"]):
            return []
        # With everything else in place they are what an interrupted, later repeated download left behind.
        broken = record["blocked"] or (self.snapshot is not None and not self.snapshot.has_snapshots)
        return [_unfinished(self.parts)] if broken else [{"code": "leftover_parts", "params": {"files": self.parts}}]


def _newest(files: Sequence[LocalFile]) -> int:
    """When the youngest of these files last changed, ns."""
    return max((max(file.stamp[2:]) for file in files), default=0)


def plain(found: Found) -> dict[str, Any]:
    """A find as it is kept and sent."""
    return {
        "name": clean(found.name) or "model",
        "size": found.size_bytes,
        "facts": found.facts.to_short_dict(),
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


def _part_files(listing: Listing) -> int:
    """Unfinished files of a download into a plain folder, which lie in the folder's own .cache."""
    try:
        with os.scandir(f"{listing.path.rstrip('/')}/.cache/huggingface/download") as entries:
            return sum(entry.name.endswith(".incomplete") for entry in islice(entries, MAX_PARTS))
    except OSError:
        return 0
