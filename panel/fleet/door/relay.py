"""One request to an engine and its answer back: byte for byte, with no more held than a small window."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from panel.fleet.door import away
from panel.fleet.door.body import Receive
from panel.fleet.door.deadline import Limit
from panel.fleet.door.errors import EngineBroke
from panel.fleet.door.headers import answered
from panel.fleet.door.snapshot import Route
from panel.fleet.door.upstream import (
    Address,
    BadAnswer,
    ClientGone,
    Connection,
    ConnectionGone,
    Head,
    Pool,
    Unreachable,
    WrongCertificate,
)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Broken(Exception):
    """The answer had begun and cannot be finished; the client's connection must end visibly."""


@dataclass(slots=True)
class Client:
    """The one who asked: its two ends, and how long it and the engine are waited for."""

    receive: Receive
    send: Send
    patience: Limit
    request_id: bytes
    tell: bool = True  # an event stream that breaks says why before it ends


class Exchange:
    """One request with its connection, so that whoever sees the client leave can end it wherever it is."""

    __slots__ = ("_client", "_gone", "_limits", "_pool", "_route", "_watcher", "connection")

    def __init__(self, pool: Pool, route: Route, client: Client) -> None:
        self._pool, self._route, self._client, self._limits = pool, route, client, pool.limits
        self.connection: Connection | None = None
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None
        client.patience.soon = self.watch  # an answer that comes at once needs no task that watches

    async def ask(self, head: bytes, body: bytes) -> tuple[Connection, Head]:
        """Raises DoorError, ConnectionGone, BadAnswer, ClientGone."""
        route, patience = self._route, self._client.patience
        via = route.via
        address = Address(via.address, via.port, via.certificate) if via else Address(route.host, route.port or 0)
        try:
            connection = self._pool.take(address) or await self._pool.connect(address, patience)
            while True:
                self.connection = connection
                if self._gone:
                    raise ClientGone
                reused = connection.used > 0
                connection.ask(head, body)
                try:
                    with patience.within(self._limits.first_byte_s):
                        return connection, await connection.head()
                except ConnectionGone:
                    # An engine may close an idle connection at the moment it is used again; nothing was said on it.
                    if not reused or connection.answered:
                        raise
                connection = await self._pool.connect(address, patience)
        except TimeoutError as exc:
            raise _late("engine.no_first_byte", self._limits.first_byte_s) from exc
        except WrongCertificate as exc:
            assert via is not None
            raise away.wrong_certificate(via) from exc
        except Unreachable as exc:
            raise (away.host_away(via) if via is not None else _no_engine()) from exc

    async def more(self) -> bytes:
        """The next piece of the answer; b"" at its end. Raises EngineBroke, ConnectionGone, BadAnswer, ClientGone."""
        assert self.connection is not None
        try:
            with self._client.patience.within(self._limits.idle_s):
                return await self.connection.more()
        except TimeoutError as exc:
            raise _late("engine.went_silent", self._limits.idle_s) from exc

    def watch(self) -> None:
        """Abort the engine's connection at the moment the client's ends: the engine then stops generating."""
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._client.receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self.connection is not None:
            self.connection.abort(ClientGone())

    def end(self) -> None:
        self._client.patience.soon = None
        if self._watcher is not None:
            self._watcher.cancel()
        if self.connection is None:
            return
        if self.connection.whole:
            self._pool.give(self.connection)
        else:
            self.connection.abort()


async def relay(pool: Pool, route: Route, head: bytes, body: bytes, client: Client) -> None:
    """Forward, and stream the answer back.

    Raises DoorError before anything was sent, Broken after, ClientGone when the client left or stalled.
    """
    exchange = Exchange(pool, route, client)
    try:
        connection, answer = await exchange.ask(head, body)
        if route.via is not None:
            if not _is_engines(answer):
                raise await away.refused(exchange.more, answer, route.via)
        elif answer.status in (401, 403):
            raise EngineBroke(
                "engine.key_refused", "The engine refused the panel's own key.", "Restart the deployment."
            )
        headers, events = answered(answer, client.request_id)
        await client.send({"type": "http.response.start", "status": answer.status, "headers": headers})
        try:
            more = True
            while more:
                data = connection.take() or await exchange.more()
                more = not connection.whole
                with client.patience.within(pool.limits.client_stall_s):
                    await client.send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError as exc:
            raise ClientGone from exc
        except (ConnectionGone, BadAnswer, EngineBroke) as exc:
            await _cut(exc, route, client, pool.limits.client_stall_s, events)
    except (ConnectionGone, BadAnswer) as exc:
        raise _broke(exc, route) from exc
    finally:
        exchange.end()


async def _cut(exc: Exception, route: Route, client: Client, stall_s: float, events: bool) -> None:
    """Say why the answer ends here, where its kind can say it, and raise Broken."""
    broke = exc if isinstance(exc, EngineBroke) else _broke(exc, route)
    if events and client.tell:  # clients of the OpenAI API raise what stands in an event named error
        words = b"\n\ndata: " + broke.body() + b"\n\n"
        with contextlib.suppress(TimeoutError), client.patience.within(stall_s):
            await client.send({"type": "http.response.body", "body": words, "more_body": True})
    raise Broken(broke.code) from exc


def _late(code: str, seconds: float) -> EngineBroke:
    return EngineBroke(code, f"The engine sent nothing for {seconds:g} seconds.", status=504)


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


def _broke(exc: Exception, route: Route) -> EngineBroke:
    if route.via is not None and isinstance(exc, ConnectionGone):
        return away.broke_off(route.via)
    if isinstance(exc, BadAnswer):
        return EngineBroke("engine.bad_answer", "The engine's answer is not proper HTTP.", "Look at the engine's log.")
    return EngineBroke(
        "engine.broke_off",
        "The engine closed the connection before its answer was whole.",
        "It may have died of this request; the deployment's page says what happened.",
    )
