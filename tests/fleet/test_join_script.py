"""The script that a machine runs, against one who stands between it and the panel and answers in its place."""

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.joining import agent_bundle


class Between(BaseHTTPRequestHandler):
    """Gives the real agent, whose hash is known, and a list of packages of its own making."""

    lists: bytes = b""
    asked: list[str] = []

    def log_message(self, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        self.asked.append(self.path)
        last = self.path.rpartition("/")[2]
        body = b"* * * * * root evil\n"
        if last == "agent.zip":
            body = agent_bundle.bundle().data
        elif last.startswith("cp3"):
            body = self.lists
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def between() -> Iterator[str]:
    Between.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Between)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.parametrize(
    "name",
    ["../../../cron.whl", "../../../cron", "../x.whl", "a/../../../cron.whl", "/{home}/cron.whl", ".whl", "list", ""],
)
def test_names_of_packages_lead_nowhere(between: str, tmp_path: Path, settings: Any, name: str) -> None:
    settings.BERTH_PUBLIC_URL = between
    home = tmp_path / "home"
    home.mkdir()
    name = name.replace("{home}", str(home).lstrip("/"))
    Between.lists = f"{hashlib.sha256(b'* * * * * root evil' + bytes([10])).hexdigest()} {name}\n".encode()
    script = home / "berth-join.sh"
    script.write_text(agent_bundle.script())
    # A virtual environment takes seconds to make and is not what this is about.
    python = home / "python3"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in "-m venv "*) mkdir -p "$3/bin"; ln -s /bin/false "$3/bin/python"; exit 0 ;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    before = set(tmp_path.rglob("*"))
    done = subprocess.run(
        ["sh", str(script), "0000-0000-0000", "--dir", "berth", "--no-service", "--no-start"],
        cwd=home,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "BERTH_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert any(path.rpartition("/")[2].startswith("cp3") for path in Between.asked), done.stdout + done.stderr
    evil = [path for path in set(tmp_path.rglob("*")) - before if path.is_file() and b"root evil" in path.read_bytes()]
    assert evil == []
    assert done.returncode == 1 and "no name of a package" in done.stderr, done.stdout + done.stderr
