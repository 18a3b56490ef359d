"""Work with an engine's own Python as a job: the order in, a wire.JobResult out; the log is stdout.

What all three kinds (sidecar, convert, package) share: a stop that cleans up, and failures as codes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from panel.fleet.agent import sidecar
from panel.fleet.agent.config import Config
from panel.fleet.agent.download_job import Notes
from panel.fleet.agent.guard import Refused
from panel.fleet.agent.install_pip import Teller, mask, secrets_in
from panel.fleet.agent.provision import SetupProblem
from panel.fleet.wire import JobResult, Refusal, SidecarTask

FULL = (27, 28, 122)  # file too large, no space, quota


def carried_out(
    folder: Path, word: str, act: Callable[[Teller], list[dict[str, Any]]], addresses: Iterable[str] = ()
) -> JobResult:
    """What `act` found, or the refusal with the cause, its code beginning with `word`. `folder` is the job's."""
    signal.signal(signal.SIGTERM, _leave)
    secrets = secrets_in(addresses)
    notes = Notes(folder, secrets)
    teller = Teller(notes.say, lambda phase, done, total, note: notes.progress(phase, done, total, note), secrets)
    try:
        return JobResult(items=act(teller))
    except Refused as exc:
        refusal = exc.refusal
    except SetupProblem as exc:
        refusal = Refusal(code=f"{word}.{exc.code}", params=exc.params)
    except OSError as exc:
        params = {"path": str(exc.filename or folder)[:500], "error": exc.strerror or ""}
        refusal = Refusal(code=f"{word}.{'disk_full' if exc.errno in FULL else 'system'}", params=params)
    teller.say(f"{refusal.code}: {refusal.params}")
    masked = {key: mask(value, secrets) if isinstance(value, str) else value for key, value in refusal.params.items()}
    return JobResult(refusal=Refusal(code=refusal.code, params=masked))


def describe(settings: Config, task: SidecarTask, folder: Path) -> JobResult:
    """Where the description of a GGUF file lies."""

    def act(teller: Teller) -> list[dict[str, Any]]:
        made = sidecar.make(settings, task, teller)
        teller.say(
            f"{made['folder']} describes {task.path}." if made["made"] else f"{made['folder']} was there already."
        )
        return [made]

    return carried_out(folder, "sidecar", act)


def _leave(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # cleaning up takes its time once
    raise KeyboardInterrupt
