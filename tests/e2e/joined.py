"""For tests of joining: the panel's web process behind a certificate of its own, and machines that run the real script."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.stack import ROOT, Stack
from tests.waiting import free_port, until


def certificate(folder: Path, address: str = "127.0.0.1", name: str = "panel") -> tuple[Path, Path]:
    """A self-made certificate and its key."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "30", "-subj", f"/CN={address}", "-addext", f"subjectAltName=IP:{address}"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


class Front:
    """The panel by https: one more web process of the stack, with a certificate that nobody vouches for."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.folder, self.address, self.port = folder, address, free_port()
        self.url = f"https://{address}:{self.port}"
        self.cert, self.key = certificate(folder, address)

    @property
    def env(self) -> dict[str, str]:
        """What the stack's processes must know of it."""
        return {"BERTH_URL": self.url}

    def start(self, stack: Stack) -> None:
        args = ["-m", "uvicorn", "panel.asgi:application", "--host", self.address, "--port", str(self.port)]
        args += [
            "--ssl-keyfile",
            str(self.key),
            "--ssl-certfile",
            str(self.cert),
            "--lifespan",
            "on",
            "--no-access-log",
        ]
        log = (self.folder / "front.log").open("ab")
        stack.procs["front"] = subprocess.Popen(
            [sys.executable, *args], cwd=ROOT, env=stack.env, stdout=log, stderr=log, start_new_session=True
        )
        until(self.answers, timeout=30, why="the panel answers by https")

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=1, verify=False).status_code == 200
        except httpx.HTTPError:
            return False


class Machine:
    """A machine that joins by the script: a home of its own, no systemd, and the tests' packages instead of an index."""

    def __init__(self, folder: Path, *, prepared: bool = True) -> None:
        self.home = folder
        self.home.mkdir()
        self.dir = folder / "berth"
        self.prepared = prepared

    @property
    def env(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"HOME": str(self.home), "PATH": path, "BERTH_PYTHON": sys.executable, "TMPDIR": str(self.home)}

    def prepare(self, requirements: str) -> None:
        """The virtual environment that the script would make, from this one: no test fetches packages."""
        import hashlib

        digest = hashlib.sha256(requirements.encode()).hexdigest()[:12]
        venv = self.dir / "venvs" / f"{sys.version_info[0]}.{sys.version_info[1]}-{digest}"
        (venv / "bin").mkdir(parents=True)
        (venv / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (venv / "bin/python").chmod(0o755)
        (venv / ".complete").touch()
        (self.dir / ".berth-agent").touch()

    def sh(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", *command], cwd=self.home, env={**self.env, **env}, capture_output=True, text=True, timeout=120
        )

    def paste(self, command: str, *more: str) -> subprocess.CompletedProcess[str]:
        """The command from the page, as a person pastes it."""
        from panel.fleet.joining import agent_bundle

        if self.prepared and not (self.dir / "venvs").exists():
            self.prepare(agent_bundle.requirements())
        words = " ".join(["--no-service", "--dir", str(self.dir), *more])
        return self.sh("-c", f"{command} {words}")

    def script(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.sh(str(self.dir / "berth-join.sh"), *args, "--dir", str(self.dir), "--no-service")

    def agents(self) -> list[int]:
        """Processes of its agent, by their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[1:5] == [b"-m", b"panel.fleet.agent", b"--dir", str(self.dir / "agent").encode()]:
                    found.append(int(entry.name))
        return found

    def config(self) -> dict[str, Any]:
        return dict(json.loads((self.dir / "agent/agent.json").read_text()))

    def configure(self, **values: Any) -> None:
        path = self.dir / "agent/agent.json"
        path.write_text(json.dumps({**self.config(), **values}))

    def processes(self) -> list[int]:
        """All that was started from its home: agents, doors, shims, engines."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if any(word.startswith(f"{self.home}/".encode()) for word in words):
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        """Whatever the test left running; agents first, which would start the rest again."""
        for pid in [*self.agents(), *self.processes()]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


@contextmanager
def machine(folder: Path, **kwargs: Any) -> Iterator[Machine]:
    made = Machine(folder, **kwargs)
    try:
        yield made
    finally:
        made.end()


def code_of(command: str) -> str:
    found = re.search(r"[0-9A-Z]{4}-[0-9A-Z]{4}-[0-9A-Z]{4}", command)
    assert found, command
    return found.group()
