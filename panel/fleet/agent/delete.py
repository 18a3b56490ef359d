"""Delete copies of models: only what lies below this host's model folders, and nothing that a run uses.

What goes is renamed first (`.removed-…`): from that moment on nothing starts from it, and a later deletion in the same
folder finishes what a kill left. Links are removed, never followed. Ollama's store is Ollama's to change.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models_catalog.inspect.gguf_split import group_gguf
from models_catalog.inspect.hf_cache import CACHE_FOLDER
from models_catalog.inspect.listing import LocalFile
from models_catalog.sources.local import source_of
from models_catalog.sources.ollama import is_store
from panel.fleet.agent.config import Config
from panel.fleet.agent.download_order import OURS
from panel.fleet.agent.guard import Refused
from panel.fleet.wire import DeleteTask, JobResult

log = logging.getLogger(__name__)

GONE = ".removed-"  # beginning of the names of what is being deleted
SIGNS = (".json", ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".model", ".incomplete")  # of a model's folder
MOST_LINKS = 200_000
LONGEST = 255  # bytes of a name


@dataclass(frozen=True)
class Limits:
    roots: list[Path]
    allowed: bool = True
    programs: bool = False  # also LM Studio's folders


def limits_of(config: Config) -> Limits:
    return Limits(config.current_roots(), config.allow_delete, config.delete_from_programs)


# --- what may go ------------------------------------------------------------------------------------------------------


def check(task: DeleteTask, limits: Limits, used: Iterable[Sequence[str]] = ()) -> None:
    """Raises Refused for the whole order. `used` are the commands of the living jobs."""
    if not limits.allowed:
        raise Refused("delete.forbidden")
    words = [word for argv in used for word in argv if word.startswith("/")]
    for text in task.paths:
        path = place_of(text, limits)
        for word in words:
            if _overlap(path, Path(word), limits.roots):
                raise Refused("delete.in_use", path=text[:500])


def place_of(text: str, limits: Limits) -> Path:
    """The path itself, not what it leads to, in a folder that was resolved. Raises Refused."""
    path = Path(text)
    if not path.is_absolute() or "\0" in text or ".." in path.parts:
        raise Refused("delete.path_not_allowed", path=text[:500])
    try:
        path = path.parent.resolve() / path.name
        roots = [root.resolve() for root in limits.roots]
    except (OSError, RuntimeError) as exc:
        raise Refused("delete.path_not_allowed", path=text[:500]) from exc
    below = any(path.is_relative_to(root) and path != root for root in roots)
    if not below or any(root.is_relative_to(path) for root in roots):
        raise Refused("delete.path_not_allowed", path=text[:500])
    for above in path.parents:
        if is_store([name for name in ("manifests", "blobs") if (above / name).is_dir()]):
            raise Refused("delete.of_ollama", path=text[:500])
    if source_of(str(path)) == "lmstudio" and not limits.programs:
        raise Refused("delete.of_program", path=text[:500], program="LM Studio")
    return path


def _overlap(path: Path, word: Path, roots: Iterable[Path]) -> bool:
    """Whether a run that names `word` needs something of `path`."""
    try:
        real = word.parent.resolve() / word.name
        ends = {real, word.resolve()}
        mine = {path, path.resolve()}
        tops = {root.resolve() for root in roots}
    except (OSError, RuntimeError):
        return False
    return any(
        end.is_relative_to(one) or (one.is_relative_to(end) and not any(top.is_relative_to(end) for top in tops))
        for end in ends
        for one in mine
    )


# --- deleting ---------------------------------------------------------------------------------------------------------


def run(settings: Config, task: DeleteTask) -> JobResult:
    """One item per path: what came back, or why it stays."""
    limits = limits_of(settings)
    items = []
    for text in task.paths:
        item: dict[str, Any] = {"path": text, "freed_bytes": 0, "refusal": None}
        try:
            check(DeleteTask(paths=[text]), limits)
            item["freed_bytes"] = delete(place_of(text, limits))
            log.info("%s is deleted: %d MiB", text, item["freed_bytes"] >> 20)
        except Refused as exc:
            item["refusal"] = exc.refusal.model_dump()
        except OSError as exc:
            params = {"path": str(exc.filename or text)[:500], "error": exc.strerror or ""}
            item["refusal"] = Refused("delete.failed", **params).refusal.model_dump()
        if item["refusal"]:
            log.info("%s stays: %s", text, item["refusal"])
        items.append(item)
    return JobResult(items=items)


def delete(path: Path) -> int:
    """Bytes of the disk that came back; 0 where nothing was. Raises Refused and OSError."""
    if not os.path.lexists(path):
        return 0
    repo = next((one for one in (path, *path.parents) if one.name.startswith(CACHE_FOLDER)), None)
    if repo is not None and (repo / "snapshots").is_dir():
        with _alone(repo.parent / ".locks" / repo.name / "berth.lock"):
            return _from_cache(repo, path)
    if path.is_symlink():
        path.unlink()
        return 0
    if path.is_dir():
        names = [entry.name for entry in path.iterdir()]
        if OURS not in names and not any(name.lower().endswith(SIGNS) for name in names):
            raise Refused("delete.not_a_model", path=str(path)[:500])
        with _alone(path / OURS / "lock"):
            return _away(path)
    if path.suffix.lower() != ".gguf":
        raise Refused("delete.not_a_model", path=str(path)[:500])
    return sum(_away(part) for part in _parts(path))


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Refused while a download writes there."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # no download ever was there
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as exc:
        raise Refused("delete.in_use", path=str(lock.parent)[:500], download=True) from exc
    finally:
        os.close(handle)


def _parts(path: Path) -> list[Path]:
    """All parts of a GGUF file that consists of several; else the file alone."""
    files = [LocalFile(entry.name, str(entry), 0) for entry in path.parent.iterdir() if entry.suffix.lower() == ".gguf"]
    group = next(group for group in group_gguf(files) if any(part.name == path.name for part in group.parts))
    return [path.parent / part.name for part in group.parts]


def _size(path: Path) -> int:
    """Bytes of the disk that go with this name."""
    with contextlib.suppress(FileNotFoundError):  # another deletion in the same folder finished it
        info = path.lstat()
        return info.st_blocks * 512 if stat.S_ISREG(info.st_mode) and info.st_nlink == 1 else 0
    return 0


def _away(path: Path) -> int:
    """Remove a file or a whole folder, links in it as links."""
    for old in path.parent.glob(f"{GONE}*"):  # what a kill left, or what another deletion is at; both may erase it
        with contextlib.suppress(OSError):  # what cannot go, of another user say, keeps nothing else here
            _erase(old)
    name = os.fsencode(path.name)[: LONGEST - len(GONE)]  # the disk counts bytes, and may cut a sign in two
    gone = path.with_name(GONE + name.decode("utf-8", "ignore"))
    path.rename(gone)
    return _erase(gone)


def _erase(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        freed = _size(path)
        path.unlink(missing_ok=True)
        return freed
    freed = sum(_size(Path(top, name)) for top, _folders, files in os.walk(path) for name in files)
    while os.path.lexists(path):
        with contextlib.suppress(FileNotFoundError):  # another deletion takes the same away: each goes on until it is
            shutil.rmtree(path)
    return freed


# --- the Hugging Face cache -------------------------------------------------------------------------------------------


def _from_cache(repo: Path, path: Path) -> int:
    snapshots = repo / "snapshots"
    if path == repo:
        return _away(repo)
    if not path.is_relative_to(snapshots) or path == snapshots:
        raise Refused("delete.not_a_model", path=str(path)[:500])
    revision = snapshots / path.relative_to(snapshots).parts[0]
    if path == revision:
        going = [revision]
    elif path.suffix.lower() == ".gguf":
        going = _parts(path)
    else:
        raise Refused("delete.not_a_model", path=str(path)[:500])
    blobs = {blob for one in going for blob in _blobs(one, repo)}
    freed = sum(_away(one) for one in going)
    if revision.is_dir() and not any(True for _ in _links(revision)):
        freed += _away(revision)
    if not any(not entry.name.startswith(".") for entry in snapshots.iterdir()):
        return freed + _away(repo)
    needed = {blob for entry in snapshots.iterdir() for blob in _blobs(entry, repo)}
    for blob in sorted(blobs - needed):
        freed += _size(blob)
        blob.unlink()
    if not revision.exists():
        _forget(repo / "refs", revision.name)
    return freed


def _links(folder: Path) -> Iterator[Path]:
    if folder.is_symlink() or not folder.is_dir():
        yield folder
        return
    for count, path in enumerate(Path(top, name) for top, _folders, files in os.walk(folder) for name in files):
        if count > MOST_LINKS:
            raise Refused("too_many_files", path=str(folder)[:500])
        yield path


def _blobs(place: Path, repo: Path) -> set[Path]:
    """The contents in this repository's store that a snapshot, or one file of it, leads to."""
    store = (repo / "blobs").resolve()
    found = set()
    for link in _links(place):
        if link.is_symlink():
            aim = link.resolve()
            if aim.parent == store and aim.is_file():
                found.add(aim)
    return found


def _forget(refs: Path, commit: str) -> None:
    """Branches and tags that led to a commit which is gone."""
    for top, _folders, files in os.walk(refs):
        for name in files:
            ref = Path(top, name)
            with contextlib.suppress(OSError):
                if ref.stat().st_size < 200 and ref.read_text(encoding="utf-8", errors="replace").strip() == commit:
                    ref.unlink()
