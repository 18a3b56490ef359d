"""Answers as the web process sends them: what the client's side of the wire sees, for any app."""

import asyncio
from typing import Any

import pytest

from tests.door.conftest import request, serving


def app_of(start: dict[str, Any], *bodies: dict[str, Any], gate: asyncio.Event | None = None) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "headers": [], **start})
        if gate is not None:
            await gate.wait()
        for body in bodies:
            await send({"type": "http.response.body", **body})

    return app


async def answered(app: Any, data: bytes = request("/", method="GET", headers="connection: close\r\n")) -> bytes:
    """All bytes until the connection ends."""
    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 5)
        finally:
            writer.close()


async def test_a_body_of_known_length() -> None:
    got = await answered(app_of({"status": 200, "headers": [(b"Content-Length", b"2")]}, {"body": b"ok"}))
    assert got.startswith(b"HTTP/1.1 200 OK\r\n") and got.endswith(b"\r\n\r\nok")
    assert b"transfer-encoding" not in got and got.lower().count(b"connection: close") == 1


async def test_a_body_in_pieces_is_chunked() -> None:
    bodies = [{"body": b"a", "more_body": True}, {"body": b"", "more_body": True}, {"body": b"bc"}]
    got = await answered(app_of({"status": 200}, *bodies))
    assert got.endswith(b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_answers_without_a_body(method: str, status: int) -> None:
    got = await answered(
        app_of({"status": status}, {"body": b""}), request("/", method=method, headers="connection: close\r\n")
    )
    assert got.endswith(b"\r\n\r\n") and b"chunked" not in got


async def test_the_head_does_not_wait_for_a_body_that_is_late() -> None:
    gate = asyncio.Event()
    async with serving(app_of({"status": 200}, {"body": b"late"}, gate=gate)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("/", method="GET"))
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        gate.set()
        assert await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5) == b"4\r\nlate\r\n0\r\n\r\n"
        writer.close()


async def test_an_app_that_ends_the_connection_says_so_once() -> None:
    got = await answered(
        app_of({"status": 200, "headers": [(b"connection", b"close"), (b"content-length", b"0")]}, {}),
        request("/", method="GET"),
    )
    assert got.count(b"connection: close") == 1


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: x=1", b"a\nb", b"a\rb", b"a\0b"])
async def test_a_header_cannot_carry_another(value: bytes) -> None:
    got = await answered(app_of({"status": 200, "headers": [(b"x", value)]}, {"body": b"ok"}))
    assert not got.startswith(b"HTTP/1.1 200") and b"set-cookie" not in got


@pytest.mark.parametrize("body", [b"", b"a", b"abc"])
async def test_a_length_that_is_not_kept_never_looks_whole(body: bytes) -> None:
    got = await answered(app_of({"status": 200, "headers": [(b"content-length", b"2")]}, {"body": body}))
    assert len(got.partition(b"\r\n\r\n")[2]) < 2 or not got.startswith(b"HTTP/1.1 200")


async def test_two_requests_in_one_packet_are_answered_in_order() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.05 if scope["path"] == "/1" else 0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    two = request("/1", method="GET") + request("/2", method="GET", headers="connection: close\r\n")
    got = await answered(app, two)
    assert got.index(b"\r\n\r\n/1") < got.index(b"\r\n\r\n/2")


async def test_an_idle_connection_is_kept_so_long_from_its_last_request() -> None:
    app = app_of({"status": 200, "headers": [(b"content-length", b"2")]}, {"body": b"ok"})
    loop = asyncio.get_running_loop()
    async with serving(app, timeout_keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(4):  # in use for longer than it may be idle
            writer.write(request("/", method="GET"))
            assert (await asyncio.wait_for(reader.readuntil(b"ok"), 5)).startswith(b"HTTP/1.1 200")
            last = loop.time()
            await asyncio.sleep(0.4)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert loop.time() - last > 0.9
        writer.close()


async def test_an_answer_that_lasts_is_not_idle() -> None:
    gate = asyncio.Event()
    async with serving(app_of({"status": 200}, {"body": b"late"}, gate=gate), timeout_keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(request("/", method="GET"))
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            asyncio.get_running_loop().call_later(1.3, gate.set)
            assert (await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)).startswith(b"4\r\nlate")
            gate.clear()
        writer.close()
