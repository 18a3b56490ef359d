"""Through another host's door: two doors and an engine, by real TLS, on both event loops."""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent.procs import Ident
from panel.fleet.door import Via, serve, token_hash
from panel.fleet.door.__main__ import listen
from panel.fleet.door.host import Book, HostDoor, parse
from tests.door.conftest import (
    EVENTS,
    SHORT,
    Answer,
    Asked,
    House,
    QuietServer,
    answer,
    chunk,
    eventually,
    hang,
    raw,
    read_answer,
    request,
)

KEY = "the panel's key"
JOB = "5b0c9a7e-2f41-4d1c-9a35-7c3e8d2f6a10"  # one for all workers of a run in parallel


@dataclass
class Far:
    """The other host: its door at `port`, and the file that its agent would keep."""

    house: House
    port: int
    folder: Path

    def write(self, *, accepts: tuple[str, ...] = (KEY,), process: Any = None, runs: bool = True) -> None:
        me = process or Ident.of(os.getpid())
        engine = {"host": "127.0.0.1", "port": self.house.engine.port, "process": me.dump()}
        value = {"accepts": [token_hash(key) for key in accepts], "runs": {JOB: engine} if runs else {}}
        draft = self.folder / "draft"
        draft.write_text(json.dumps(value))
        draft.rename(self.folder / "open.json")

    def via(self, **changes: Any) -> None:
        """Let the panel's route lead through this door."""
        fields = {
            "host": "atlas",
            "address": "127.0.0.1",
            "port": self.port,
            "certificate": serve.fingerprint(self.folder / "door.crt"),
            "key": KEY,
            "job_id": JOB,
            **changes,
        }
        self.house.routes["tiny"] = dataclasses.replace(self.house.routes["tiny"], via=Via(**fields))

    async def ask(self, path: str = f"/run/{JOB}/v1/completions", **kwargs: Any) -> Answer:
        """Straight at the host's door, without the panel, with the given token."""
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        writer.write(request(path, **{"body": {"model": "tiny"}, "token": KEY, **kwargs}))
        try:
            return await read_answer(reader)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def far_door(folder: Path) -> AsyncIterator[tuple[int, HostDoor]]:
    app = HostDoor(Book(folder / "open.json"), SHORT)
    config = serve.config(app, serve.make_certificate(folder))
    config.timeout_graceful_shutdown = 1
    listener = socket.create_server(("127.0.0.1", 0))
    server = QuietServer(config)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started)
        yield listener.getsockname()[1], app
    finally:
        app.close()
        server.should_exit = True
        await task


@pytest.fixture
async def far(house: House, tmp_path: Path) -> AsyncIterator[Far]:
    async with far_door(tmp_path) as (port, _app):
        there = Far(house, port, tmp_path)
        there.write()
        there.via()
        yield there


# --- what passes ----------------------------------------------------------------------------------------------------


async def test_an_answer_comes_through_both_doors(house: House, far: Far) -> None:
    got = await house.post({"model": "tiny", "n": 1})
    assert (got.status, got.body) == (200, b'{"ok": true}')
    assert got.headers["x-berth-said-by"] == "engine"
    (asked,) = house.engine.asked
    assert asked.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert asked.headers["authorization"] == "Bearer engine-key"
    assert json.loads(asked.body) == {"model": "tiny", "n": 1}
    assert asked.headers["x-request-id"] == got.headers["x-request-id"]
    assert KEY.encode() not in asked.head and b"berth_test_token" not in asked.head
    assert b"x-berth-engine-key" not in asked.head


async def test_connections_are_kept_on_both_ways(house: House, far: Far) -> None:
    for _ in range(3):
        assert (await house.post({"model": "tiny"})).status == 200
    assert house.engine.connections == 1
    pool = house.door._pool
    assert [len(idle) for idle in pool._idle.values()] == [1]


async def test_a_stream_comes_piece_by_piece(house: House, far: Far) -> None:
    go_on = asyncio.Event()

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: Asked) -> None:
        writer.write(EVENTS + chunk(b"data: 1\n\n"))
        await go_on.wait()
        writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    house.engine.script = script
    reader, writer = await house.open()
    writer.write(request("/v1/chat/completions", body={"model": "tiny"}))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert b"text/event-stream" in head
    assert b"data: 1" in await asyncio.wait_for(reader.read(100), 5), "before the second one exists"
    go_on.set()
    rest = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
    assert b"data: 2" in rest
    writer.close()


async def test_a_large_body_and_answer_stay_whole(house: House, far: Far) -> None:
    big = b'{"text": "' + b"y" * (3 << 20) + b'"}'
    house.engine.script = answer(big)
    got = await house.post({"model": "tiny", "text": "x" * 900_000})
    assert got.body == big
    assert len(json.loads(house.engine.asked[0].body)["text"]) == 900_000


async def test_a_client_that_leaves_ends_the_engines_connection(house: House, far: Far) -> None:
    house.engine.script = hang
    _reader, writer = await house.open()
    writer.write(request("/v1/chat/completions", body={"model": "tiny"}))
    await eventually(lambda: house.engine.asked)
    writer.transport.abort()
    await eventually(lambda: house.engine.lost == 1)


# --- what breaks ------------------------------------------------------------------------------------------------------


async def test_a_stream_that_breaks_is_cut_and_says_so_once(house: House, far: Far) -> None:
    house.engine.script = raw(EVENTS + chunk(b"data: 1\n\n"), close=True)
    got = await house.post({"model": "tiny"})
    assert got.status == 200 and not got.whole
    assert got.body.count(b'"code": "door.broke_off"') == 1 and got.body.startswith(b"data: 1")


async def test_an_engine_that_dies_before_its_answer_is_named(house: House, far: Far) -> None:
    house.engine.script = raw(b"", close=True)
    got = await house.post({"model": "tiny"})
    assert (got.status, got.code, got.json["berth"]["who"]) == (502, "engine.broke_off", "engine")
    assert got.json["berth"]["host"] == "atlas"


async def test_an_engine_that_says_nothing_is_not_waited_for_for_ever(house: House, far: Far) -> None:
    house.engine.script = hang
    got = await house.post({"model": "tiny"})
    assert (got.status, got.code) == (504, "engine.no_first_byte")
    await eventually(lambda: house.engine.lost == 1)


async def test_an_engine_that_refuses_its_key(house: House, far: Far) -> None:
    house.engine.script = answer(b"{}", status="401 Unauthorized")
    assert (await house.post({"model": "tiny"})).code == "engine.key_refused"


async def test_an_engine_error_passes_as_the_engines(house: House, far: Far) -> None:
    house.engine.script = answer(b'{"error": "too long"}', status="400 Bad Request")
    got = await house.post({"model": "tiny"})
    assert (got.status, got.body, got.headers["x-berth-said-by"]) == (400, b'{"error": "too long"}', "engine")


async def test_another_certificate_gets_not_a_byte(house: House, far: Far) -> None:
    far.via(certificate="0" * 64)
    got = await house.post({"model": "tiny"})
    assert (got.status, got.code) == (502, "door.certificate")
    assert not house.engine.asked


async def test_a_key_that_is_not_known_there_yet(house: House, far: Far) -> None:
    far.write(accepts=("another",))
    got = await house.post({"model": "tiny"})
    assert (got.status, got.code, got.headers["retry-after"]) == (503, "door.key_refused", "2")
    far.write(accepts=("another", KEY))
    assert (await house.post({"model": "tiny"})).status == 200


async def test_a_key_that_was_replaced_a_moment_ago_costs_no_request(house: House, far: Far) -> None:
    """The panel's snapshot is older than the host's newest work: the door looks again before it refuses."""
    far.write(accepts=("the new key",))
    fresh = house.door._snapshot

    async def snapshot(*, newest: bool = False) -> Any:
        if newest:
            far.via(key="the new key")
        return await fresh()

    house.door._snapshot = snapshot
    got = await house.post({"model": "tiny"})
    assert (got.status, got.body) == (200, b'{"ok": true}')
    assert len(house.engine.asked) == 1


async def test_a_run_that_is_not_there(house: House, far: Far) -> None:
    far.write(runs=False)
    got = await house.post({"model": "tiny"})
    assert (got.status, got.code, got.headers["retry-after"]) == (503, "door.not_running", "2")


async def test_the_port_of_a_dead_engine_is_nobodys(house: House, far: Far) -> None:
    """The agent is away, the engine has ended, and another program has its port by now."""
    mine = Ident.of(os.getpid())
    assert mine is not None
    far.write(process=dataclasses.replace(mine, start=mine.start + 1))
    assert (await house.post({"model": "tiny"})).code == "door.not_running"
    assert not house.engine.asked


async def test_a_host_that_is_away_is_told_at_once(house: House, far: Far) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    far.via(port=port, heard_at=1_790_000_000.0, silent=True)
    got = await house.post({"model": "tiny"})
    assert (got.status, got.code, got.headers["retry-after"]) == (503, "door.host_away", "5")
    assert got.json["berth"] | {"hint": ""} == {
        "who": "host",
        "hint": "",
        "host": "atlas",
        "last_heard_at": "2026-09-21 14:13:20 UTC",
    }


async def test_a_black_hole_costs_one_wait_and_then_none(house: House, far: Far) -> None:
    """Connections are taken and never answered, as by a host whose cable was cut during the handshake."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        far.via(port=deaf.getsockname()[1])
        begin = time.monotonic()
        assert (await house.post({"model": "tiny"})).code == "door.host_away"
        first = time.monotonic() - begin
        assert SHORT.connect_s * 0.9 < first < SHORT.connect_s + 3
        begin = time.monotonic()
        assert (await house.post({"model": "tiny"})).code == "door.host_away"
        assert time.monotonic() - begin < first / 2
    far.via()
    assert (await house.post({"model": "tiny"})).status == 200, "another address is not blamed"


# --- the host's door towards others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "wrong", "berth_test_token"])
@pytest.mark.parametrize("path", ["/", "/v1/models", f"/run/{JOB}/v1/completions", "/run/../etc"])
async def test_strangers_learn_nothing(far: Far, token: str | None, path: str) -> None:
    got = await far.ask(path, token=token)
    assert got.status == 401 and JOB.encode() not in got.body
    assert got.headers["x-berth-said-by"] == "door"
    assert not far.house.engine.asked


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        f"/run/{JOB}/v1/models",
        f"/run/{JOB}/metrics",
        f"/run/{JOB}/v1/../metrics",
        f"/run/{JOB}//v1/completions",
        f"/run/{JOB}/v1/completions/",
        f"/run/{JOB}/v1/%63ompletions",
        f"/run/{JOB.upper()}x/v1/completions",
    ],
)
async def test_only_the_list_is_open(far: Far, path: str) -> None:
    got = await far.ask(path)
    assert (got.status, got.code) == (404, "request.path")
    assert not far.house.engine.asked


async def test_it_takes_post_and_json_only(far: Far) -> None:
    assert (await far.ask(method="GET")).status == 405
    assert (await far.ask(kind="text/plain")).status == 415


async def test_the_engine_key_of_a_doubled_header_is_not_used(far: Far) -> None:
    await far.ask(headers="x-berth-engine-key: a\r\nx-berth-engine-key: b\r\n")
    assert "authorization" not in far.house.engine.asked[0].headers


async def test_a_client_that_never_says_what_it_wants_is_sent_away(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.HeadLimit, "head_s", 0.3)
    async with far_door(tmp_path) as (port, _app):
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        for words in (b"", b"POST / HTTP/1.1\r\nhost: x\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            writer.write(words)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()


def test_its_connections_are_prompt_and_notice_a_cut() -> None:
    """Accepted connections inherit what was set on the listener; asyncio sets nothing on one that it is given."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with listen(f"127.0.0.1:{port}", 0) as listener, socket.create_connection(listener.getsockname(), timeout=5):
        listener.settimeout(5)
        taken, _address = listener.accept()
        with taken:
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "else an answer waits 40 ms"
            assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000


# --- the file that the agent keeps ----------------------------------------------------------------------------------------


def test_nothing_but_loopback_is_ever_opened() -> None:
    me = Ident.of(os.getpid())
    assert me is not None
    for host, port in (("10.0.0.1", 80), ("169.254.169.254", 80), ("127.0.0.1", 0), ("127.0.0.1", 70000), ("x", 1)):
        raw_file = {"accepts": [], "runs": {JOB: {"host": host, "port": port, "process": me.dump()}}}
        with pytest.raises(ValueError):
            parse(json.dumps(raw_file).encode())
    fine = {"accepts": [], "runs": {JOB: {"host": "::1", "port": 8, "process": me.dump()}}}
    assert parse(json.dumps(fine).encode()).runs[JOB].port == 8


def test_a_broken_file_leaves_what_was_known(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    book = Book(path)
    assert book.now().accepts == frozenset()
    path.write_text('{"accepts": ["a"], "runs": {}}')
    assert book.now().accepts == {"a"}
    path.write_text("{")
    assert book.now().accepts == {"a"}
    path.unlink()
    assert book.now().accepts == {"a"}


def test_the_certificate_is_made_once_and_is_private(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in serve.make_certificate(tmp_path)]
    assert [path.read_bytes() for path in serve.make_certificate(tmp_path)] == first
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    (tmp_path / "door.crt").write_text("no certificate")
    assert serve.make_certificate(tmp_path)[0].read_bytes() not in (first[0], b"no certificate")
