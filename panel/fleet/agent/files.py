"""Folders and engines of this host: which roots are allowed, which executables are engines, what a scan finds."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from panel.fleet.agent.config import Config
from panel.fleet.agent.guard import inside
from panel.fleet.agent.journal import read_json, write_json
from panel.fleet.agent.provision import BUILDING, COMPLETE
from panel.fleet.wire import Refusal

ENGINE_NAMES = ("vllm", "sglang", "llama-server", "ollama")
MAX_CANDIDATES = 100
CACHE_DEPTH = 5  # <cache>/<runtime>/venv/bin/vllm and the like
PROBE_S = 120.0

Origin = Literal["path", "named", "folder", "cache", "managed"]


def is_engine(path: Path) -> bool:
    """An executable with an engine's name that nobody but this user or root can replace."""
    if path.name not in ENGINE_NAMES or not path.is_absolute():
        return False
    try:
        found = path.stat()
    except OSError:
        return False
    mine = found.st_uid in (os.getuid(), 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(found.st_mode) and mine and os.access(path, os.X_OK)


def in_safe_place(path: Path) -> bool:
    """Whether nobody but this user or root can put something else at this path, or at what it leads to.

    For paths that the panel names: an environment in another user's home could be swapped between the question and
    the start, a link in it likewise, and an engine calls the tools that lie beside it. A folder with the sticky bit,
    such as /tmp, lets nobody exchange what is another's. Who is in the group of a folder is its owner's business.
    """
    try:
        places = {
            *path.absolute().parents,
            *path.resolve().parents,
            *path.parent.resolve().parents,
            path.parent.resolve(),
        }
        return all(_is_safe(place) for place in places) and path.lstat().st_uid in (os.getuid(), 0)
    except (OSError, RuntimeError):
        return False


def _is_safe(folder: Path) -> bool:
    for found in (folder.lstat(), folder.stat()):  # a link of another's could be led elsewhere
        if found.st_uid not in (os.getuid(), 0):
            return False
        if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return False
    return True


def is_named_engine(path: Path) -> bool:
    """An engine where the panel said."""
    return is_engine(path) and in_safe_place(path)


def engine_of(executable: str) -> str:
    """Which engine an executable's name promises; an unknown name is taken for a vLLM that someone renamed."""
    name = Path(executable).name
    return {"llama-server": "llamacpp", "sglang": "sglang", "ollama": "ollama"}.get(name, "vllm")


def on_path(env: Mapping[str, str]) -> Iterator[Path]:
    for folder in (env.get("PATH") or os.defpath).split(os.pathsep):
        for name in ENGINE_NAMES:
            found = shutil.which(name, path=folder) if folder.startswith("/") else None
            if found and is_engine(Path(found)):
                yield Path(found)


def in_cache(cache: Path | None) -> Iterator[Path]:
    """Engines below the cache folder; not deeper than an installation's `bin`, and none that is being installed."""
    if cache is None or not cache.is_dir():
        return
    base = len(cache.parts)
    for current, folders, files in os.walk(cache):
        if len(Path(current).parts) - base >= CACHE_DEPTH:
            folders.clear()
        if (Path(current) / BUILDING).exists() and not (Path(current) / COMPLETE).exists():
            folders.clear()
            continue
        skipped = ("site-packages", "lib", "lib64", "include", "share")
        folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
        for name in files:
            if name in ENGINE_NAMES and is_engine(Path(current, name)):
                yield Path(current, name)


def candidates(
    config: Config, named: Iterable[str], env: Mapping[str, str], folders: Iterable[Path] = ()
) -> list[tuple[Path, Origin]]:
    """Where engines may be, each path once, best origin first. `named` comes from the panel, so names are checked.

    `folders` are engines that were found below named folders.
    """
    found: dict[str, tuple[Path, Origin]] = {}

    def add(paths: Iterable[Path], origin: Origin) -> None:
        for path in paths:
            if len(found) < MAX_CANDIDATES:
                found.setdefault(str(path), (path, origin))

    add(config.runtimes, "named")
    add((Path(p) for p in named if is_named_engine(Path(p))), "named")
    add(in_cache(config.managed_folder), "cache")
    add(folders, "folder")
    add(on_path(env), "path")
    return list(found.values())


def named_refusals(config: Config, named: Iterable[str]) -> list[tuple[str, Refusal]]:
    """What an admin named and this host does not take as an engine."""
    own = {str(path) for path in config.runtimes}
    refused = []
    for text in named:
        path = Path(text)
        if text in own or is_named_engine(path):
            continue
        code = "executable_missing" if not path.exists() else "executable_not_an_engine"
        refused.append((text, Refusal(code=code, params={"path": text[:500]})))
    return refused


class Registry:
    """The executables that a run may name: vouched for by the owner, found here now, or found by a discovery."""

    def __init__(self, config: Config, env: Mapping[str, str] | None = None) -> None:
        self.config = config
        self.env = os.environ if env is None else env
        self._path = config.folder / "runtimes.json"
        raw = read_json(self._path)
        self._found: list[str] = [p for p in raw if isinstance(p, str)] if isinstance(raw, list) else []

    def register(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Remember the working engines of a finished discovery."""
        good = [str(item["executable"]) for item in items if item.get("executable") and not item.get("refusal")]
        self._found = list(dict.fromkeys(good))[-MAX_CANDIDATES:]
        write_json(self._path, self._found)

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Remember what an install made, beside what is known."""
        self.register([*({"executable": known} for known in self._found), *items])

    def allows(self, executable: str) -> bool:
        """Cheap first: a start waits for this."""
        if executable in {str(path) for path in self.config.runtimes}:
            return True
        path = Path(executable)
        if not is_engine(path):
            return False
        return (
            (executable in self._found and in_safe_place(path))
            or inside(path.parent, [self.config.managed_folder])
            or any(str(found) == executable for found in on_path(self.env))
        )


def split_roots(wanted: Iterable[str], allowed: list[Path]) -> tuple[list[Path], list[Refusal]]:
    """(folders to scan, refusals). A missing folder is a refusal too, with its own code."""
    good, bad = [], []
    for text in list(wanted)[:100]:
        path = Path(text)
        if "\0" in text or not path.is_absolute() or not _may_be_inside(path, allowed):
            bad.append(Refusal(code="root_not_allowed", params={"path": text[:500]}))
        elif not path.is_dir():
            bad.append(Refusal(code="root_missing", params={"path": text[:500]}))
        else:
            good.append(path)
    return good, bad


def _may_be_inside(path: Path, allowed: list[Path]) -> bool:
    """Like `inside`, but a root that does not exist (yet) counts, so that the refusal can say so."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):
        return False
    return any(resolved.is_relative_to(root.resolve()) for root in allowed)
