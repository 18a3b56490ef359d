"""What the agent must remember over its own death: jobs, tombstones, the newest revision. All below one folder.

    lock            held by the one agent of this folder
    state.json      newest work revision
    tombstones      ids that must never start (again), one a line, newest last
    runtimes.json   engines that a discovery found to work
    jobs/<id>/      job.json (this file), and the shim's files; see shim.py

Every file is replaced by rename, so a kill at any point leaves the old or the new one. What cannot be read is treated
as not there. Secrets are never written.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from panel.fleet.agent import private

log = logging.getLogger(__name__)

KEEP_TOMBSTONES = 10_000


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Replace a small file atomically, readable by this user alone; `durable` also survives a power cut."""
    private.write(path, json.dumps(value), durable=durable)


def read_json(path: Path) -> Any:
    """The content, or None when the file is missing or torn."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        log.warning("cannot read %s: %s", path, exc)
        return None


def is_job_id(text: str) -> bool:
    """A canonical uuid and nothing else: the id becomes a folder's name."""
    try:
        return str(uuid.UUID(text)) == text
    except (ValueError, AttributeError):
        return False


@dataclass
class Final:
    """How a job ended, for good. `refusal` is a wire.Refusal as a dict; with no exit code and signal it says why."""

    state: str  # ended or refused
    ended_at: float
    exit_code: int | None = None
    signal: int | None = None
    refusal: dict[str, Any] | None = None

    @property
    def said(self) -> str:
        """For the agent's log."""
        how = f"exit code {self.exit_code}" if self.exit_code is not None else f"signal {self.signal}"
        return f"{self.state}: {self.refusal.get('code') if self.refusal else how}"


@dataclass
class Record:
    """One job as the agent remembers it. Times are Unix seconds."""

    id: str
    kind: str
    accepted_at: float = 0.0
    grace_s: float = 30.0
    argv: list[str] = field(default_factory=list)
    reads: str = ""  # a model that it reads although its command does not name it
    port: int | None = None
    host: str = "127.0.0.1"
    shim: list[int | str] | None = None
    head: int = 8 << 20
    tail: int = 56 << 20
    deadline_at: float | None = None  # of scans and discoveries
    stop_asked_at: float | None = None
    stop_reason: str = ""  # "" for a stop by order, else a code such as timed_out
    cleaning_since: float | None = None  # the main process left, others did not
    killed: bool = False
    result_sent: bool = False
    trace: str = ""  # of the request that ordered it
    final: Final | None = None

    @property
    def over(self) -> bool:
        return self.final is not None

    @classmethod
    def load(cls, raw: Any) -> Record | None:
        """None when the data is not a record."""
        if not isinstance(raw, dict) or not is_job_id(str(raw.get("id"))):
            return None
        known = {key: value for key, value in raw.items() if key in cls.__dataclass_fields__}
        try:
            final = Final(**known["final"]) if known.get("final") else None
            return cls(**{**known, "final": final})
        except TypeError:
            return None


class Busy(Exception):
    """Another agent holds the folder."""


class Journal:
    """The agent's folder. Call `lock()` before anything else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"
        self._lock = -1
        self._tombstones: dict[str, None] = {}
        self._unwritten: list[str] = []

    def lock(self, wait_s: float = 0.0) -> None:
        """Become the one agent of this folder and load what is remembered. Raises Busy."""
        self.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    os.close(handle)
                    raise Busy(str(self.folder)) from None
                time.sleep(0.1)
        self._lock = handle
        self._load_tombstones()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- revision ---------------------------------------------------------------------------------------------------

    def load_rev(self) -> int:
        raw = read_json(self.folder / "state.json")
        rev = raw.get("rev") if isinstance(raw, dict) else None
        return rev if isinstance(rev, int) else 0

    def save_rev(self, rev: int) -> None:
        write_json(self.folder / "state.json", {"rev": rev})

    # --- tombstones -------------------------------------------------------------------------------------------------

    def _load_tombstones(self) -> None:
        try:
            lines = (self.folder / "tombstones").read_text().split("\n")
        except FileNotFoundError:
            lines = []
        self._tombstones = dict.fromkeys(line for line in lines if is_job_id(line))

    def buried(self, job_id: str) -> bool:
        return job_id in self._tombstones

    def bury(self, job_ids: Iterable[str]) -> None:
        """Refuse these ids for good (the newest 10000 of them). On disk when this returns; else raises OSError.

        They count in this process even then, and the next call writes them too.
        """
        self._unwritten += [i for i in dict.fromkeys(job_ids) if i not in self._tombstones]
        new = self._unwritten
        if not new:
            return
        self._tombstones.update(dict.fromkeys(new))
        if len(self._tombstones) > KEEP_TOMBSTONES * 1.2:
            self._compact()
        else:
            self._append(new)
        self._unwritten = []

    def _append(self, job_ids: list[str]) -> None:
        # Starts with a line end, so that a line torn by a power cut cannot swallow the next one.
        handle = os.open(self.folder / "tombstones", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, ("\n" + "\n".join(job_ids) + "\n").encode())
            os.fsync(handle)
        finally:
            os.close(handle)

    def _compact(self) -> None:
        self._tombstones = dict.fromkeys(list(self._tombstones)[-KEEP_TOMBSTONES:])
        private.write(self.folder / "tombstones", "\n".join(self._tombstones) + "\n")

    # --- jobs -------------------------------------------------------------------------------------------------------

    def folder_of(self, job_id: str) -> Path:
        return self.jobs / job_id

    def save(self, record: Record, *, durable: bool = False) -> None:
        folder = self.folder_of(record.id)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_json(folder / "job.json", asdict(record), durable=durable)

    def records(self) -> list[Record]:
        """All remembered jobs, oldest first. A folder whose record is missing or torn counts if anything ran in it."""
        found = []
        for folder in self.jobs.iterdir():
            if not is_job_id(folder.name):
                continue
            record = Record.load(read_json(folder / "job.json"))
            if record is not None and record.id == folder.name:
                found.append(record)
            elif (folder / "run.json").exists() or self.watched(folder.name):
                found.append(Record(id=folder.name, kind="engine"))
            else:  # killed before the record was written: nothing was started
                self.drop(folder.name)
        return sorted(found, key=lambda record: record.accepted_at)

    def drop(self, job_id: str) -> None:
        """Delete a job's files."""
        folder = self.folder_of(job_id)
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return

    # --- the lock of a job, shared by the agent and its shim ---------------------------------------------------------

    def take_job_lock(self, job_id: str) -> int:
        """A locked file descriptor to hand to a shim; -1 when a shim already lives. The lock dies with its holders."""
        path = self.folder_of(job_id) / "lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return -1
        return handle

    def watched(self, job_id: str) -> bool:
        """Whether a shim of this job lives, even one that has not written anything yet."""
        if not self.folder_of(job_id).is_dir():
            return False
        handle = self.take_job_lock(job_id)
        if handle < 0:
            return True
        os.close(handle)
        return False
