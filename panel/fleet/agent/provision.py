"""What preparing an engine and preparing a model share: problems in plain words, one lock, markers, logged commands.

Standard library only, so that it runs before anything is installed. Sizes are bytes unless the name says GiB (2^30).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GIB = 1 << 30
COMPLETE = ".complete"  # JSON written last: the folder holds all that it should
BUILDING = ".building"  # written first: we made this folder, so we may empty it


class SetupProblem(Exception):
    """Something a person must settle: a stable code with parameters, one plain sentence, and what to do about it."""

    def __init__(self, code: str, message: str, hint: str, **params: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.params = code, message, hint, params


def say(text: str) -> None:
    """One line of progress, on stderr, so that `--json` on stdout stays clean."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where engines live: BERTH_ENGINE_CACHE, else `engines` in the data folder (BERTH_DATA, default `var`)."""
    named = env.get("BERTH_ENGINE_CACHE")
    folder = Path(named) if named else Path(env.get("BERTH_DATA") or "var") / "engines"
    return folder.expanduser().absolute()


def make_folder(folder: Path) -> None:
    """Create a folder; raises SetupProblem where that is not allowed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as exc:
        raise SetupProblem(
            "folder_not_writable",
            f"The folder {folder} cannot be written: {exc.strerror}.",
            "Set BERTH_ENGINE_CACHE to a folder that you can write, or change who owns this one.",
            path=str(folder),
            error=exc.strerror or "",
        ) from exc


def require_space(folder: Path, need: int) -> None:
    """Raise SetupProblem when the disk of `folder` (which exists) has less than `need` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise SetupProblem(
            "no_space",
            f"The disk of {folder} has {free / GIB:.1f} GiB free; {need / GIB:.1f} GiB are needed.",
            "Free some space, or set BERTH_ENGINE_CACHE to a folder on a larger disk.",
            path=str(folder),
            free_mib=free >> 20,
            need_mib=need >> 20,
        )


@contextmanager
def locked(cache: Path, name: str, *, wait_s: float = 3600.0) -> Iterator[int]:
    """Hold the lock `name` of this cache; yields its descriptor, to be handed to children.

    A child that outlives a killed parent keeps the lock, so nobody empties the folder that it still writes.
    """
    descriptor = os.open(cache / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline, told = time.monotonic() + wait_s, False
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise SetupProblem(
                    "busy",
                    f"Another command has been preparing {name} in {cache} for more than {wait_s:.0f} s.",
                    "Wait until it ends, or stop it, then try again.",
                    name=name,
                )
            if not told:
                say(f"Another command is preparing {name}; waiting for it.")
                told = True
            time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_marker(folder: Path) -> dict[str, Any] | None:
    """What the `.complete` marker says; None when there is none or it cannot be read as an object."""
    try:
        content = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_marker(folder: Path, content: Mapping[str, Any]) -> None:
    """Say that the folder is complete: in one step, and only after all before it is on the disk."""
    draft = folder / f"{COMPLETE}.new"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / COMPLETE)
    (folder / BUILDING).unlink(missing_ok=True)


def start_folder(folder: Path) -> None:
    """An empty folder to build in. What an interrupted build left is removed; a folder that is not ours is refused."""
    ours = (folder / BUILDING).exists() or (folder / COMPLETE).exists()
    if folder.exists() and not ours and any(folder.iterdir()):
        raise SetupProblem(
            "folder_not_ours",
            f"The folder {folder} exists and was not made by this command.",
            "Move it away, or set BERTH_ENGINE_CACHE to another folder.",
            path=str(folder),
        )
    if folder.exists():
        in_use = process_using(folder)
        if in_use is not None:
            raise SetupProblem(
                "in_use",
                f"Process {in_use} still runs from {folder}, which has to be made anew.",
                "Stop the engine that uses it, then try again.",
                path=str(folder),
                pid=in_use,
            )
        (folder / BUILDING).touch()  # before `.complete` goes, so that a kill in between leaves it ours
        (folder / COMPLETE).unlink(missing_ok=True)
        for entry in folder.iterdir():
            if entry.name != BUILDING:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BUILDING).touch()


def process_using(folder: Path) -> int | None:
    """The pid of a process whose command line names a program below this folder, if any."""
    prefix = f"{folder}/".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if any(argument.startswith(prefix) for argument in arguments[:2]):
            return int(entry.name)
    return None


def clean_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without what would lead another Python astray; pip's own settings stay."""
    drop = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {name: value for name, value in os.environ.items() if name not in drop} | dict(extra or {})


def run_logged(
    argv: Sequence[str],
    log: Path,
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
) -> tuple[int, str]:
    """Run a command with its output appended to `log`; returns the exit code and the output's last 64 KiB.

    Past `timeout_s` the command is killed and SetupProblem raised. `keep` are descriptors that it inherits.
    """
    with log.open("ab") as out:
        out.write(f"$ {' '.join(argv)}\n".encode())
        out.flush()
        start = out.tell()
        try:
            done = subprocess.run(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else clean_env(),
                pass_fds=tuple(keep),
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise SetupProblem(
                "too_slow",
                f"A step did not end within {timeout_s:.0f} s: {Path(argv[0]).name} {' '.join(argv[1:4])}.",
                f"Look at {log}, and try again; what was downloaded is kept by pip.",
            ) from exc
    with log.open("rb") as written:
        size = written.seek(0, os.SEEK_END)
        written.seek(max(start, size - (64 << 10)))
        return done.returncode, written.read().decode("utf-8", "replace")


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; numbers without a name (real-time signals) as `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def explain_pip_failure(output: str, log: Path) -> SetupProblem:
    """The plain sentence behind a failed `pip`, from what it printed. The first cause that fits counts."""
    lowered = output.lower()
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    last = (errors or output.strip().splitlines() or ["no output"])[-1].removeprefix("ERROR:").strip()[:500]
    for code, signs, message, hint in _PIP_FAILURES:
        if any(sign in lowered for sign in signs):
            line = next(line.strip() for line in output.splitlines() if any(sign in line.lower() for sign in signs))
            return SetupProblem(code, message, f"{hint} Details: {log}", line=line[:500])
    missing = re.search(r"no matching distribution found for ([^\s;]+)", output, re.IGNORECASE)
    if missing:
        known = re.findall(r"\(from versions: ([^)]*)\)", output)
        versions = [text.strip() for text in known[-1].split(",")][-8:] if known and known[-1] != "none" else []
        return SetupProblem(
            "no_such_version",
            f"None of the package sources has {missing.group(1)} for this host.",
            f"Check the version and the package sources that pip is configured with (pip config list). Details: {log}",
            package=missing.group(1)[:200],
            versions=versions,
        )
    return SetupProblem("pip_failed", f"Packages could not be installed: {last}", f"Details: {log}", line=last)


# (code, what pip prints, sentence, next step)
_PIP_FAILURES = (
    (
        "no_space",
        ("no space left on device", "disk quota exceeded"),
        "The disk ran full while packages were installed.",
        "Free some space, or set BERTH_ENGINE_CACHE to a folder on a larger disk.",
    ),
    (
        "hash_mismatch",
        ("do not match the hashes", "hashes are required in --require-hashes"),
        "A downloaded package is not the one that was wanted: its hash differs.",
        "Check the package sources that pip is configured with (pip config list).",
    ),
    (
        "index_certificate",
        ("certificate verify failed", "sslerror"),
        "The package source has a certificate that this host does not trust.",
        "Set PIP_CERT to the certificate authority of the package source, or correct its address.",
    ),
    (
        "index_refused",
        ("401 error", "403 error", "401 client error", "403 client error", "407 proxy"),
        "The package source refuses these credentials.",
        "Check the user name and the password in its address.",
    ),
    (
        "index_unreachable",
        (
            "connection broken",
            "connection refused",
            "name resolution",
            "max retries",
            "timed out",
            "proxyerror",
            "http error 5",
            "server error: ",
            "incompletedownload",
        ),
        "The package source cannot be reached.",
        "Check the network, a proxy, or pip's settings (pip config list), and try again.",
    ),
    (
        "python_unfit",
        ("require a different python version", "requires a different python"),
        "This version needs another version of Python.",
        "Install a Python that it is made for, or choose another version.",
    ),
    (
        "conflict",
        ("resolutionimpossible", "conflicting dependencies"),
        "The packages that it asks for contradict each other.",
        "Choose another version, or leave out the extras.",
    ),
)


def report(problem: SetupProblem, *, as_json: bool) -> int:
    """Print a problem for a person or a program; returns the exit code 2."""
    if as_json:
        sys.stdout.write(json.dumps({"code": problem.code, "message": problem.message, "hint": problem.hint}) + "\n")
    else:
        sys.stderr.write(f"{problem.message}\n{problem.hint}\n")
    return 2
