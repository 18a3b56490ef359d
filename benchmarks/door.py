"""What the door costs: per request, per streamed chunk and in requests per second, beside a bare Starlette.

Client, engine and servers are one process each; the client and the engine are as cheap as Python can, so that it is the
server between them that is measured. Rounds are taken in turn, so that a busy machine is busy for all.
Run: `python -m benchmarks.door`; 1 when a limit is broken.
"""

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks.door_servers import CHUNKS, TOKEN

ROUNDS, REQUESTS, STREAMS, CLIENTS, RATE_S = 9, 200, 200, 32, 1.0
LIMITS = {"of starlette": 0.7, "request_ms": 1.5, "chunk_ms": 0.2}
PATH = "/v1/chat/completions"
QUESTION = json.dumps(
    {"model": "bench", "messages": [{"role": "user", "content": "What is the capital of France? " * 10}]}
).encode()


class Served(NamedTuple):
    port: int
    process: psutil.Process


@contextmanager
def _serving(name: str, **environment: str) -> Iterator[Served]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    command = [sys.executable, "-m", "benchmarks.door_servers", name, str(listener.fileno())]
    process = subprocess.Popen(command, env={**os.environ, **environment}, pass_fds=[listener.fileno()])
    try:
        yield Served(listener.getsockname()[1], psutil.Process(process.pid))
    finally:
        listener.close()
        process.terminate()
        process.wait(10)


# --- the client -----------------------------------------------------------------------------------------------------


def _request(body: bytes) -> bytes:
    return (
        f"POST {PATH} HTTP/1.1\r\nhost: bench\r\nuser-agent: bench\r\naccept: application/json\r\n"
        f"authorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


ASKED = _request(QUESTION)


def _connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _missing(data: bytes) -> bool:
    """Whether the answer is not whole yet. Raises RuntimeError when it is not the one that was asked for."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return True
    if not data.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(data.decode())
    at = data.find(b"content-length: ") + 16
    return len(data) < head + 4 + int(data[at : data.find(b"\r", at)])


def _ask(sock: socket.socket) -> None:
    sock.sendall(ASKED)
    data = b""
    while _missing(data):
        piece = sock.recv(65536)
        if not piece:
            raise RuntimeError("closed")
        data += piece


def _one_by_one(port: int) -> list[float]:
    """Milliseconds of each request."""
    took = []
    with _connected(port) as sock:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            _ask(sock)
            took.append((time.perf_counter() - began) * 1000)
    return took


def _rate(served: Served) -> tuple[float, float]:
    """Requests per second with CLIENTS at once, and milliseconds of the server's processor time for one."""
    poll, socks, data = select.epoll(), {}, {}
    for _ in range(CLIENTS):
        sock = _connected(served.port)
        socks[sock.fileno()], data[sock.fileno()] = sock, b""
        poll.register(sock, select.EPOLLIN)
        sock.sendall(ASKED)
    cpu, began, done = sum(served.process.cpu_times()[:2]), time.perf_counter(), 0
    while (now := time.perf_counter()) < began + RATE_S:
        for number, _event in poll.poll(5):
            data[number] += socks[number].recv(65536)
            if not _missing(data[number]):
                done += 1
                data[number] = b""
                socks[number].send(ASKED)
    cpu = sum(served.process.cpu_times()[:2]) - cpu
    for sock in socks.values():
        sock.close()
    return done / (now - began), cpu * 1000 / done


async def _stream(port: int, pause: float) -> list[float]:
    """Milliseconds from the making of each chunk to its arrival here; raises when the stream is not whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(json.dumps({"model": "bench", "stream": True, "pause": pause}).encode()))
    await reader.readuntil(b"\r\n\r\n")
    late, data = [], b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        data += (await reader.readexactly(size + 2))[:-2]
        now = time.monotonic_ns()
        *events, data = data.split(b"\n\n")
        late += [(now - int(e[6:])) / 1e6 for e in events if e != b"data: [DONE]"]
    writer.close()
    if len(late) != CHUNKS:
        raise RuntimeError(f"{len(late)} chunks of {CHUNKS}")
    return late


async def _many(port: int, pause: float) -> list[list[float]]:
    return await asyncio.gather(*(_stream(port, pause) for _ in range(STREAMS)))


def _ready(port: int) -> None:
    """The socket listened before the server did: the first answer may take as long as its start."""
    with _connected(port) as sock:
        _ask(sock)


# --- what is found --------------------------------------------------------------------------------------------------


def measure(names: dict[str, Served]) -> dict[str, Any]:
    door = names["door"]
    request: dict[str, list[float]] = {"engine": [], "door": []}
    chunk: dict[str, list[float]] = {"engine": [], "door": []}
    rate: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for served in names.values():
        _ready(served.port)
        _rate(served)  # warm
    for _ in range(ROUNDS):
        for name in chunk:
            request[name] += _one_by_one(names[name].port)
            chunk[name] += asyncio.run(_stream(names[name].port, 0.002))
        for name, served in names.items():
            rate[name].append(_rate(served))
    began = time.perf_counter()
    many = asyncio.run(_many(door.port, 0.02))
    return {
        "request_ms": {name: _spread(values) for name, values in request.items()},
        "chunk_ms": {name: _spread(values) for name, values in chunk.items()},
        "per_second": {name: round(median(r for r, _ in values)) for name, values in rate.items()},
        "cpu_ms": {name: round(median(c for _, c in values), 3) for name, values in rate.items()},
        "of": {name: _ratio(rate["door"], rate[name]) for name in ("starlette", "starlette-here")},
        "streams": {
            "whole": len(many),
            "chunks_per_second": round(STREAMS * CHUNKS / (time.perf_counter() - began)),
            "late_ms": _spread([late for stream in many for late in stream]),
        },
    }


def _ratio(mine: list[tuple[float, float]], other: list[tuple[float, float]]) -> float:
    """Of the requests per second, round by round: the machine was about as busy for both."""
    return median(a[0] / b[0] for a, b in zip(mine, other, strict=True))


def _spread(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    return {"p50": round(values[len(values) // 2], 3), "p95": round(values[int(len(values) * 0.95)], 3)}


def _added(of: dict[str, dict[str, float]]) -> float:
    return of["door"]["p50"] - of["engine"]["p50"]


def report(found: dict[str, Any]) -> str:
    def line(what: str, of: dict[str, dict[str, float]], limit: float) -> str:
        return (
            f"{what}: directly p50 {of['engine']['p50']:.3f} p95 {of['engine']['p95']:.3f} ms, "
            f"through the door p50 {of['door']['p50']:.3f} p95 {of['door']['p95']:.3f} ms, "
            f"added p50 {_added(of):.3f} ms (at most {limit:g})"
        )

    rate, cpu, of, streams = found["per_second"], found["cpu_ms"], found["of"], found["streams"]
    return "\n".join(
        [
            line("Door, one request", found["request_ms"], LIMITS["request_ms"]),
            line("Door, one streamed chunk", found["chunk_ms"], LIMITS["chunk_ms"]),
            f"Door, requests per second with {CLIENTS} clients: {rate['door']}; a bare Starlette {rate['starlette']} "
            f"({of['starlette']:.2f} of it, at least {LIMITS['of starlette']:g}); under the panel's server "
            f"{rate['starlette-here']} ({of['starlette-here']:.2f}); the engine {rate['engine']}",
            f"  processor time of one request: door {cpu['door']:.3f} ms, Starlette {cpu['starlette']:.3f} ms, "
            f"under the panel's server {cpu['starlette-here']:.3f} ms",
            f"Door, {streams['whole']} streams at once: all whole, {streams['chunks_per_second']} chunks per second, "
            f"a chunk is p50 {streams['late_ms']['p50']:.1f} p95 {streams['late_ms']['p95']:.1f} ms under way",
        ]
    )


def broken(found: dict[str, Any]) -> list[str]:
    """The limits that do not hold."""
    within = {
        "of starlette": found["of"]["starlette"] >= LIMITS["of starlette"],
        "request_ms": _added(found["request_ms"]) <= LIMITS["request_ms"],
        "chunk_ms": _added(found["chunk_ms"]) <= LIMITS["chunk_ms"],
    }
    return [name for name, good in within.items() if not good]


def main() -> int:
    """Print the figures; 1 when a limit is broken."""
    with (
        _serving("engine") as engine,
        _serving("starlette") as starlette,
        _serving("starlette-here") as here,
        _serving("door", BENCH_ENGINE_PORT=str(engine.port)) as door,
    ):
        names = {"engine": engine, "door": door, "starlette": starlette, "starlette-here": here}
        found = measure(names)
    sys.stdout.write(report(found) + "\n")
    return 1 if broken(found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
