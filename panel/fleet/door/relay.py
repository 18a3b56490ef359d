"""One request to an engine and its answer back: byte for byte, with no more held than a small window."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from panel.fleet.door import away
from panel.fleet.door.body import Receive
from panel.fleet.door.deadline import Deadline
from panel.fleet.door.errors import EngineBroke
from panel.fleet.door.limits import Limits
from panel.fleet.door.snapshot import Route
from panel.fleet.door.upstream import (
    Address,
    BadAnswer,
    ClientGone,
    Connection,
    ConnectionGone,
    Head,
    Header,
    Pool,
    Unreachable,
    WrongCertificate,
)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Lists of what passes, not of what does not: an unknown header can carry a cookie, a key or an order to the engine.
REQUEST_HEADERS = frozenset({b"accept", b"content-type", b"user-agent", b"x-request-id", b"traceparent", b"tracestate"})
RESPONSE_HEADERS = frozenset(
    {
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"content-language",
        b"cache-control",
        b"retry-after",
        b"x-request-id",
        b"x-should-retry",
        b"openai-model",
        b"openai-processing-ms",
        b"openai-version",
    }
)
WATCH_AFTER_S = 0.01
ENGINE_KEY = b"x-berth-engine-key"  # to another host's door, by TLS: the key that the engine there wants
RUN = "/run/"
# The answer shares the panel's origin: a browser must never take it for a page.
SAFE = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"default-src 'none'; sandbox"))


class Broken(Exception):
    """The answer had begun and cannot be finished; the client's connection must end visibly."""


def request_head(method: str, path: str, route: Route, headers: Iterable[Header], length: int) -> bytes:
    """The request line and headers for the engine: our path, its key, and the few headers that pass.

    To another host's door: the path names the run, our key for the door goes first, the engine's beside it.
    """
    via, key = route.via, route.key
    target, where = (path, f"{route.host}:{route.port}") if via is None else (f"{RUN}{via.job_id}{path}", "door")
    lines = [f"{method} {target} HTTP/1.1\r\nhost: {where}\r\ncontent-length: {length}\r\n".encode("latin-1")]
    if via is not None:
        lines.append(b"authorization: Bearer " + via.key.encode("latin-1") + b"\r\n")
    if key:
        name, scheme = (b"authorization", b"Bearer ") if via is None else (ENGINE_KEY, b"")
        lines.append(name + b": " + scheme + key.encode("latin-1") + b"\r\n")
    for name, value in headers:
        if name in REQUEST_HEADERS and b"\r" not in value and b"\n" not in value and b"\0" not in value:
            lines.append(name + b": " + value + b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


class Exchange:
    """One request with its connection, so that whoever sees the client leave can end it wherever it is."""

    def __init__(self, pool: Pool, route: Route) -> None:
        self._pool, self._route = pool, route
        self.connection: Connection | None = None
        self._gone = False
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def ask(self, head: bytes, body: bytes) -> tuple[Connection, Head]:
        """Raises DoorError, ConnectionGone, BadAnswer, ClientGone."""
        route = self._route
        via = route.via
        address = Address(via.address, via.port, via.certificate) if via else Address(route.host, route.port or 0)
        try:
            return await self._ask(address, head, body)
        except WrongCertificate as exc:
            assert via is not None
            raise away.wrong_certificate(via) from exc
        except Unreachable as exc:
            raise (away.host_away(via) if via is not None else _no_engine()) from exc

    async def _ask(self, address: Address, head: bytes, body: bytes) -> tuple[Connection, Head]:
        connection = await self._pool.take(address)
        while True:
            self.connection = connection
            if self._gone:
                raise ClientGone
            reused = connection.used > 0
            connection.ask(head, body)
            try:
                return connection, await connection.head()
            except ConnectionGone:
                # An engine may close an idle connection at the very moment it is used again; nothing was said on it.
                if not reused or connection.answered:
                    raise
            connection = await self._pool.connect(address)

    def watch(self, receive: Receive) -> None:
        """Abort the engine's connection at the moment the client's ends: the engine then stops generating.

        It begins a moment later, since an answer that comes at once needs no task that watches (a tenth of its cost).
        """
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin_watch, receive)

    def _begin_watch(self, receive: Receive) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch(receive))

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self.connection is not None:
            self.connection.abort(ClientGone())

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self.connection is None:
            return
        if self.connection.whole:
            self._pool.give(self.connection)
        else:
            self.connection.abort()


async def relay(
    pool: Pool,
    route: Route,
    head: bytes,
    body: bytes,
    *,
    receive: Receive,
    send: Send,
    limits: Limits,
    request_id: bytes = b"",
    tell: bool = True,
) -> int:
    """Forward, and stream the answer back; returns its status. `tell` puts an error into an event stream that breaks.

    Raises DoorError before anything was sent, Broken after, ClientGone when the client left or stalled.
    """
    exchange = Exchange(pool, route)
    exchange.watch(receive)
    try:
        connection, answer = await exchange.ask(head, body)
        if route.via is not None:
            if not _is_engines(answer):
                raise await away.refused(connection, answer, route.via)
        elif answer.status in (401, 403):
            raise EngineBroke(
                "engine.key_refused", "The engine refused the panel's own key.", "Restart the deployment."
            )
        await _stream(connection, answer, send, route, limits, request_id, tell=tell)
        return answer.status
    except (ConnectionGone, BadAnswer) as exc:
        raise _broke(exc, route) from exc
    finally:
        exchange.end()


async def _stream(
    connection: Connection, answer: Head, send: Send, route: Route, limits: Limits, request_id: bytes, *, tell: bool
) -> None:
    headers = [(name, value) for name, value in answer.headers if name in RESPONSE_HEADERS]
    events = any(name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers)
    headers += [(b"x-berth-said-by", b"engine"), *SAFE]
    if request_id and not any(name == b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", request_id))
    if events:
        headers.append((b"x-accel-buffering", b"no"))  # nginx in front must not collect the stream
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        more = True
        while more:
            data = await connection.more()
            more = not connection.whole
            with Deadline(limits.client_stall_s):
                await send({"type": "http.response.body", "body": data, "more_body": more})
    except TimeoutError as exc:
        raise ClientGone from exc
    except (ConnectionGone, BadAnswer, EngineBroke) as exc:
        broke = exc if isinstance(exc, EngineBroke) else _broke(exc, route)
        if events and tell:  # clients of the OpenAI API raise what stands in an event named error
            await send(
                {"type": "http.response.body", "body": b"\n\ndata: " + broke.body() + b"\n\n", "more_body": True}
            )
        raise Broken(broke.code) from exc


def _is_engines(answer: Head) -> bool:
    """Whether another host's door passes on its engine's word. Raises BadAnswer when it is no door that speaks."""
    said = dict(answer.headers).get(b"x-berth-said-by", b"")
    if said not in (b"engine", b"door"):
        raise BadAnswer("it is no door that answers")
    return said == b"engine"


def _no_engine() -> EngineBroke:
    return EngineBroke(
        "engine.unreachable",
        "The engine does not accept connections.",
        "It may just have ended; the deployment's page says what happened.",
    )


def _broke(exc: ConnectionGone | BadAnswer, route: Route) -> EngineBroke:
    if route.via is not None and isinstance(exc, ConnectionGone):
        return away.broke_off(route.via)
    if isinstance(exc, BadAnswer):
        return EngineBroke("engine.bad_answer", "The engine's answer is not proper HTTP.", "Look at the engine's log.")
    return EngineBroke(
        "engine.broke_off",
        "The engine closed the connection before its answer was whole.",
        "It may have died of this request; the deployment's page says what happened.",
    )
