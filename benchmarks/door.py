"""What the door costs: per request, per streamed chunk and in requests per second, beside the engine asked directly.

Three servers of the same kind (uvicorn, one process each): an engine that answers at once, the door before it, and a
bare ASGI app that reads a JSON body and answers itself. One client process, rounds taken in turn, so that a busy
machine is busy for all. Run: `python -m benchmarks.door`.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

ROUNDS, REQUESTS, CHUNKS, STREAMS, CLIENTS = 5, 300, 200, 200, 32
TOKEN = "bench-token"
QUESTION = json.dumps(
    {"model": "bench", "messages": [{"role": "user", "content": "What is the capital of France? " * 10}]}
).encode()
ANSWER = json.dumps({"id": "cmpl-1", "choices": [{"message": {"role": "assistant", "content": "Paris."}}]}).encode()
JSON = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


# --- the servers ----------------------------------------------------------------------------------------------------


async def _read(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def engine(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once; with `stream` it sends chunks that carry the time at which they were made."""
    body = await _read(receive)
    if b'"stream"' not in body:
        await send({"type": "http.response.start", "status": 200, "headers": JSON})
        await send({"type": "http.response.body", "body": ANSWER})
        return
    pause = json.loads(body)["pause"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(CHUNKS):
        await asyncio.sleep(pause)
        await send({"type": "http.response.body", "body": b"data: %d\n\n" % time.monotonic_ns(), "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """What the thinnest framework would do: read JSON, look at the path, answer JSON."""
    asked = json.loads(await _read(receive))
    data = json.dumps({"id": "1", "model": asked["model"], "choices": [{"message": {"content": "Paris."}}]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": 200 if scope["path"] else 404, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def door() -> Any:
    """The app of the door process; its engine's port comes by the environment."""
    from panel.fleet.door import Door, Route, Snapshot, Token, token_hash

    route = Route("bench", 1, "ready", open=True, port=int(os.environ["BENCH_ENGINE_PORT"]), key="k")
    snapshot = Snapshot({token_hash(TOKEN): Token(1, 1, "bench")}, {"bench": route})

    async def source(*, newest: bool = False) -> Snapshot:
        return snapshot

    return Door(source)


@contextmanager
def _serving(app: str, *more: str, **environment: str) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    # Given a socket by number, uvicorn takes it for a Unix socket and leaves Nagle's algorithm on: 40 ms per answer.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.door:{app}", "--fd", str(listener.fileno()), *more]
    process = subprocess.Popen(
        [*command, "--no-access-log", "--log-level", "warning", "--lifespan", "off"],
        env={**os.environ, **environment},
        pass_fds=[listener.fileno()],
    )
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        process.terminate()
        process.wait(10)


# --- the client -----------------------------------------------------------------------------------------------------


def _request(body: bytes) -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {TOKEN}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_request(QUESTION))
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        raise RuntimeError(head.decode())
    await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))


async def _stream(port: int, pause: float) -> list[float]:
    """Milliseconds from the making of each chunk to its arrival here; raises when the stream is not whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(json.dumps({"model": "bench", "stream": True, "pause": pause}).encode()))
    await reader.readuntil(b"\r\n\r\n")
    late = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        data = (await reader.readexactly(size + 2))[:-2]
        now = time.monotonic_ns()
        late += [(now - int(e[6:])) / 1e6 for e in data.split(b"\n\n") if e and e != b"data: [DONE]"]
    writer.close()
    if len(late) != CHUNKS:
        raise RuntimeError(f"{len(late)} chunks of {CHUNKS}")
    return late


async def _one_by_one(port: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        await _ask(reader, writer)
        took.append((time.perf_counter() - began) * 1000)
    writer.close()
    return took


async def _rate(port: int) -> float:
    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(REQUESTS // 4):
            await _ask(reader, writer)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return CLIENTS * (REQUESTS // 4) / (time.perf_counter() - began)


async def _ready(port: int) -> None:
    for _ in range(200):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.wait_for(_ask(reader, writer), 20)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.05)
    raise RuntimeError("a server did not start")


async def measure(engine_port: int, door_port: int, bare_port: int) -> dict[str, Any]:
    for port in (engine_port, door_port, bare_port):
        await _ready(port)
    request: dict[str, list[float]] = {"engine": [], "door": []}
    chunk: dict[str, list[float]] = {"engine": [], "door": []}
    rate: dict[str, list[float]] = {"engine": [], "door": [], "bare": []}
    ports = {"engine": engine_port, "door": door_port, "bare": bare_port}
    for _ in range(ROUNDS):
        for name in request:
            request[name] += await _one_by_one(ports[name])
            chunk[name] += await _stream(ports[name], 0.002)
        for name in rate:
            rate[name].append(await _rate(ports[name]))
    began = time.perf_counter()
    many = await asyncio.gather(*(_stream(door_port, 0.02) for _ in range(STREAMS)))
    return {
        "request_ms": {name: _spread(values) for name, values in request.items()},
        "chunk_ms": {name: _spread(values) for name, values in chunk.items()},
        "per_second": {name: round(median(values)) for name, values in rate.items()},
        "streams": {
            "whole": len(many),
            "chunks_per_second": round(STREAMS * CHUNKS / (time.perf_counter() - began)),
            "late_ms": _spread([late for stream in many for late in stream]),
        },
    }


def _spread(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    return {"p50": round(values[len(values) // 2], 3), "p95": round(values[int(len(values) * 0.95)], 3)}


def report(found: dict[str, Any]) -> str:
    def line(what: str, of: dict[str, dict[str, float]]) -> str:
        added = of["door"]["p50"] - of["engine"]["p50"]
        return (
            f"{what}: directly p50 {of['engine']['p50']:.3f} p95 {of['engine']['p95']:.3f} ms, "
            f"through the door p50 {of['door']['p50']:.3f} p95 {of['door']['p95']:.3f} ms, added p50 {added:.3f} ms"
        )

    rate, streams = found["per_second"], found["streams"]
    return "\n".join(
        [
            line("Door, one request", found["request_ms"]),
            line("Door, one streamed chunk", found["chunk_ms"]),
            f"Door, requests per second with {CLIENTS} clients: {rate['door']}; a bare ASGI app {rate['bare']} "
            f"({rate['door'] / rate['bare']:.2f} of it); the engine directly {rate['engine']}",
            f"Door, {streams['whole']} streams at once: all whole, {streams['chunks_per_second']} chunks per second, "
            f"a chunk is p50 {streams['late_ms']['p50']:.1f} p95 {streams['late_ms']['p95']:.1f} ms under way",
        ]
    )


def main() -> dict[str, Any]:
    """Print the figures and return them."""
    with (
        _serving("engine") as engine_port,
        _serving("bare") as bare_port,
        _serving("door", "--factory", BENCH_ENGINE_PORT=str(engine_port)) as door_port,
    ):
        found = asyncio.run(measure(engine_port, door_port, bare_port))
    print(report(found))  # noqa: T201
    return found


if __name__ == "__main__":
    main()
