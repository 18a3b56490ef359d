"""A download as a job: the order in, a wire.JobResult out; the log is stdout, progress a small file."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from models_catalog.inspect.scan import scan_roots
from panel.fleet.agent import download_order, guard
from panel.fleet.agent.config import Config
from panel.fleet.agent.download import Download
from panel.fleet.agent.download_http import Patience, Session, Trouble
from panel.fleet.agent.download_pool import disk_trouble
from panel.fleet.agent.download_store import Store
from panel.fleet.agent.download_sums import Checked
from panel.fleet.agent.install_pip import mask, secrets_in
from panel.fleet.agent.journal import write_json
from panel.fleet.wire import DownloadTask, JobResult, Progress, Refusal

SAY_S = 1.0  # between two notes of progress in one phase
CHECKED = "checked.json"  # in the agent's folder


class Notes:
    """Tells on stdout and in `progress.json`; secrets nowhere."""

    def __init__(self, folder: Path, secrets: tuple[str, ...] = ()) -> None:
        self.folder, self.secrets = folder, secrets
        self.told = (0.0, "", "")
        self.phases: list[str] = []

    def say(self, text: str) -> None:
        sys.stdout.write(mask(text, self.secrets) + "\n")
        sys.stdout.flush()

    def progress(
        self,
        phase: str,
        done: int = 0,
        total: int = 0,
        note: str = "",
        *,
        rate: float = 0.0,
        silent_s: float = 0.0,
        trouble: str = "",
    ) -> None:
        now = time.monotonic()
        if self.told[1:] == (phase, trouble) and now - self.told[0] < SAY_S and done < total:
            return
        self.told = (now, phase, trouble)
        if phase not in self.phases:
            self.phases.append(phase)
        told = Progress(
            phase=phase, done=done, total=total, note=note[:200], passed=self.phases[: self.phases.index(phase)],
            rate=round(rate), silent_s=round(silent_s), trouble=trouble,
        )  # fmt: skip
        write_json(self.folder / "progress.json", told.model_dump())


def download(settings: Config, task: DownloadTask, folder: Path) -> JobResult:
    """The models that lie there now, or the refusal with the cause. `folder` is the job's."""
    signal.signal(signal.SIGTERM, _leave)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it names addresses, and those of stores carry signatures
    secrets = {name: os.environ.pop(name) for name in download_order.SECRETS if os.environ.get(name)}
    notes = Notes(folder, (*secrets.values(), *secrets_in([secrets.get(download_order.PROXY, "")])))
    try:
        return _download(settings, task, notes, secrets)
    except guard.Refused as exc:
        return _refused(notes, exc.refusal)
    except Trouble as exc:
        return _refused(notes, exc.refusal)
    except OSError as exc:
        return _refused(notes, disk_trouble(exc, Path(task.folder) / "x").refusal)


def _download(settings: Config, task: DownloadTask, notes: Notes, secrets: Mapping[str, str]) -> JobResult:
    roots = settings.current_roots()
    download_order.check(
        task,
        allowed=settings.allow_download,
        endpoints=settings.download_endpoints,
        roots=roots,
        secrets=secrets,
    )
    patience = Patience(stall_s=task.stall_s)
    session = Session(
        endpoint=task.endpoint,
        token=secrets.get(download_order.TOKENS[task.source], ""),
        proxy=secrets.get(download_order.PROXY) or task.proxy,
        patience=patience,
        connections=task.connections,
        named=settings.download_endpoints or (),
    )
    store = Store(task, roots)
    order = Download(task, store, session, Checked(settings.folder / CHECKED), notes, patience)
    if task.discard:
        order.discard()
        return JobResult()
    made = order.run()
    root = next((root for root in roots if store.place.resolve().is_relative_to(root.resolve())), store.place)
    return JobResult(items=list(_found(settings, root, made)))


def _found(settings: Config, root: Path, made: Path) -> list[dict[str, Any]]:
    """The models in the new folder, as a scan of its root tells of them."""
    items = scan_roots([root], known=settings.folder / "models.sqlite3")
    real = os.path.realpath(made)
    return [dict(item) for item in items if item["format"] != "folder" and _is_at(item["path"], real)]


def _is_at(path: str, folder: str) -> bool:
    """Whether a model is this folder or a file below it; a file of the cache is a link out of it."""
    return os.path.realpath(path) == folder or Path(os.path.realpath(Path(path).parent)).is_relative_to(folder)


def _refused(notes: Notes, refusal: Refusal) -> JobResult:
    notes.say(f"{refusal.code}: {refusal.params}")
    params = {key: _masked(value, notes.secrets) for key, value in refusal.params.items()}
    return JobResult(refusal=Refusal(code=refusal.code, params=params))


def _masked(value: object, secrets: tuple[str, ...]) -> object:
    return mask(value, secrets) if isinstance(value, str) else value


def _leave(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what came is being brought to the disk
    raise KeyboardInterrupt
