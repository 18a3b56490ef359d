"""Keeps this host's door open for the panel: a small process of its own that goes on while the agent is away.

    DIR/door/open.json   written here: which keys it takes, and the engines that run
    DIR/door/…           the door's own files, see panel/fleet/door/__main__.py

A door that runs is taken over when it is of the same make; its end touches no engine, and it is started again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from panel.fleet.agent.config import Config
from panel.fleet.agent.jobs import Jobs
from panel.fleet.agent.journal import read_json, write_json
from panel.fleet.agent.procs import Ident
from panel.fleet.agent.spawn import PACKAGE_ROOT
from panel.fleet.wire import DoorFacts, DoorOrder

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the process
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
STEADY_S = 60.0  # after so long the count of failures begins anew
ADDRESS_S = 30.0  # our own address is looked up again after this
END_S = 5.0  # a door that is told to go leaves its port at once, its answers later
LOG_LIMIT = 1 << 20
NO_PORT = 3  # its exit code
EVERYWHERE = ("0.0.0.0", "::")


class Running(NamedTuple):
    """A door that listens, by its own word."""

    process: Ident
    bind: str
    port: int
    certificate: str
    code: str


def running(folder: Path) -> Running | None:
    """The door of this folder that lives; None when there is none."""
    state = read_json(folder / "state.json")
    process = Ident.load(state.get("process")) if isinstance(state, dict) else None
    if process is None or not process.alive():
        return None
    words = [state.get(name) for name in ("bind", "certificate", "code")]
    if not all(isinstance(word, str) for word in words) or not isinstance(state.get("port"), int):
        return None
    return Running(process, words[0], state["port"], words[1], words[2])


def end(agent_folder: Path) -> None:
    """Tell the door to go; it finishes what it answers."""
    found = running(agent_folder / "door")
    if found is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.process.pid, signal.SIGTERM)


def accepts_of(work: bytes) -> list[str] | None:
    """Hashes of the keys that the work names; empty when no door is wanted, None when that cannot be read."""
    try:
        order = json.loads(work).get("door")
        return DoorOrder.model_validate(order).accepts if order is not None else []
    except (ValueError, AttributeError, RecursionError, ValidationError) as exc:
        log.warning("the order of the door cannot be read: %s", exc)
        return None


def own_address(panel: str) -> str:
    """The address of this machine on the way to the panel; "" when there is no way. Nothing is sent."""
    parts = urlsplit(panel)
    with contextlib.suppress(OSError):
        if not parts.hostname:
            return ""
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _name, address in found:
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as sock:
                sock.connect(address)
                return str(sock.getsockname()[0]).partition("%")[0]
    return ""


class DoorProcess:
    """`news` is called when what the panel should know of the door has changed."""

    def __init__(self, config: Config, jobs: Jobs, stop: threading.Event, news: Callable[[], None]) -> None:
        self.config, self.jobs, self.stop, self.news = config, jobs, stop, news
        self.folder = config.folder / "door"
        self.kick = threading.Event()
        self._accepts: list[str] | None = None  # None: the panel has not said yet
        self._child: subprocess.Popen[bytes] | None = None
        self._begun = self._due = 0.0
        self._failures, self._problem = 0, ""
        self._facts: DoorFacts | None = None
        self._address, self._address_at = "", float("-inf")
        self._code = ""

    # --- what others say and ask --------------------------------------------------------------------------------------

    def hear(self, work: bytes) -> None:
        """The panel's newest work."""
        accepts = accepts_of(work)
        if accepts is not None and accepts != self._accepts:
            self._accepts = accepts
            self.kick.set()

    def facts(self) -> DoorFacts | None:
        return self._facts

    def run(self) -> None:
        """The thread: until the agent ends; the door stays."""
        while not self.stop.is_set():
            self.kick.clear()
            try:
                self.look()
            except Exception:  # a full disk, a vanished folder: the engines must not suffer from it
                log.exception("the door could not be looked after")
            self.kick.wait(LOOK_S)

    # --- the work -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Make what should be true, once."""
        wanted = self._wanted()
        if wanted:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._write_open(wanted)
        found = running(self.folder)
        if found is not None and (not wanted or not self._is_ours(found)):
            self._end(found)
            found = None
        facts: DoorFacts | None = None
        if wanted:
            self._reap()
            if found is None:
                self._start()
                found = running(self.folder)
            facts = self._describe(found, wanted)
        if facts != self._facts:
            self._facts = facts
            self.news()

    def _wanted(self) -> list[str]:
        """Hashes of the keys; empty for no door. Until the panel spoke, what it said last time counts."""
        if not self.config.door_bind:
            return []
        if self._accepts is not None:
            return self._accepts
        before = read_json(self.folder / "open.json")
        accepts = before.get("accepts") if isinstance(before, dict) else None
        return [text for text in accepts if isinstance(text, str)] if isinstance(accepts, list) else []

    def _write_open(self, accepts: list[str]) -> None:
        with self.jobs.lock:
            runs = {
                job.record.id: {"host": job.record.host, "port": job.record.port, "process": job.engine.dump()}
                for job in self.jobs.living()
                if job.record.kind == "engine" and job.record.port and job.engine is not None
            }
        value: dict[str, Any] = {"accepts": accepts, "runs": runs}
        path = self.folder / "open.json"
        if read_json(path) != value:
            write_json(path, value)

    def _is_ours(self, found: Running) -> bool:
        if not self._code:
            from panel.fleet.door.mark import code_mark

            self._code = code_mark()
        return found.bind == self.config.door_bind and found.code == self._code

    def _end(self, found: Running) -> None:
        """It leaves its port at once and goes when its last answer is out; whoever hangs on is not waited for."""
        log.info("the door (pid %d) is told to go", found.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.process.pid, signal.SIGTERM)
        (self.folder / "state.json").unlink(missing_ok=True)
        self._due = 0.0

    def _reap(self) -> None:
        if self._child is None or self._child.poll() is None:
            return
        code, self._child = self._child.returncode, None
        if time.monotonic() - self._begun > STEADY_S:
            self._failures = 0
        wait = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
        self._failures += 1
        self._due = time.monotonic() + wait
        self._problem = "port_taken" if code == NO_PORT else "died"
        log.warning("the door ended (%s, code %s); it starts again in %g s", self._problem, code, wait)

    def _start(self) -> None:
        """One that starts already has a few seconds to say so."""
        if self._child is not None or time.monotonic() < self._due:
            return
        errors = self._open_log()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "panel.fleet.door", "--dir", str(self.folder), "--bind", self.config.door_bind],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=self.folder,
                env=self._env(),
                start_new_session=True,
            )
        finally:
            os.close(errors)
        self._begun = time.monotonic()
        end_at = self._begun + END_S
        while running(self.folder) is None and self._child.poll() is None and time.monotonic() < end_at:
            self.stop.wait(0.02)

    def _open_log(self) -> int:
        path = self.folder / "door.log"
        if path.exists() and path.stat().st_size > LOG_LIMIT:
            path.replace(path.with_name("door.log.1"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _env(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
        path = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**kept, "PYTHONPATH": ":".join(path), "PYTHONUNBUFFERED": "1"}

    # --- what the panel is told ---------------------------------------------------------------------------------------

    def _describe(self, found: Running | None, accepts: list[str]) -> DoorFacts:
        if found is None:
            wish = self.config.door_bind.rpartition(":")[2]
            problem = self._problem or "starting"
            return DoorFacts(port=int(wish) if wish.isdigit() else 0, accepts=accepts, problem=problem)
        self._problem = ""
        return DoorFacts(
            address=self._where(), port=found.port, certificate=found.certificate, accepts=accepts, problem=""
        )

    def _where(self) -> str:
        bound = self.config.door_bind.rpartition(":")[0].strip("[]")
        if self.config.door_address or bound not in EVERYWHERE:
            return self.config.door_address or bound
        if time.monotonic() - self._address_at > ADDRESS_S:
            self._address_at = time.monotonic()
            self._address = own_address(self.config.panel) or self._address
        return self._address
