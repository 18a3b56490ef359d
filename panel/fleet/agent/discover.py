"""Find engines where an admin said, and ask each what it is; what it said is kept until its installation changes.

A named folder is a venv or a conda environment (`bin/vllm`), or holds many of them (`*/bin/vllm`; a conda folder's
`envs/*/bin/vllm`). Every question is a child process with a deadline, and all together have one too: an engine that
hangs is told as refused, the others are still asked. No model code runs: vLLM builds its parser, the others tell their
version.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from panel.fleet.agent import files, flag_schema
from panel.fleet.agent.config import Config
from panel.fleet.agent.journal import read_json, write_json
from panel.fleet.agent.provision import read_marker
from panel.fleet.wire import FoundRuntime, Refusal

log = logging.getLogger("task")

TOTAL_S = 600.0  # for all engines together; less than a discovery may take
VERSION_S = 20.0
MAX_OUTPUT = 1 << 20  # bytes of an answer to --version
MAX_ENTRIES = 2000  # of a named folder
MAX_KEPT = 300
FORMAT = 1  # raise it when what is kept changes
KEPT = "probes"


# --- where ------------------------------------------------------------------------------------------------------------


def below(folder: Path) -> Iterator[Path]:
    """Files with an engine's name in a named folder; what of it is no engine to us is the caller's to tell."""
    yield from _in_bin(folder)
    for parent in (folder, folder / "envs"):
        try:
            entries = sorted(entry.path for entry in os.scandir(parent) if entry.is_dir())[:MAX_ENTRIES]
        except OSError:
            continue
        for entry in entries:
            if not Path(entry).name.startswith("."):
                yield from _in_bin(Path(entry))


def _in_bin(folder: Path) -> Iterator[Path]:
    for name in files.ENGINE_NAMES:
        path = folder / "bin" / name
        if path.is_file():
            yield path


def look(folders: Iterable[str]) -> tuple[list[Path], list[tuple[str, Refusal]]]:
    """(engines below the named folders, what is wrong with folders and with files that look like engines)."""
    found: list[Path] = []
    wrong: list[tuple[str, Refusal]] = []
    for text in list(folders)[:100]:
        folder = Path(text)
        if not folder.is_absolute() or ".." in folder.parts or "\0" in text or not folder.is_dir():
            wrong.append((text, Refusal(code="folder_missing", params={"path": text[:500]})))
            continue
        here = list(dict.fromkeys(below(folder)))
        found += [path for path in here if files.is_named_engine(path)]
        # An environment that others may write to could be swapped between the question and the start.
        bad = [str(path) for path in here if not files.is_named_engine(path)]
        wrong += [(path, Refusal(code="executable_not_an_engine", params={"path": path[:500]})) for path in bad]
        if not here:
            wrong.append((text, Refusal(code="folder_without_engine", params={"path": text[:500]})))
    return found, wrong


def is_managed(path: Path, managed: Path) -> bool:
    """Whether an install made it, so that it can be removed."""
    folder = path.parent.parent
    marker = read_marker(folder) if folder.parent == managed and path.parent.name == "bin" else None
    return marker is not None and str(marker.get("engine", "")).startswith("vllm-")


# --- asking -----------------------------------------------------------------------------------------------------------


class Asker:
    """Asks engines one after the other, until the time for all of them is over."""

    def __init__(self, config: Config, total_s: float = TOTAL_S) -> None:
        self.kept = config.folder / KEPT
        self.managed = config.managed_folder
        self.deadline = time.monotonic() + total_s

    def ask(self, path: Path, origin: str) -> dict[str, Any]:
        """One engine as a wire.FoundRuntime."""
        if is_managed(path, self.managed):
            origin = "managed"
        known = {"engine": files.engine_of(str(path)), "executable": str(path), "origin": origin}
        left = self.deadline - time.monotonic()
        if known["engine"] != "vllm":
            facts = other_facts(path, known["engine"], min(VERSION_S, left)) if left > 0 else {}
            return runtime({**known, **facts, "refusal": Refusal(code="engine_not_used_yet")})
        found = self._known(path)
        if found is None:
            log.info("asking %s", path)
            if left <= 1:
                found = {"ok": False, "code": "timeout", "detail": "no time was left"}
            else:
                found = flag_schema.probe_runtime(path, min(files.PROBE_S, left))
            keep(self.kept, path, found)
        return described({**known}, found)

    def _known(self, path: Path) -> dict[str, Any] | None:
        raw = read_json(_kept_file(self.kept, path))
        fresh = isinstance(raw, dict) and raw.get("fingerprint") == fingerprint(path)
        return raw["found"] if isinstance(raw, dict) and fresh and isinstance(raw.get("found"), dict) else None


def described(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A wire.FoundRuntime from what flag_schema tells."""
    if not found["ok"]:
        log.warning("%s: %s %s", known["executable"], found["code"], found["detail"])
        refusal = Refusal(code=f"probe_{found['code']}", params={"detail": found["detail"]})
        return runtime({**known, "refusal": refusal})
    plugins = [str(plugin["name"]) for plugin in found["plugins"]]
    if found["gguf"] and not any("gguf" in name for name in plugins):
        plugins.append("gguf")
    facts = {key: found[key] for key in ("version", "python", "flags")}
    return runtime({**known, **facts, "device": device_of(found), "plugins": plugins})


def device_of(found: dict[str, Any]) -> str:
    """vLLM's ROCm platform calls itself cuda; where no GPU answers, the build of torch tells what it is for."""
    platform, torch = str(found.get("platform", "")), str(found.get("torch", ""))
    if "rocm" in platform.lower() or "+rocm" in torch:
        return "rocm"
    if found.get("device"):
        return str(found["device"])
    if "+cpu" in torch:
        return "cpu"
    return "cuda" if "+cu" in torch else ""


def runtime(item: dict[str, Any]) -> dict[str, Any]:
    return FoundRuntime.model_validate(item).model_dump(mode="json")


# --- what is kept -----------------------------------------------------------------------------------------------------


def fingerprint(path: Path) -> str:
    """Changes when the executable, its Python, or a distribution beside it does, or when the NVIDIA driver does."""
    parts: list[Any] = [FORMAT, hashlib.sha256(flag_schema.SCRIPT.encode()).hexdigest(), str(path)]
    python = flag_schema.runtime_python(path)
    prefix = python.parent.parent if python is not None else path.parent.parent
    sites = sorted(prefix.glob("lib/python3*/site-packages"))
    places = [path, *([python] if python else []), prefix / "pyvenv.cfg", *sites]
    for site in sites:  # a package that is changed in place changes its own folder only
        places += sorted(site.glob("*vllm*.dist-info")) + sorted(site.glob("torch-*.dist-info"))
    for place in places:
        try:
            found = place.stat()
        except OSError:
            parts.append([str(place), None])
            continue
        parts.append([str(place), found.st_mtime_ns, found.st_size, found.st_ino])
    try:
        parts.append(Path("/proc/driver/nvidia/version").read_text())
    except OSError:  # no driver
        parts.append("")
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _kept_file(folder: Path, path: Path) -> Path:
    return folder / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"


def keep(folder: Path, path: Path, found: dict[str, Any]) -> None:
    """Remember a good answer; a bad one is asked again next time."""
    file = _kept_file(folder, path)
    if not found["ok"]:
        file.unlink(missing_ok=True)
        return
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        old = sorted(folder.glob("*.json"), key=lambda entry: entry.stat().st_mtime)
        for entry in old[: max(0, len(old) - MAX_KEPT)]:
            entry.unlink(missing_ok=True)
        write_json(file, {"fingerprint": fingerprint(path), "executable": str(path), "found": found})
    except OSError as exc:  # a full disk: then it is asked again
        log.warning("what %s said is not kept: %s", path, exc)


# --- engines that are shown, and used later ---------------------------------------------------------------------------


def other_facts(path: Path, engine: str, timeout_s: float) -> dict[str, Any]:
    """Version, Python and device of SGLang, llama.cpp or Ollama, as far as they tell without a model."""
    if engine == "sglang":
        return _sglang(path)
    output = _output([str(path), "--version"], timeout_s)
    if engine == "llamacpp":
        found = re.search(r"version:\s*(\S+)", output)
        names = (("cuda", "CUDA"), ("rocm", "ROCm"), ("rocm", "HIP"))
        device = next((device for device, sign in names if sign in output), "")
        return {"version": found.group(1)[:100] if found else "", "device": device}
    found = re.search(r"version(?: is)?:?\s+v?(\d\S*)", output)
    return {"version": found.group(1)[:100] if found else ""}


def _sglang(path: Path) -> dict[str, Any]:
    """From the names of its distributions: importing it takes a GPU."""
    python = flag_schema.runtime_python(path)
    prefix = python.parent.parent if python is not None else path.parent.parent
    facts = {"version": "", "python": "", "device": ""}
    for site in sorted(prefix.glob("lib/python3*/site-packages")):
        facts["python"] = site.parent.name.removeprefix("python")
        for name in ("sglang", "torch"):
            for entry in sorted(site.glob(f"{name}-[0-9]*.dist-info")):
                version = entry.name.removesuffix(".dist-info").split("-", 1)[1]
                facts.update({"version": version} if name == "sglang" else {"device": device_of({"torch": version})})
    return facts


def _output(argv: list[str], timeout_s: float) -> str:
    """What a short command prints, on both ways; "" when it cannot be run, hangs, or does not stop talking."""
    code, output = flag_schema.run_bounded(argv, timeout_s, MAX_OUTPUT)
    if code:
        log.warning("%s: %s", argv[0], code)
    return "" if code else output[-20000:].decode("utf-8", "replace")
