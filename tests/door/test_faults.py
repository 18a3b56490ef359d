"""Clients that leave or stall, engines that break: nobody waits for ever, and it is said who failed."""

import asyncio
import dataclasses
import socket

import psutil
import pytest

from panel.fleet.door.serve import HeadLimit
from tests.door.conftest import EVENTS, House, answer, chunk, eventually, hang, raw, request

BODY = {"model": "tiny", "messages": [], "stream": True}
HALF = EVENTS + chunk(b'data: {"n": 1}\n\n')


async def test_a_client_that_leaves_before_the_first_byte_ends_the_engines_work(house: House) -> None:
    house.engine.script = hang
    _, writer = await house.open()
    writer.write(request("/v1/chat/completions", body=BODY))
    await eventually(lambda: house.engine.asked)
    writer.transport.abort()
    await eventually(lambda: house.engine.lost == 1, 0.5)  # well before the door's own patience ends
    await eventually(lambda: house.door.counts["tiny"].active == 0)


async def test_a_client_that_leaves_in_the_middle_ends_the_engines_work(house: House) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: object) -> None:
        writer.write(HALF)
        await reader.read()
        raise ConnectionError

    house.engine.script = script
    reader, writer = await house.open()
    writer.write(request("/v1/chat/completions", body=BODY))
    await reader.readuntil(b"\n\n")
    writer.close()
    await eventually(lambda: house.engine.lost == 1, 0.4)


async def test_a_client_that_takes_nothing_is_let_go_and_the_engine_is_not_read_ahead(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeadLimit, "stall_s", 0.5)
    written = 0

    async def flood(_: object, writer: asyncio.StreamWriter, __: object) -> None:
        nonlocal written
        writer.write(EVENTS)
        while True:
            writer.write(chunk(b"x" * 65536))
            await writer.drain()
            written += 65536

    house.engine.script = flood
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", house.port))
    await asyncio.get_running_loop().sock_sendall(sock, request("/v1/chat/completions", body=BODY))
    await eventually(lambda: house.engine.lost == 1, 4)
    assert written < 40 << 20  # socket buffers and the door's window, not all that the engine could make
    here = psutil.Process()
    await eventually(
        lambda: (
            not [c for c in here.net_connections("tcp") if c.laddr.port == house.port and c.status == "ESTABLISHED"]
        ),
        4,
    )
    sock.close()


async def test_an_engine_that_does_not_listen(house: House) -> None:
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    house.routes["tiny"] = dataclasses.replace(house.routes["tiny"], port=port)
    got = await house.post(BODY)
    assert (got.status, got.code) == (502, "engine.unreachable")
    assert got.json["berth"]["who"] == "engine"
    assert got.headers["x-berth-said-by"] == "panel"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nx : y\r\n\r\n",
    ],
)
async def test_an_engine_that_does_not_speak_http(house: House, data: bytes) -> None:
    house.engine.script = raw(data)
    got = await house.post(BODY)
    assert (got.status, got.code) == (502, "engine.bad_answer")


async def test_an_engine_that_dies_of_the_request(house: House) -> None:
    house.engine.script = raw(b"", close=True)
    got = await house.post(BODY)
    assert (got.status, got.code) == (502, "engine.broke_off")
    assert len(house.engine.asked) == 1  # on a fresh connection nothing is asked twice


async def test_an_engine_that_says_nothing(house: House) -> None:
    house.engine.script = hang
    got = await house.post(BODY)
    assert (got.status, got.code) == (504, "engine.no_first_byte")
    await eventually(lambda: house.engine.lost == 1)


async def test_a_stream_that_breaks_says_so_and_does_not_end_in_order(house: House) -> None:
    house.engine.script = raw(HALF, close=True)
    got = await house.post(BODY)
    assert got.status == 200 and not got.whole
    assert got.body.startswith(b'data: {"n": 1}\n\n')
    assert b'"code": "engine.broke_off"' in got.body
    assert b"[DONE]" not in got.body
    assert house.door.counts["tiny"].broken == 1


async def test_a_stream_that_goes_silent_ends(house: House) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: object) -> None:
        writer.write(HALF)
        await reader.read()
        raise ConnectionError

    house.engine.script = script
    got = await house.post(BODY)
    assert not got.whole and b"engine.went_silent" in got.body


async def test_a_short_answer_with_a_length_is_cut_visibly(house: House) -> None:
    house.engine.script = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", close=True)
    got = await house.post(BODY)
    assert not got.whole and got.body == b"{"


async def test_an_error_of_the_engine_passes_as_it_is(house: House) -> None:
    said = b'{"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}}'
    house.engine.script = answer(said, "500 Internal Server Error")
    got = await house.post(BODY)
    assert (got.status, got.body, got.headers["x-berth-said-by"]) == (500, said, "engine")


async def test_a_key_that_the_engine_refuses_is_not_the_clients_fault(house: House) -> None:
    house.engine.script = answer(b'{"error": "Unauthorized"}', "401 Unauthorized")
    got = await house.post(BODY)
    assert (got.status, got.code) == (502, "engine.key_refused")


async def test_a_second_answer_that_nobody_asked_for_reaches_no_one(house: House) -> None:
    one = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none"
    house.engine.script = raw(one + one.replace(b"one", b"two"))
    assert (await house.post(BODY)).body == b"one"
    assert (await house.post(BODY)).body == b"one"
    assert house.engine.connections == 2  # the connection was not used again


@pytest.mark.parametrize("more", [b"H", b"HTTP/1.1 200 OK\r\ncontent-le", b"x"])
async def test_the_beginning_of_a_second_answer_is_no_beginning_of_the_next_one(house: House, more: bytes) -> None:
    """Else its end, sent when the next client has asked, would be that client's answer."""
    house.engine.script = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none" + more)
    assert (await house.post(BODY)).body == b"one"
    house.engine.script = answer(b"{}")
    got = await house.post(BODY)
    assert (got.status, got.body, house.engine.connections) == (200, b"{}", 2)
