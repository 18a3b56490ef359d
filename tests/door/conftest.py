"""The door on a real socket through uvicorn, and an engine whose every byte a test decides. On both event loops."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
import uvloop

from panel.fleet.door import Door, Limits, Route, Snapshot, Token, token_hash
from panel.fleet.door.serve import HeadLimit

TOKEN = "berth_test_token"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the signals belong to pytest


@contextlib.asynccontextmanager
async def serving(app: Any, **more: Any) -> AsyncIterator[int]:
    """The port on which uvicorn serves `app` in this loop, as in the web process."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = QuietServer(
        uvicorn.Config(
            app,
            http=HeadLimit,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            **more,
        )
    )
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


async def eventually(check: Callable[[], Any], seconds: float = 5.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not check():
        assert asyncio.get_running_loop().time() < end, "it did not come true in time"
        await asyncio.sleep(0.005)


@dataclass
class Asked:
    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Asked], Awaitable[None]]


class Engine:
    """A TCP server that reads one request after the other and lets `script` answer."""

    def __init__(self) -> None:
        self.script: Script = answer(b'{"ok": true}')
        self.asked: list[Asked] = []
        self.connections = 0
        self.lost = 0  # connections that ended
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = Asked(head, b"")
                request.body = await reader.readexactly(int(request.headers.get("content-length", "0")))
                self.asked.append(request)
                await self.script(reader, writer, request)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.lost += 1
            self._writers.discard(writer)
            writer.close()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Engine"]:
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await eventually(lambda: not self._writers)


def answer(body: bytes, status: str = "200 OK", headers: str = "content-type: application/json\r\n") -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: Asked) -> None:
        writer.write(f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return script


def raw(data: bytes, *, close: bool = False) -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: Asked) -> None:
        writer.write(data)
        await writer.drain()
        if close:
            writer.close()
            raise ConnectionError

    return script


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Asked) -> None:
    """Answer nothing until the other side goes."""
    await reader.read()
    raise ConnectionError


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool = True
    pieces: list[bytes] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class House:
    """A door with one ready model `tiny`, its engine, and the snapshot that a test may change."""

    door: Door
    engine: Engine
    port: int
    tokens: dict[str, Token]
    routes: dict[str, Route]

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, data: bytes) -> Answer:
        """Raw bytes on a fresh connection, and the answer to them."""
        reader, writer = await self.open()
        writer.write(data)
        try:
            return await read_answer(reader, head_only=data.startswith(b"HEAD"))
        finally:
            writer.close()

    async def get(self, path: str, method: str = "GET", token: str | None = TOKEN) -> Answer:
        return await self.send(request(path, method=method, token=token))

    async def post(self, body: Any, path: str = "/v1/chat/completions", **kwargs: Any) -> Answer:
        return await self.send(request(path, body=body, **kwargs))


def request(
    path: str,
    *,
    method: str = "POST",
    body: Any = None,
    token: str | None = TOKEN,
    headers: str = "",
    kind: str = "application/json",
) -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: berth\r\n{headers}"
    if token is not None:
        head += f"authorization: Bearer {token}\r\n"
    if body is not None:
        head += f"content-type: {kind}\r\ncontent-length: {len(data)}\r\n"
    return head.encode("latin-1") + b"\r\n" + data


async def read_answer(reader: asyncio.StreamReader, *, head_only: bool = False) -> Answer:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
    status = int(head.split(" ")[1])
    headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in head.split("\r\n")[1:] if line)}
    found = Answer(status, headers, b"")
    if head_only or status in (204, 304):
        return found
    try:
        async for piece in _body(reader, headers):
            found.pieces.append(piece)
    except (asyncio.IncompleteReadError, ConnectionError) as exc:
        found.whole = False
        if isinstance(exc, asyncio.IncompleteReadError):
            found.pieces.append(exc.partial)
    found.body = b"".join(found.pieces)
    return found


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if "content-length" in headers:
        yield await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 10)
        return
    while True:
        line = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
        data = await asyncio.wait_for(reader.readexactly(int(line, 16) + 2), 10)
        if data == b"\r\n":
            return
        yield data[:-2]


SHORT = Limits(
    body=1 << 20,
    body_pause_s=0.4,
    body_total_s=2.0,
    connect_s=1.0,
    first_byte_s=1.0,
    idle_s=0.5,
    keep_idle_s=1.0,
)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    engine = Engine()
    async with engine.listening():
        tokens = {token_hash(TOKEN): Token(id=7, user_id=1, user="mara")}
        ready = Route("tiny", 1, "ready", open=True, port=engine.port, key="engine-key", run_id="r1", created=1)
        routes = {"tiny": ready}

        async def snapshot(*, newest: bool = False) -> Snapshot:
            return Snapshot(tokens=tokens, routes=routes, internal_key=b"k" * 32)

        door = Door(snapshot, limits=SHORT)
        async with serving(door) as port:
            yield House(door, engine, port, tokens, routes)
        door.close()
