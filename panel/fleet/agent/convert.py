"""Make a Hugging Face folder with plain weights of a GGUF file, for engines that cannot calculate with packed ones.

    <model folder>/.berth-convert/<name>-…/    the work; no look for models goes there
    <model folder>/<name>/                     appears by one rename, whole

The reading is transformers' own (sidecar_script.py, in the engine's Python). It holds all weights in memory at once.
Raises guard.Refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from models_catalog.inspect.gguf import read_gguf
from models_catalog.inspect.scan import scan_roots
from panel.fleet.agent import sidecar, sidecar_order
from panel.fleet.agent.config import Config
from panel.fleet.agent.guard import Refused
from panel.fleet.agent.install_pip import Teller
from panel.fleet.agent.provision import SetupProblem, locked
from panel.fleet.agent.sidecar_job import carried_out
from panel.fleet.wire import ConvertTask, JobResult
from panel.fleet.wire_models import BESIDE_WEIGHTS_MIB, DTYPE_BYTES

WORK = ".berth-convert"
BESIDE = BESIDE_WEIGHTS_MIB << 20  # bytes
# Memory: the weights once, their largest parts unpacked, and the libraries. Measured with transformers 5.19: 0.9 GiB
# for 0.25 GiB of weights.
MEMORY_SHARE, MEMORY_BESIDE = 1.3, 1 << 30
LIMIT_S = 6 * 3600.0
WATCH_S = 1.0
MIB = 1 << 20


def size_of(parts: list[Path], dtype: str) -> int:
    """Bytes of the unpacked weights, by the headers of all parts. Raises Refused for a file that cannot be read."""
    try:
        return sum(read_gguf(str(part)).parameters for part in parts) * DTYPE_BYTES[dtype]
    except Exception as exc:  # what is wrong with a file is told by a look for models; here it is enough that it is
        raise Refused("sidecar.header", detail=str(exc)[:300]) from exc


def require(place: Path, size: int) -> None:
    """Raises Refused when the disk or the memory cannot take it."""
    need, free = size + BESIDE, shutil.disk_usage(place).free
    if free < need:
        raise Refused("convert.no_space", path=str(place)[:500], free_mib=free // MIB, need_mib=-(-need // MIB))
    memory, left = round(size * MEMORY_SHARE) + MEMORY_BESIDE, psutil.virtual_memory().available
    if left < memory:
        raise Refused("convert.no_memory", free_mib=left // MIB, need_mib=-(-memory // MIB))


def convert(settings: Config, task: ConvertTask, folder: Path) -> JobResult:
    """The model that lies there now, or the refusal. `folder` is the job's."""
    return carried_out(folder, "convert", lambda teller: _convert(settings, task, teller))


def _convert(settings: Config, task: ConvertTask, teller: Teller) -> list[dict[str, Any]]:
    teller.phase("checking")
    roots = settings.current_roots()
    parts = sidecar.parts_of(sidecar_order.check_file(task.path, roots), roots)
    target = sidecar_order.check_convert(task, allowed=settings.allow_download, roots=roots)
    base = Path(task.folder)
    base.mkdir(parents=True, exist_ok=True)
    size = size_of(parts, task.dtype)
    work = base / WORK
    work.mkdir(mode=0o700, exist_ok=True)
    tidy(work)
    require(base, size)
    name = f"{target.name}-{hashlib.sha256(task.name.encode()).hexdigest()[:12]}"
    with locked(work, name, wait_s=5.0) as lock:
        draft = work / name
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            with watched(draft, size, teller) as progress:
                args = ["convert", json.dumps([str(part) for part in parts]), str(draft), task.dtype]
                sidecar.script(task.executable, args, teller, limit_s=LIMIT_S, lock=lock, progress=progress)
            teller.phase("placing")
            place(draft, target, size)
        except BaseException:  # also after a stop
            shutil.rmtree(draft, ignore_errors=True)
            raise
    teller.say(f"{target} holds the model.")
    root = next((root for root in roots if target.resolve().is_relative_to(root.resolve())), base)
    items = scan_roots([root], known=settings.folder / "models.sqlite3")
    return [dict(item) for item in items if item["format"] == "hf" and item["path"] == str(target)]


def tidy(work: Path) -> None:
    """Remove what kills left, also of other conversions: it may be the room that this one needs."""
    for draft in work.iterdir():
        if draft.is_dir() and not draft.is_symlink():
            with suppress(SetupProblem), locked(work, draft.name, wait_s=-1.0):  # who is at work holds the lock
                shutil.rmtree(draft, ignore_errors=True)


def place(draft: Path, target: Path, size: int) -> None:
    """Bring it to the disk, then show it by one rename. Raises Refused when it is not whole."""
    weights = [path for path in draft.glob("*.safetensors") if path.is_file()]
    # Norms may be kept in another width, tied matrices once only: a tenth less is no sign of a loss, half of it is.
    if sum(path.stat().st_size for path in weights) < size * 0.5 or not (draft / "config.json").is_file():
        raise Refused("sidecar.failed", detail="the weights are not whole")
    for path in draft.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if os.path.lexists(target):
        raise Refused("convert.folder_taken", path=str(target)[:500])
    target.parent.mkdir(parents=True, exist_ok=True)
    draft.rename(target)


@contextmanager
def watched(draft: Path, size: int, teller: Teller) -> Iterator[sidecar.Progress]:
    """Takes the script's progress; while it writes, which it does not count, the bytes on the disk are told."""
    over, writing = threading.Event(), threading.Event()

    def look() -> None:
        while not over.wait(WATCH_S):
            if writing.is_set():
                done = sum(path.stat().st_size for path in draft.glob("*.safetensors"))
                teller.phase("writing", min(done, size), size)

    def progress(phase: str, done: int, total: int) -> None:
        if phase == "writing":
            writing.set()
        teller.phase(phase, done, size if phase == "writing" else total)

    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        thread.join(timeout=5)
