"""Make the description of a GGUF file (config.json, tokenizer, chat template) that vLLM wants beside it, once per file.

    <agent's folder>/sidecars/<key>/     `.complete` is written last; `<key>.making` while it is being made

The key is that of the file's place, size and time of change, so a changed file gets another one. The work is done by
the engine's own Python (sidecar_script.py): the agent has no transformers, and runs no code of a model. The file
itself is only read. Raises guard.Refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from models_catalog.inspect.gguf_split import GgufSet, group_gguf
from models_catalog.inspect.listing import LocalFile
from panel.fleet.agent import flag_schema, guard
from panel.fleet.agent.config import Config
from panel.fleet.agent.guard import Refused
from panel.fleet.agent.install_pip import Teller, run
from panel.fleet.agent.provision import locked, read_marker, signal_name, write_marker
from panel.fleet.agent.sidecar_order import check_file, folder_of
from panel.fleet.agent.sidecar_script import FAILED, SAYS
from panel.fleet.wire import SidecarTask

SCRIPT = Path(__file__).with_name("sidecar_script.py")
FORMAT = 1  # raise it when what is made changes: all are made anew
LIMIT_S = 500.0  # of describing one file; less than the job may take
LOCK_S = 500.0
MOST_FILES, MOST_BYTES = 50, 1 << 30  # of one description
MOST_KEPT = 300
ENV = ("LD_LIBRARY_PATH", "CUDA_HOME")  # what a library of the engine may need to be found
Progress = Callable[[str, int, int], None]


# --- the file ---------------------------------------------------------------------------------------------------------


def parts_of(path: Path, roots: list[Path]) -> list[Path]:
    """All files of the model, the first part first. Raises Refused when some are missing or lead outside."""
    beside = [
        LocalFile(entry.name, str(entry), 0) for entry in path.parent.iterdir() if entry.suffix.lower() == ".gguf"
    ]
    group: GgufSet = next(one for one in group_gguf(beside) if any(part.name == path.name for part in one.parts))
    if group.missing:
        raise Refused("sidecar.missing_parts", files=list(group.missing[:5]))
    found = [path.parent / part.name for part in group.parts]
    for part in found:
        if not guard.inside(part, roots):
            raise Refused("path_not_allowed", path=str(part)[:500])
    return found


def key_of(parts: Sequence[Path]) -> str:
    """Of the files' places, sizes and times of change."""
    facts: list[Any] = [FORMAT]
    for part in parts:
        told = part.stat()
        facts.append([str(part.resolve()), told.st_size, told.st_mtime_ns])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def is_made(folder: Path) -> bool:
    return not folder.is_symlink() and read_marker(folder) is not None and (folder / "config.json").is_file()


# --- making -----------------------------------------------------------------------------------------------------------


def make(settings: Config, task: SidecarTask, teller: Teller, *, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The description's folder and what it says. Raises Refused, SetupProblem, OSError."""
    teller.phase("checking")
    roots = settings.current_roots()
    parts = parts_of(check_file(task.path, roots), roots)
    base = folder_of(settings)
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = base / key_of(parts)
    if is_made(folder):
        return result(folder, made=False)
    with locked(base, "making", wait_s=LOCK_S) as lock:
        if is_made(folder):
            return result(folder, made=False)
        tidy(base)
        draft = base / f"{folder.name}.making"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        try:
            script(task.executable, ["describe", json.dumps([str(part) for part in parts]), str(draft)], teller,
                   limit_s=limit_s, lock=lock)  # fmt: skip
            checked(draft)
            write_marker(draft, {"format": FORMAT, "file": str(parts[0]), "engine": task.executable})
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        except BaseException:  # also after a stop
            shutil.rmtree(draft, ignore_errors=True)
            raise
    return result(folder, made=True)


def result(folder: Path, *, made: bool) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return {"folder": str(folder), "key": folder.name, "model_type": str(config.get("model_type"))[:100], "made": made}


def checked(folder: Path) -> None:
    """Raises Refused unless the script left what it should, and nothing else: plain small files, none of them code."""
    entries = list(folder.iterdir())
    sound = len(entries) <= MOST_FILES and all(entry.is_file() and not entry.is_symlink() for entry in entries)
    if not sound or any(entry.suffix == ".py" for entry in entries):
        raise Refused("sidecar.failed", detail="unexpected files")
    if sum(entry.stat().st_size for entry in entries) > MOST_BYTES:
        raise Refused("sidecar.failed", detail="too large")
    names = {entry.name for entry in entries}
    if "config.json" not in names or not names & {"tokenizer.json", "tokenizer.model", "vocab.json"}:
        raise Refused("sidecar.failed", detail="config.json or the tokenizer is missing")


def tidy(base: Path) -> None:
    """Remove what a kill left, and descriptions of files that are gone; of many the oldest go. The lock is held."""
    kept = []
    for entry in sorted(base.iterdir()):
        if not entry.is_dir() or entry.is_symlink():
            continue
        marker = read_marker(entry)
        if entry.name.endswith(".making") or marker is None or not Path(str(marker.get("file"))).exists():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            kept.append(entry)
    kept.sort(key=lambda entry: entry.stat().st_mtime)
    for entry in kept[: max(0, len(kept) - MOST_KEPT)]:
        shutil.rmtree(entry, ignore_errors=True)


# --- the engine's Python ----------------------------------------------------------------------------------------------


def script(
    executable: str,
    args: Sequence[str],
    teller: Teller,
    *,
    limit_s: float,
    lock: int = -1,
    progress: Progress | None = None,
) -> None:
    """Run the script in the Python of an engine, offline. Raises Refused with what it tells, and SetupProblem."""
    python = flag_schema.runtime_python(Path(executable))
    if python is None:
        raise Refused("sidecar.no_python", executable=executable[:500])
    env = flag_schema.probe_env() | {name: os.environ[name] for name in ENV if os.environ.get(name)}
    told: dict[str, Any] = {}

    def heard(line: str) -> bool:
        if not line.startswith(SAYS):
            return True
        fact = _fact(line)
        if "error" in fact:
            told.update(fact)
        elif isinstance(fact.get("phase"), str):
            report = progress or (lambda phase, done, total: teller.phase(phase, done, total))
            report(fact["phase"][:50], _count(fact.get("done")), _count(fact.get("total")))
        return False

    argv = [str(python), "-I", str(SCRIPT), *args]
    code, output = run(argv, teller, env=env, timeout_s=limit_s, keep=[lock] if lock >= 0 else [], heard=heard)
    if code != 0:
        raise failure(code, told, output)


def _fact(line: str) -> dict[str, Any]:
    try:
        fact = json.loads(line[len(SAYS) :])
    except ValueError:
        return {}
    return fact if isinstance(fact, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60 else 0


def failure(code: int, told: dict[str, Any], output: str) -> Refused:
    """Why the script failed, as a refusal."""
    if code == FAILED and told.get("error"):
        params = {name: str(value)[:500] for name, value in told.items() if name != "error"}
        return Refused(f"sidecar.{str(told['error'])[:50]}", **params)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    detail = signal_name(-code) if code < 0 else (lines or ["no output"])[-1][:500]
    # The kernel ends what takes all memory; nobody else here sends KILL to it.
    return Refused("sidecar.no_memory" if code == -9 else "sidecar.failed", detail=detail)
