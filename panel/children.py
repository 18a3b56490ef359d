"""Child processes of `manage.py up` and of the embedded servers: none outlives its parent."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
from django.utils.translation import gettext_lazy as _

from panel.core.errors import PanelError

STOP_S = 15.0
LOG_LIMIT = 8 << 20


class EmbeddedError(PanelError):
    code = "embedded_server"
    status = 500


class Child:
    """A server process: started by us, or one that outlived its parent and was recognised as ours."""

    name = ""
    stop_signals: tuple[str, ...] = ("TERM", "KILL")
    death_signal = "TERM"  # what it gets when we vanish

    def __init__(self, data: Path) -> None:
        self.data = data
        self.log = data / "log" / f"{self.name}.log"
        self.child: subprocess.Popen[bytes] | None = None
        self.process: psutil.Process | None = None
        self.adopted = False

    def spawn(self, argv: list[str]) -> None:
        """Start it in its own session, so that Ctrl-C reaches only the one who decides, and tie its life to ours."""
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                tied(argv, self.death_signal),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.data,
            )
        self.process = psutil.Process(self.child.pid)

    def adopt(self, pid: int) -> None:
        self.process, self.adopted = psutil.Process(pid), True

    def alive(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        try:
            return self.process is not None and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

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

    def ended(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def stop(self, seconds: float = STOP_S) -> None:
        """Ask politely, then less so; returns when the process is gone."""
        for name in self.stop_signals:
            self.signal(name)
            if self.ended(seconds):
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
