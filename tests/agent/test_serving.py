"""The agent's looks at engines that serve: bounded in time and size, by the engine's own key where it wants one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from panel.fleet.agent import serving
from panel.fleet.agent.gpus import Reading
from panel.fleet.agent.serving import Place, Watcher
from panel.fleet.wire import JobStatus
from panel.fleet.wire_serving import Serving
from tests.agent.conftest import Host, Table
from tests.agent.test_jobs import new_id
from tests.waiting import until

METRICS = b"vllm:num_requests_running 3\n"
Answer = Callable[[BaseHTTPRequestHandler], None]


def plain(handler: BaseHTTPRequestHandler) -> None:
    body = METRICS if handler.path == "/metrics" else b""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def engine() -> Iterator[Any]:
    """`engine(answer)` gives the place of a server that answers so."""
    servers = []

    def make(answer: Answer) -> Place:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_args: object) -> None:
                """Nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_args: None  # type: ignore[method-assign]  # a client that left is no news
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return Place("127.0.0.1", server.server_address[1], 1)

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_numbers_and_health(engine: Any) -> None:
    seen = serving.look(engine(plain))
    assert (seen.running, seen.waiting, seen.health, seen.problem) == (3, None, 200, "")
    assert abs(seen.at - time.time()) < 60


def test_an_engine_that_wants_its_key_is_asked_with_it_and_others_never(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str | None] = []

    def guarded(handler: BaseHTTPRequestHandler) -> None:
        keys.append(handler.headers.get("Authorization"))
        if keys[-1] != "Bearer s3cret":
            handler.send_error(401)
        else:
            plain(handler)

    monkeypatch.setattr(serving.procs, "env_of", lambda pid, name: "s3cret" if name == "LLAMA_API_KEY" else "")
    seen = serving.look(engine(guarded))
    assert (seen.running, seen.problem, seen.health) == (3, "", 401)
    assert keys == [None, "Bearer s3cret", None]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda handler: handler.send_error(404), "http_404"),
        (lambda handler: (handler.send_response(200), handler.end_headers(), handler.wfile.write(b"hello")), "empty"),
        (lambda handler: handler.wfile.write(b"no http at all\r\n\r\n"), "unreadable"),
    ],
    ids=["missing", "other", "garbage"],
)
def test_what_cannot_be_read_is_a_code(engine: Any, answer: Answer, problem: str) -> None:
    assert serving.look(engine(answer)).problem == problem


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    seen = serving.look(Place("127.0.0.1", port, 1))
    assert (seen.problem, seen.health) == ("refused", None)


def test_an_engine_that_hangs_takes_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        seen = serving.look(Place("127.0.0.1", deaf.getsockname()[1], 1))
    assert (seen.problem, seen.health) == ("timeout", None)


def test_a_drip_is_cut_off_and_so_is_a_flood(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1000):
            handler.wfile.write(b"#\n")
            time.sleep(0.01)

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(64):
            handler.wfile.write(METRICS * 100)

    with pytest.raises(serving.Late):
        serving.get(engine(drip), "/metrics", seconds=0.2)
    monkeypatch.setattr(serving, "MAX_TEXT", 10_000)
    with pytest.raises(serving.TooLarge):
        serving.get(engine(flood), "/metrics")


def test_the_newest_look_is_kept_and_what_ended_is_forgotten(engine: Any) -> None:
    places = {"a": engine(plain), "b": engine(plain)}
    watcher = Watcher(lambda: places, threading.Event(), 10)
    with ThreadPoolExecutor(2) as pool:
        watcher.turn(pool)
        assert {job: seen.running for job, seen in watcher.latest.items()} == {"a": 3, "b": 3}
        places.pop("a")
        watcher.turn(pool)
    assert set(watcher.latest) == {"b"}


SERVE = """
import http.server
port = int(sys.argv[sys.argv.index("--port") + 1])
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "28"); self.end_headers()
        self.wfile.write(b"vllm:num_requests_running 3\\n")
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", port), H).serve_forever()
"""


def test_it_travels_with_the_status_of_an_engine_that_listens(host: Host, table: Table) -> None:
    job_id = new_id()
    table.order(job_id, host.task(host.engine(SERVE)))
    table.until(job_id, "running")
    until(lambda: table.jobs.tick() and table.jobs.serving())
    place = table.jobs.serving()[job_id]
    assert (place.port, place.pid) == (table.job(job_id).record.port, table.job(job_id).engine.pid)  # type: ignore[union-attr]
    seen = serving.look(place)
    assert seen.running == 3
    status = table.jobs.statuses(Reading(), {job_id: seen})[0]
    assert status.serving == seen
    table.stop(job_id)
    table.until(job_id, "ended")
    assert table.jobs.serving() == {}
    assert table.jobs.statuses(Reading(), {job_id: seen})[0].serving is None, "it has ended"


def test_an_old_panel_and_an_old_agent_do_without() -> None:
    old = {"id": "x", "kind": "engine", "state": "running"}
    assert JobStatus.model_validate(old).serving is None
    told = JobStatus.model_validate({**old, "serving": Serving(at=1.0, running=1).model_dump(), "of_tomorrow": 1})
    assert told.serving is not None and told.serving.running == 1
