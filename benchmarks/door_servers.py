"""The servers beside which the door is measured, one process each: `python -m benchmarks.door_servers NAME LISTENER`.

door       the panel's web process as it runs, with one token and one route that nobody had to store
starlette  the yardstick: a route that takes JSON and answers JSON, under the web process's own server
engine     answers at once; as cheap as Python can, so that it is the door that is measured
"""

import asyncio
import dataclasses
import json
import logging
import os
import socket
import sys
import tempfile
import time
from typing import Any

import uvicorn
import uvloop

TOKEN = "bench-token"
CHUNKS = 200
ANSWER = {
    "id": "cmpl-1",
    "object": "chat.completion",
    "choices": [{"message": {"role": "assistant", "content": "Paris."}}],
}
_BODY = json.dumps(ANSWER).encode()
_PLAIN = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
    _BODY
)
_EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class Engine(asyncio.Protocol):
    """Answers at once; with `pause` it streams chunks that carry the time at which they were made."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.data = transport, b""
        self.streaming: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.data += data
        head = self.data.find(b"\r\n\r\n") + 4
        if head < 4:
            return
        at = self.data.lower().index(b"content-length:") + 15
        if len(self.data) < head + int(self.data[at : self.data.index(b"\r", at)]):
            return
        body, self.data = self.data[head:], b""
        if b'"pause"' in body:
            self.streaming = asyncio.get_running_loop().create_task(self.stream(json.loads(body)["pause"]))
        else:
            self.transport.write(_PLAIN + _BODY)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.streaming is not None:
            self.streaming.cancel()

    async def stream(self, pause: float) -> None:
        self.transport.write(_EVENTS)
        for _ in range(CHUNKS):
            await asyncio.sleep(pause)
            data = b"data: %d\n\n" % time.monotonic_ns()
            self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def _engine(listener: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, sock=listener, backlog=1024)
    await server.serve_forever()


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def complete(request: Request) -> JSONResponse:
        asked = await request.json()
        return JSONResponse({**ANSWER, "model": asked["model"]})

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])


def door() -> Any:
    from panel import asgi
    from panel.fleet.door import Route, Snapshot, Token, token_hash

    route = Route("bench", 1, "ready", open=True, port=int(os.environ["BENCH_ENGINE_PORT"]), key="k" * 43)
    snapshot = Snapshot({token_hash(TOKEN): Token(None, 1, "bench")}, {"bench": route})
    asgi.source._build_now = lambda: dataclasses.replace(snapshot)
    return asgi.application


def main() -> None:
    name, listener = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    if name == "engine":
        uvloop.run(_engine(listener))
        return
    os.environ["BERTH_DATA"] = tempfile.mkdtemp(prefix="berth-bench-")
    from panel import web

    # Everything as the panel sets it, but for the events, which need a broker.
    config = web.config(door() if name == "door" else starlette())
    if name == "starlette":
        config.http = "httptools"
    config.lifespan = "off"
    logging.disable(logging.INFO)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
