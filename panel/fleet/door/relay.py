"""One request to an engine and its answer back: byte for byte, with no more held than a small window."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
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


class Exchange:
    """One request of a client: whoever sees it leave can end the engine's connection, wherever the request is.

    `tell`: an event stream that breaks says why before it ends.
    """

    __slots__ = (
        "_gone",
        "_limits",
        "_pool",
        "_watcher",
        "connection",
        "patience",
        "receive",
        "request_id",
        "send",
        "tell",
    )

    def __init__(
        self, pool: Pool, receive: Receive, send: Send, patience: Limit, request_id: bytes, *, tell: bool = True
    ) -> None:
        self._pool, self._limits = pool, pool.limits
        self.receive, self.send, self.patience, self.request_id, self.tell = receive, send, patience, request_id, tell
        self.connection: Connection | None = None
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    async def relay(self, route: Route, head: bytes, body: bytes) -> None:
        """Forward, and stream the answer back.

        Raises DoorError before anything was sent, Broken after, ClientGone when the client left or stalled.
        """
        self.patience.soon = self._watch  # an answer that comes at once needs no task that watches
        try:
            connection, answer = await self._ask(route, head, body)
            if route.via is not None:
                if not _is_engines(answer):
                    raise await away.refused(self._more, answer, route.via)
            elif answer.status in (401, 403):
                raise EngineBroke(
                    "engine.key_refused", "The engine refused the panel's own key.", "Restart the deployment."
                )
            headers, events = answered(answer, self.request_id)
            await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})
            try:
                more = True
                while more:
                    data = connection.take() or await self._more()
                    more = not connection.whole
                    # A client that takes nothing holds this up until the server ends its connection (HeadLimit).
                    await self.send({"type": "http.response.body", "body": data, "more_body": more})
            except (ConnectionGone, BadAnswer, EngineBroke) as exc:
                await self._cut(exc, route, events)
        except (ConnectionGone, BadAnswer) as exc:
            raise _broke(exc, route) from exc
        finally:
            self._end()

    async def _ask(self, route: Route, head: bytes, body: bytes) -> tuple[Connection, Head]:
        """Raises DoorError, ConnectionGone, BadAnswer, ClientGone."""
        via, patience = route.via, self.patience
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

    async def _more(self) -> bytes:
        """The next piece of the answer; b"" at its end. Raises EngineBroke, ConnectionGone, BadAnswer, ClientGone."""
        assert self.connection is not None
        try:
            with self.patience.within(self._limits.idle_s):
                return await self.connection.more()
        except TimeoutError as exc:
            raise _late("engine.went_silent", self._limits.idle_s) from exc

    async def _cut(self, exc: Exception, route: Route, events: bool) -> None:
        """Say why the answer ends here, where its kind can say it, and raise Broken."""
        broke = exc if isinstance(exc, EngineBroke) else _broke(exc, route)
        if events and self.tell:  # clients of the OpenAI API raise what stands in an event named error
            words = b"\n\ndata: " + broke.body() + b"\n\n"
            await self.send({"type": "http.response.body", "body": words, "more_body": True})
        raise Broken(broke.code) from exc

    def _watch(self) -> None:
        """Abort the engine's connection at the moment the client's ends: the engine then stops generating."""
        self._watcher = asyncio.get_running_loop().create_task(self._see_it_leave())

    async def _see_it_leave(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self.connection is not None:
            self.connection.abort(ClientGone())

    def _end(self) -> None:
        self.patience.soon = None
        if self._watcher is not None:
            self._watcher.cancel()
        connection, self.connection = self.connection, None  # another's from here on
        if connection is not None:
            self._pool.give(connection)


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
