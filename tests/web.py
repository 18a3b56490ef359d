"""Starts the web process of tests/serve.py as a child, against the test database and the test broker."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from django.conf import settings

from tests.servers import Servers

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Web:
    """A running web process; `log` is the file that holds what it said."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, *, within_s: float = 10) -> float:
        """TERM; returns the seconds it took. Kills it after `within_s` and fails."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the web process did not stop within {within_s} s:\n{self.log.read_text()}") from None
        return time.monotonic() - began


@contextmanager
def web_process(
    servers: Servers, folder: Path, application: str = "panel.asgi:application", **extra: str
) -> Iterator[Web]:
    """A web process that answers /healthz. Needs a database fixture whose rows are committed (`transactional_db`)."""
    log = folder / "web.log"
    env = servers.environment(settings.BERTH_DATA, PYTHONPATH=str(ROOT), **extra)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.serve", application],
            stdout=subprocess.PIPE, stderr=out, cwd=ROOT, env=env, start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line, f"the web process did not start:\n{log.read_text()}"
        web = Web(f"http://127.0.0.1:{int(line)}", process, log)
        _wait_until_up(web)
        yield web
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()


def _wait_until_up(web: Web) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if httpx.get(f"{web.url}/healthz", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"the web process does not answer:\n{web.log.read_text()}")
