"""Have an engine check its command, as a job: the order in, a wire.JobResult out; the log is stdout.

The work is done by the engine's own Python (check_script.py) in the environment that a start would have, under the
rules that the agent applied to the order (guard.py), and one at a time: importing an engine takes a core and a GiB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from panel.fleet.agent import facts, flag_schema, guard
from panel.fleet.agent.check_script import SAYS
from panel.fleet.agent.config import Config
from panel.fleet.agent.guard import Refused
from panel.fleet.agent.install_pip import Teller, run
from panel.fleet.agent.provision import locked
from panel.fleet.agent.sidecar_job import carried_out
from panel.fleet.wire import CheckTask, JobResult

SCRIPT = Path(__file__).with_name("check_script.py")
LIMIT_S = 150.0  # of one check: importing an engine from a slow disk takes a minute
WAIT_S = 100.0  # for another one on this host
MOST_OUTPUT = 48 << 10  # characters of what the engine said that travel with the verdict
MOST_FILES = 20  # that are told
LITTLE = 8 << 10  # where nothing has to be explained


def check(settings: Config, task: CheckTask, folder: Path) -> JobResult:
    """What the engine thinks of its command; see wire.CheckTask."""
    return carried_out(folder, "check", lambda teller: [_checked(settings, task, folder, teller)])


def _checked(settings: Config, task: CheckTask, folder: Path, teller: Teller) -> dict[str, Any]:
    python = flag_schema.runtime_python(Path(task.argv[0]))
    if python is None:
        raise Refused("check.no_python", executable=task.argv[0][:500])
    env = guard.engine_env(task, os.environ.get("BERTH_JOB", ""), os.environ)
    said: list[str] = []

    def heard(line: str) -> bool:
        if line.startswith(SAYS):
            said[:] = [line]  # the last word counts
        return not line.startswith(SAYS)

    with locked(settings.folder, "checking", wait_s=WAIT_S) as lock:
        began = time.monotonic()
        argv = [str(python), str(SCRIPT), *task.argv]
        code, output = run(argv, teller, env=env, timeout_s=LIMIT_S, keep=[lock], heard=heard)
    ended = _ended(code, said[-1] if said else "")
    return {
        **ended,
        "output": output[-(LITTLE if ended["verdict"] == "passed" else MOST_OUTPUT) :].replace("\0", " "),
        "seconds": round(time.monotonic() - began, 1),
        "host": host(folder, env),
        "files": changed(Path(task.model_path), task.files),
    }


def changed(model: Path, files: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """Of these files of the model (name, bytes) those that are missing or of another size; a look, nothing is read."""
    folder = model if model.is_dir() else model.parent
    found: list[dict[str, Any]] = []
    for name, was in files:
        place = Path(name)
        if place.is_absolute() or ".." in place.parts or "\0" in name:
            continue
        try:
            now: int | None = (folder / place).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            now = None
        except OSError:  # it cannot be told
            continue
        if now != was:
            found.append({"name": name, "was": was, "now": now})
    return found[:MOST_FILES]


def _ended(code: int, said: str) -> dict[str, Any]:
    """The verdict: what the script said, and for an engine that ended the process itself, how it did."""
    if '"passed"' in said and code == 0:
        return {"verdict": "passed"}
    if '"unknown"' in said and code == 0:
        return {"verdict": "unknown"}
    how = {"signal": -code} if code < 0 else {"exit_code": code}
    # A parser ends with 2, and writes what is wrong; 0 would be an end that says nothing.
    return {"verdict": "refused" if code else "unknown", **how}


def host(folder: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """What a start with this environment needs of this host beside memory."""
    room = facts.start_room(folder, env)
    disks = {"log": room["log_mib"], "cache": room["cache_mib"]}
    return {
        "shm_mib": room["shm_mib"],
        "open_files": room["open_files"],
        "disks": {name: free for name, free in disks.items() if free is not None},
    }
