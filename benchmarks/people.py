"""A very light HTTP client: many keep-alive connections and open streams from one thread, so that it costs little of
the machine that it measures."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` (0 to 1) of all values do not pass; nearest rank, so that it is one that was seen."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1))]


@dataclass(slots=True)
class Seen:
    """What came of many requests: milliseconds of the good ones, and what went wrong in words."""

    times: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    size: int = 0  # bytes of the newest body

    def line(self, what: str, limit: float | None = None) -> str:
        if not self.times:
            return f"{what}: nothing answered; {self.errors[:1]}"
        found = " ".join(f"{name} {percentile(self.times, share):.1f}" for name, share in SHARES)
        said = f"{what}: {found} ms of {len(self.times)}"
        said += f" (p95 at most {limit:g})" if limit is not None else ""
        return said + (f"; {len(self.errors)} errors, such as {self.errors[0]}" if self.errors else "")


SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("worst", 1.0))


class Line:
    """One keep-alive connection."""

    def __init__(self, port: int, head: str) -> None:
        self.port, self.head = port, head
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def get(self, path: str) -> tuple[int, bytes]:
        """(status, body). Raises OSError or EOFError."""
        used = self.writer is not None
        try:
            return await self._get(path)
        except asyncio.IncompleteReadError as exc:
            if not used or exc.partial:
                raise
            self.close()  # the server let go of an idle connection just now: what every client tries once more
            return await self._get(path)

    async def _get(self, path: str) -> tuple[int, bytes]:
        if self.writer is None or self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{self.head}\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((line.split(b":")[1] for line in lines if line.startswith(b"content-length:")), None)
        if length is not None:
            body = await self.reader.readexactly(int(length))
        else:
            body = await self._chunks(self.reader)
        if b"connection: close" in lines:
            self.close()
        return int(head[9:12]), body

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return body

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def ask(line: Line, path: str, seen: Seen) -> None:
    began = time.perf_counter()
    try:
        status, body = await line.get(path)
    except (OSError, EOFError, asyncio.IncompleteReadError) as exc:
        line.close()
        seen.errors.append(f"{path}: {type(exc).__name__}")
        return
    if status != 200:
        seen.errors.append(f"{path}: HTTP {status} {body[:120]!r}")
        return
    seen.times.append((time.perf_counter() - began) * 1000)
    seen.size = len(body)


async def one_by_one(port: int, head: str, path: str, times: int) -> Seen:
    """Requests on an idle server; the first two warm it up and do not count."""
    line, seen = Line(port, head), Seen()
    for _ in range(2):
        await ask(line, path, Seen())
    for _ in range(times):
        await ask(line, path, seen)
    line.close()
    return seen


async def at_rate(port: int, head: str, paths: Sequence[str], per_second: float, seconds: float) -> Seen:
    """Requests at fixed moments, however long the ones before take: a slow server is not spared.

    A request's time begins at its moment, so that waiting for a connection counts as well.
    """
    free: asyncio.LifoQueue[Line] = asyncio.LifoQueue()
    for _ in range(64):
        free.put_nowait(Line(port, head))
    seen, loop, tasks = Seen(), asyncio.get_running_loop(), []

    async def at(number: int, moment: float) -> None:
        line = await free.get()
        mine = Seen()
        waited = (loop.time() - moment) * 1000
        await ask(line, paths[number % len(paths)], mine)
        free.put_nowait(line)
        seen.times.extend(value + waited for value in mine.times)
        seen.errors.extend(mine.errors)

    begin = loop.time()
    for number in range(int(per_second * seconds)):
        moment = begin + number / per_second
        if (left := moment - loop.time()) > 0:
            await asyncio.sleep(left)
        tasks.append(loop.create_task(at(number, moment)))
    await asyncio.gather(*tasks)
    while not free.empty():
        free.get_nowait().close()
    return seen


async def at_once(port: int, head: str, paths: Sequence[str], clients: int, seconds: float) -> tuple[float, Seen]:
    """As many requests as go through with so many clients; (per second, what came)."""
    seen, end = Seen(), time.perf_counter() + seconds

    async def client(number: int) -> None:
        line = Line(port, head)
        while time.perf_counter() < end:
            await ask(line, paths[number % len(paths)], seen)
            number += 1
        line.close()

    began = time.perf_counter()
    await asyncio.gather(*(client(number * 7) for number in range(clients)))
    return len(seen.times) / (time.perf_counter() - began), seen


@dataclass(slots=True)
class Streams:
    """Open live pages. `lost` are those that ended."""

    open: int = 0
    lost: list[str] = field(default_factory=list)
    events: int = 0


async def live_page(port: int, head: str, path: str, streams: Streams, opened: asyncio.Semaphore) -> None:
    """Hold one stream open until cancelled, and connect again where the server says `bye`, as a page does."""
    while True:
        async with opened:  # a browser opens one after the other, too
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{head}\r\n".encode())
            try:
                begun = await reader.readuntil(b"event: hello")
            except asyncio.IncompleteReadError as exc:
                streams.lost.append(repr(exc.partial[:80]))
                return
            if b" 200 " not in begun.split(b"\r\n", 1)[0]:
                streams.lost.append(repr(begun[:80]))
                return
        streams.open += 1
        try:
            bye = await _follow(reader, streams)
        finally:
            streams.open -= 1
            writer.close()
        if not bye:
            streams.lost.append(f"{path}: ended")
            return


async def _follow(reader: asyncio.StreamReader, streams: Streams) -> bool:
    """Count events until the stream ends; whether it ended with a `bye`."""
    while line := await reader.readline():
        if line.startswith(b"event:"):
            streams.events += 1
            if b"bye" in line:
                return True
    return False
