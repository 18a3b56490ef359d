"""A model's own program code: only the files that an admin allowed reach the engine.

The engine does not load such a model from its folder but from a folder of this job: copies of the allowed code, their
sums taken of the very bytes that were copied, copies of the configuration that names the code, and links to the rest.
Whoever changes the model's folder, before the start or after it, changes no code that runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from models_catalog.inspect.hf_code import MAX_BYTES
from models_catalog.inspect.reading import MAX_JSON, clean, open_regular
from panel.fleet.agent import forbidden
from panel.fleet.agent.guard import MAX_LINKS, Refused, flag_name, inside
from panel.fleet.wire import Command

FOLDER = "model"  # below the job's own
# Options by which an engine would take code from a second place with the same permission.
SECOND = ("tokenizer", "hf-config-path", "speculative-config", "spec-model")  # as a beginning, as argparse takes them
WORDS_ONLY = ("tokenizer.json", "vocab.json")  # large, and read for nothing but words


def applies(task: Command) -> bool:
    """Whether the engine may run the model's own code, and the panel named which. A GGUF file brings none."""
    asked = any(flag_name(arg) == forbidden.REMOTE_CODE for arg in task.argv if arg.startswith("--"))
    return asked and task.allow_remote_code and task.code is not None and Path(task.model_path).is_dir()


def seal(task: Command, job: Path, roots: Sequence[Path]) -> list[str]:
    """Make the folder below the job's and return the command with it. Raises Refused and OSError.

    Refused is code_changed (`files` that are not as allowed) or code_elsewhere (`place` that it would come from).
    """
    _check_options(task)
    source = Path(task.model_path)
    target = job / FOLDER / (source.name or "model")  # its name is part of what transformers calls the code
    shutil.rmtree(job / FOLDER, ignore_errors=True)
    target.mkdir(mode=0o700, parents=True)
    allowed = {(name, sum_) for name, sum_ in task.code or []}
    changed, places = [], []
    for path, inner in _files(source):
        real = path.resolve()
        if not inside(real, roots):
            raise Refused("path_not_allowed", path=str(path)[:500])
        copy = target / inner
        copy.parent.mkdir(mode=0o700, exist_ok=True, parents=True)
        if path.suffix.lower() == ".py":
            if len(inner.parts) > 1:  # nothing that was looked at names it
                continue
            data = _read(real, MAX_BYTES)
            if data is None or (clean(path.name), hashlib.sha256(data).hexdigest()) not in allowed:
                changed.append(clean(path.name))
                continue
        elif path.suffix.lower() == ".json" and path.name not in WORDS_ONLY:
            data = _read(real, MAX_JSON)
            if data is None and path.name.endswith("config.json"):  # too long to be looked at
                changed.append(clean(path.name))
            places += _places(data or b"")
        else:
            data = None
        _put(copy, data, real)
    if changed:
        raise Refused("code_changed", files=sorted(changed)[:20], model=str(source)[:500])
    if places:
        raise Refused("code_elsewhere", place=places[0][:200])
    return [_moved(arg, task.model_path, str(target)) for arg in task.argv]


def _files(folder: Path) -> Iterator[tuple[Path, Path]]:
    """(file, its name inside) of everything there; linked folders are left out, their files were never looked at."""
    count = 0
    for current, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            count += 1
            if count > MAX_LINKS:
                raise Refused("too_many_files", path=str(folder)[:500])
            path = Path(current, name)
            yield path, path.relative_to(folder)


def _read(real: Path, most: int) -> bytes | None:
    """The whole file; None when it is larger. Raises OSError, also for what is no regular file."""
    with open_regular(str(real)) as stream:
        data = stream.read(most + 1)
    return data if len(data) <= most else None


def _put(copy: Path, data: bytes | None, real: Path) -> None:
    if data is None:
        copy.symlink_to(real)
    else:
        copy.write_bytes(data)
        copy.chmod(0o400)


def _moved(arg: str, model: str, folder: str) -> str:
    flag, sign, value = arg.partition("=")
    if arg == model:
        return folder
    return f"{flag}={folder}" if sign and value == model and flag.startswith("--") else arg


# --- code from a second place -----------------------------------------------------------------------------------------


def _places(data: bytes) -> list[str]:
    """What a configuration names as the home of code, other than a file beside itself: "org/repo", "sub/file"."""
    if b"auto_map" not in data and b"\\u" not in data:
        return []
    try:
        todo: list[Any] = [json.loads(data)]
    except (ValueError, RecursionError):  # then nobody else reads it either
        return []
    found = []
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            todo += [value for key, value in item.items() if key != "auto_map"]
            found += [place for place in _texts(item.get("auto_map")) if "--" in place or "/" in place]
    return [clean(place.rpartition("--")[0] or place) for place in found]


def _texts(value: Any) -> Iterator[str]:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict | list):
            todo += item.values() if isinstance(item, dict) else item


def _check_options(task: Command) -> None:
    """The permission is for this model: a tokenizer or a second model from elsewhere would bring code of its own."""
    for arg, following in zip(task.argv[3:], [*task.argv[4:], ""], strict=True):
        flag, sign, value = arg.partition("=")
        value = value if sign else following
        name = flag_name(arg)
        full = next((option for option in SECOND if option.startswith(name)), "") if arg.startswith("--") else ""
        if (name == "sc" and arg.startswith("-")) or full == "speculative-config":
            ours = not _second_model(flag, value)
        else:
            ours = not full or value == task.model_path
        if not ours:
            raise Refused("code_elsewhere", place=value[:200])


def _second_model(flag: str, value: str) -> bool:
    """Whether these settings of guessing ahead name a model. Lists of words (n-grams) bring none."""
    if "." in flag:
        return flag.rpartition(".")[2].replace("_", "-") == "model"
    try:
        settings = json.loads(value)
    except (ValueError, RecursionError):
        return True
    return not isinstance(settings, dict) or bool(settings.get("model"))
