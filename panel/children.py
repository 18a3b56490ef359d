"""Child processes of `manage.py up` and of the embedded servers: none outlives its parent."""

import fcntl
import os
import shutil
import signal
import subprocess
import time
import weakref
from pathlib import Path
from typing import IO

import psutil
from django.utils.translation import gettext_lazy as _

from panel.core.errors import PanelError
from panel.forked import Forked

STOP_S = 15.0
LOG_LIMIT = 8 << 20


class EmbeddedError(PanelError):
    code = "embedded_server"
    status = 500


class AlreadyHeld(Exception):
    """Another process holds the lock; `pid` says which, as far as it told."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


class OwnerLock:
    """A file that one process holds; the kernel lets go when that process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None
        mine = weakref.ref(self)
        # A copy of this process (panel/forked.py) must not go on holding what the first one held.
        os.register_at_fork(after_in_child=lambda: lock.release() if (lock := mine()) is not None else None)

    def take(self) -> None:
        """Raises AlreadyHeld."""
        file = self.path.open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip()
            file.close()
            raise AlreadyHeld(int(pid) if pid.isdigit() else 0) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def owner(self) -> int | None:
        """Pid of the process that holds it, None when nobody does."""
        if not self.path.exists():
            return None
        try:
            self.take()
        except AlreadyHeld as held:
            return held.pid
        self.release()
        return None


class Child:
    """A server process: started by us, or one that outlived its parent and was recognised as ours."""

    name = ""
    stop_signals: tuple[str, ...] = ("TERM", "KILL")
    stop_seconds = STOP_S  # after each of them
    death_signal = "TERM"  # what it gets when we vanish

    def __init__(self, data: Path) -> None:
        self.data = data
        self.log = data / "log" / f"{self.name}.log"
        self.child: subprocess.Popen[bytes] | Forked | None = None
        self.process: psutil.Process | None = None
        self.adopted = False

    def start(self) -> None:
        raise NotImplementedError

    def spawn(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        """Start it in its own session, so that Ctrl-C reaches only the one who decides, and tie its life to ours.

        Its life hangs on the thread that calls this, so that must be one that lives as long as this process.
        """
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        self.bound_log()
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                tied(argv, self.death_signal),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=cwd or self.data,
                env=env,
            )
        self.process = psutil.Process(self.child.pid)

    def bound_log(self) -> None:
        """Keep the newest full file beside the current one. The child appends to an open file: copy, then empty it."""
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)

    def adopt(self, pid: int) -> None:
        self.process, self.adopted = psutil.Process(pid), True

    def alive(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        try:
            return self.process is not None and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs and for one that was taken over."""
        return self.child.poll() if self.child is not None else None

    def answers(self) -> bool:
        raise NotImplementedError

    def wait_ready(self, deadline: float) -> None:
        """Return when the server answers; `deadline` is a time.monotonic() value."""
        while not self.answers():
            if not self.alive():
                raise self._failed(_("%(name)s ended while it was starting: %(line)s"))
            if time.monotonic() > deadline:
                raise self._failed(_("%(name)s did not answer in time: %(line)s"))
            time.sleep(0.02)

    def _failed(self, message: object) -> EmbeddedError:
        hint = _("Its log is %(log)s. You can also set DATABASE_URL and REDIS_URL to servers of your own.")
        params = {"name": self.name, "line": last_line(self.log), "log": self.log}
        return EmbeddedError("embedded_failed", message, hint, params=params)

    def signal(self, name: str) -> None:
        if self.alive() and self.process is not None:
            try:
                self.process.send_signal(getattr(signal, f"SIG{name}"))
            except psutil.NoSuchProcess:
                return

    def ended(self) -> bool:
        """Wait for its end, at most `stop_seconds` (which an impatient person may shorten meanwhile)."""
        begin = time.monotonic()
        while self.alive():
            if time.monotonic() - begin > self.stop_seconds:
                return False
            time.sleep(0.02)
        return True

    def settle(self) -> None:
        """What may be done before the end while others still end; nothing here."""

    def stop(self) -> None:
        """Ask politely, then less so; returns when the process is gone."""
        for name in self.stop_signals:
            self.signal(name)
            if self.ended():
                return


def tied(argv: list[str], signal_name: str = "TERM") -> list[str]:
    """The command so that it gets this signal when the thread that starts it ends, however it ends (kill -9 too).

    `setpriv` and not a hook between fork and exec: those are unsafe in a process with threads. `unshare` comes
    first in argv: its change of credentials would clear the wish.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return argv
    wish = [setpriv, "--pdeathsig", signal_name, "--"]
    if "unshare" in Path(argv[0]).name:
        namespace = next(i for i, part in enumerate(argv) if i and not part.startswith("-"))
        return [*argv[:namespace], *wish, *argv[namespace:]]
    return [*wish, *argv]


def last_line(log: Path) -> str:
    """The last line a server wrote, for the one sentence that a person reads."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return "-"
    return lines[-1] if lines else "-"
