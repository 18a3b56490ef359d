"""The host's door as its agent keeps it: real processes, killed in turn, and an engine behind it."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from panel.fleet import wire
from panel.fleet.agent import door_process
from panel.fleet.agent.door_process import accepts_of, own_address
from panel.fleet.door import token_hash
from tests.agent.conftest import ROOT, Host, marked
from tests.fakes.panel import FakePanel
from tests.waiting import free_port, until

pytestmark = pytest.mark.slow

KEY = "the panel's key"
ENGINE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = self.headers["authorization"].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def door_host(host: Host, fake_panel: FakePanel) -> Iterator[Host]:
    """A host whose agent runs, with a port of its own for the door."""
    host.bind = f"127.0.0.1:{free_port()}"  # type: ignore[attr-defined]  # of this test alone
    host.configure(fake_panel, door_bind=host.bind)  # type: ignore[attr-defined]
    yield host
    for agent in host.agents:
        agent.kill()
        agent.wait(10)
    end_door(host)


def running(host: Host) -> door_process.Running | None:
    return door_process.running(host.dir / "door")


def end_door(host: Host) -> None:
    found = running(host)
    if found is not None:
        process = psutil.Process(found.process.pid)
        process.kill()
        until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def facts(panel: FakePanel) -> wire.DoorFacts | None:
    return panel.reports[-1].door if panel.reports else None


def opened(host: Host, panel: FakePanel) -> wire.DoorFacts:
    """The door that the newest report tells of."""
    panel.want_door(token_hash(KEY))
    found: wire.DoorFacts = until(lambda: (door := facts(panel)) and door.certificate and door)
    return found


def ask(port: int, job_id: str, key: str = KEY) -> tuple[int, str]:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    asked = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=tls)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", "x-berth-engine-key": "its-key"}
    asked.request("POST", f"/run/{job_id}/v1/completions", b"{}", headers)
    answer = asked.getresponse()
    text = answer.read().decode()
    asked.close()
    return answer.status, text


def is_closed(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def with_engine(host: Host, panel: FakePanel) -> str:
    """Start the agent and a job whose engine listens; the job's id."""
    executable = host.engine(ENGINE, "serve.py")
    host.configure(panel, door_bind=host.bind)  # type: ignore[attr-defined]
    host.start_agent()
    job_id = panel.order(host.task(executable))
    panel.wait(lambda: (status := panel.statuses.get(job_id)) and status.listening)
    return job_id


def test_it_opens_when_the_panel_wants_it_and_leads_to_the_engines(door_host: Host, fake_panel: FakePanel) -> None:
    job_id = with_engine(door_host, fake_panel)
    assert running(door_host) is None and facts(fake_panel) is None, "nobody asked for a door"
    door = opened(door_host, fake_panel)
    assert (door.address, door.problem, door.accepts) == ("127.0.0.1", "", [token_hash(KEY)])
    assert f"127.0.0.1:{door.port}" == door_host.bind  # type: ignore[attr-defined]
    assert ask(door.port, job_id) == (200, "Bearer its-key")
    assert ask(door.port, job_id, "another key")[0] == 401
    assert {path.stat().st_mode & 0o077 for path in (door_host.dir / "door").iterdir()} == {0}
    fake_panel.want_door(token_hash("a new key"), token_hash(KEY))
    until(lambda: ask(door.port, job_id, "a new key")[0] == 200)
    assert ask(door.port, job_id)[0] == 200, "the old key still works"
    fake_panel.stop(job_id)
    fake_panel.wait_state(job_id, "ended")
    until(lambda: ask(door.port, job_id)[0] == 404)
    fake_panel.want_door()
    until(lambda: running(door_host) is None and facts(fake_panel) is None)
    until(lambda: is_closed(door.port))


def test_it_works_on_without_its_agent_and_the_next_one_takes_it_over(door_host: Host, fake_panel: FakePanel) -> None:
    job_id = with_engine(door_host, fake_panel)
    door = opened(door_host, fake_panel)
    until(lambda: ask(door.port, job_id)[0] == 200)
    before = running(door_host)
    door_host.kill_agent()
    assert ask(door.port, job_id) == (200, "Bearer its-key")
    fake_panel.reports.clear()
    door_host.start_agent()
    until(lambda: (found := facts(fake_panel)) and found.certificate)
    assert running(door_host) == before, "the same process"
    assert facts(fake_panel) == door
    assert ask(door.port, job_id)[0] == 200


def test_its_end_touches_no_engine_and_it_comes_back_where_it_was(door_host: Host, fake_panel: FakePanel) -> None:
    job_id = with_engine(door_host, fake_panel)
    door = opened(door_host, fake_panel)
    pids = marked(job_id)
    first = running(door_host)
    assert first is not None
    os.kill(first.process.pid, signal.SIGKILL)
    again = until(lambda: (found := running(door_host)) and found.process != first.process and found)
    assert (again.port, again.certificate) == (first.port, first.certificate)
    until(lambda: (found := facts(fake_panel)) and not found.problem and found.certificate)
    assert ask(door.port, job_id)[0] == 200
    assert marked(job_id) == pids


def test_one_of_another_make_is_replaced(door_host: Host, fake_panel: FakePanel) -> None:
    door_host.start_agent()
    opened(door_host, fake_panel)
    first = running(door_host)
    assert first is not None
    door_host.kill_agent()
    state = door_host.dir / "door" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "code": "older"}))
    door_host.start_agent()
    again = until(lambda: (found := running(door_host)) and found.process != first.process and found)
    assert again.port == first.port
    until(lambda: not first.process.alive(), why="the old one ends when its answers are out")


def test_a_port_that_is_taken_is_passed_over(door_host: Host, fake_panel: FakePanel) -> None:
    host, port = door_host.bind.split(":")  # type: ignore[attr-defined]
    with socket.create_server((host, int(port))):
        door_host.start_agent()
        door = opened(door_host, fake_panel)
    assert int(port) < door.port <= int(port) + 100


def test_a_door_that_cannot_be_is_told_of(door_host: Host, fake_panel: FakePanel) -> None:
    door_host.configure(fake_panel, door_bind="192.0.2.7:8443")  # an address that this machine does not have
    door_host.start_agent()
    fake_panel.want_door(token_hash(KEY))
    door = until(lambda: (found := facts(fake_panel)) and found.problem == "port_taken" and found)
    assert (door.port, door.certificate, door.address) == (8443, "", "")


def test_its_owner_may_forbid_it(door_host: Host, fake_panel: FakePanel) -> None:
    door_host.configure(fake_panel, door_bind="")
    door_host.start_agent()
    fake_panel.want_door(token_hash(KEY))
    seen = len(fake_panel.reports)
    until(lambda: fake_panel.reports and len(fake_panel.reports) > seen + 2 and fake_panel.reports[-1].rev)
    assert facts(fake_panel) is None and not (door_host.dir / "door").exists()


@pytest.mark.parametrize("way", ["--stop-all", "--leave"])
def test_who_takes_the_host_away_ends_it(door_host: Host, fake_panel: FakePanel, way: str) -> None:
    door_host.start_agent()
    opened(door_host, fake_panel)
    door_host.agents[-1].terminate()
    door_host.agents[-1].wait(20)
    found = running(door_host)
    assert found is not None, "the end of the agent is not the end of the door"
    subprocess.run(door_host.command(way), cwd=ROOT, check=False, capture_output=True)
    until(lambda: not found.process.alive())


@pytest.mark.parametrize(
    ("work", "accepts"),
    [
        (b'{"rev": 1}', []),
        (b'{"rev": 1, "door": null}', []),
        (b'{"door": {"accepts": ["a", "b"]}}', ["a", "b"]),
        (b'{"door": {"accepts": 5}}', None),
        (b'{"door": {"accepts": ["a", "b", "c", "d", "e"]}}', None),
        (b"[]", None),
        (b"{", None),
    ],
)
def test_the_order_of_a_door(work: bytes, accepts: list[str] | None) -> None:
    assert accepts_of(work) == accepts


def test_the_address_is_that_of_the_way_to_the_panel() -> None:
    assert own_address("http://127.0.0.1:8000") == "127.0.0.1"
    assert own_address("http://[::1]:8000") in ("::1", "")
    assert own_address("not an address") == ""


def test_strangers_neither_fill_its_log_nor_take_its_connections(door_host: Host, fake_panel: FakePanel) -> None:
    job_id = with_engine(door_host, fake_panel)
    port = opened(door_host, fake_panel).port
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    for _ in range(200):
        with tls.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20)) as stranger:
            stranger.sendall(b"NONSENSE\r\n\r\n")
            stranger.recv(1000)
    assert (door_host.dir / "door/door.log").stat().st_size < 20_000
    found = running(door_host)
    assert found is not None
    soft, hard = resource.prlimit(found.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
    silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(20)]
    try:
        assert ask(port, job_id)[0] == 200
        silent[0].settimeout(30)
        assert silent[0].recv(1) == b"", "who says nothing is let go"
    finally:
        for sock in silent:
            sock.close()
