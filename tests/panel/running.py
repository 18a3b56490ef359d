"""A panel as people run it: `manage.py up` in a folder and on a port of its own."""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


class Panel:
    """A panel in its own folder; `env` is what a person would have set."""

    def __init__(self, data: Path, port: int) -> None:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "DATABASE_", "REDIS_"))
        }
        self.env = {
            **kept,
            "DJANGO_SETTINGS_MODULE": "panel.settings",
            "BERTH_DATA": str(data),
            "BERTH_BIND": f"127.0.0.1:{port}",
        }
        self.data, self.port = data, port
        self.process: subprocess.Popen[bytes] | None = None
        self.out = data.parent / "up.out"

    def manage(self, *args: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "manage.py", *args]
        return subprocess.run(
            argv, cwd=ROOT, env={**self.env, **env}, capture_output=True, text=True, timeout=timeout, check=False
        )

    def begin(self) -> None:
        """Start it and do not wait."""
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up"], cwd=ROOT, env=self.env, stdout=out, stderr=out
            )

    def up(self) -> "Panel":
        """Start it; return when it says that it is ready."""
        self.begin()
        self.until(lambda: "Ctrl-C stops it" in self.said() or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.said()
        return self

    def said(self) -> str:
        return self.out.read_text()

    def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def get(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def part(self, word: str) -> psutil.Process:
        found = [child for child in self.tree() if word in " ".join(child.cmdline())]
        assert len(found) == 1, f"{word}: {found}"
        return found[0]

    def tree(self) -> list[psutil.Process]:
        """What `up` itself started; jobs of the agent are not among them, and live on by design."""
        return psutil.Process(self.process.pid).children()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
