"""A panel with everything open that keeps a server waiting: for the test of a clean shutdown, and for its figure."""

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.panel.running import Panel
from tests.waiting import free_port, until

PASSWORD = "correct horse battery"
TERM = signal.SIGTERM


class Busy:
    """A panel that serves: live pages, answers that stream, a question that hangs in the probe, agents' long-polls."""

    def __init__(self, folder: Path) -> None:
        self.panel = Panel(folder / "data", free_port())
        self.models, self.engines = folder / "models", folder / "engines"
        self.models.mkdir()
        make_fake_engine(self.engines)
        make_fake_model(self.models / "talks", phase_s=0.01, token_s=0.5, text="word " * 400)
        make_fake_model(self.models / "hangs", phase_s=0.01, mode="answers_late")
        self.panel.env |= {"HOME": str(folder), "PATH": f"{self.engines}:{os.environ['PATH']}"}
        self.open: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.panel.port}"

    def start(self) -> None:
        self.panel.up()
        config = self.panel.data / "agent" / "agent.json"
        values = {**json.loads(config.read_text()), "model_roots": [str(self.models)]}
        config.write_text(json.dumps(values))
        self.panel.part("panel.fleet.agent --dir").kill()  # it reads its settings at its start; `up` starts it again
        self.browser = httpx.Client(base_url=self.url, timeout=30, headers={"Sec-Fetch-Mode": "navigate"})
        link = re.search(r"http://localhost:\d+(/first-admin/\S+)", self.panel.said())
        assert link is not None
        self.send(link[1], name="ada", password=PASSWORD, again=PASSWORD)
        made = self.panel.manage("token", "create", "ada", "tests", "--scope", "api:write")
        self.api = httpx.Client(base_url=f"{self.url}/api/v1", timeout=30, headers=bearer(made.stdout))
        self.door = bearer(self.panel.manage("token", "create", "ada", "door").stdout)

    def send(self, path: str, **values: str) -> None:
        page = self.browser.get(path)
        field = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert field is not None, page.text
        answer = self.browser.post(path, data={**values, "csrfmiddlewaretoken": field[1]})
        assert answer.status_code in (204, 302), answer.text

    def deploy(self, name: str) -> int:
        """Through the shell, as soon as the agent has seen the model."""
        words = ["--model", str(self.models / name), "--device", "cpu", "--kv-cache-gib", "1", "--json"]

        def made() -> Any:
            done = self.panel.manage("deploy", name, *words)
            return json.loads(done.stdout) if done.returncode == 0 else None

        return int(until(made, timeout=60, why="the model is found")[0]["id"])

    def state(self, pk: int) -> str:
        return str(self.api.get(f"/deployments/{pk}").json()["state"])

    def fill(self, pages: int = 20) -> None:
        """Open it all, and return when all of it flows."""
        talks, hangs = self.deploy("talks"), self.deploy("hangs")
        until(lambda: self.state(talks) == "ready", timeout=60, why="an engine answers")
        until(lambda: self.state(hangs) == "starting", timeout=60, why="the probe waits for the other")
        cookie = "; ".join(f"{name}={value}" for name, value in self.browser.cookies.items())
        for number in range(pages):
            path = f"/deployments/{talks}/live" if number % 2 else "/deployments/live"
            self.open.append(stream(self.panel.port, "GET", path, {"Cookie": cookie}))
        body = {"model": "talks", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
        for _n in range(2):
            self.open.append(stream(self.panel.port, "POST", "/v1/chat/completions", self.door, body))

    def stop(self) -> float:
        """Seconds from TERM to the end of `up`, whose parts end with it."""
        children = self.panel.tree()
        process = self.panel.process
        assert process is not None
        begin = time.monotonic()
        process.send_signal(TERM)
        process.wait(60)
        took = time.monotonic() - begin
        assert not [child for child in children if child.is_running()], "nothing of the panel is left"
        return took

    def close(self) -> None:
        for one in self.open:
            one.close()
        self.panel.manage("down", timeout=120)
        self.panel.end()


def bearer(said: str) -> dict[str, str]:
    found = re.search(r"berth_\S+", said)
    assert found is not None, said
    return {"Authorization": f"Bearer {found[0]}"}


def stream(port: int, method: str, path: str, headers: dict[str, str], body: Any = None) -> socket.socket:
    """An answer that goes on, on a connection of its own; returns when its first bytes are here, and reads on."""
    data = json.dumps(body).encode() if body is not None else b""
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if data:
        lines.append("Content-Type: application/json")
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    link.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    first = link.recv(65536)
    assert b" 200 " in first.split(b"\r\n")[0], first

    def rest() -> None:
        with contextlib.suppress(OSError):
            while link.recv(65536):
                continue

    threading.Thread(target=rest, daemon=True).start()
    return link
