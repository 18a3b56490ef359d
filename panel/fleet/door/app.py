"""The ASGI app of the door. It answers everything below /v1 and never raises for what a client or an engine does."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from panel.fleet.door import access, routes
from panel.fleet.door.asgi import ASK, Scope, path_of, say
from panel.fleet.door.body import Held, Receive, find_model, read_body
from panel.fleet.door.deadline import Limit
from panel.fleet.door.errors import DoorError
from panel.fleet.door.headers import Asked
from panel.fleet.door.limits import Limits
from panel.fleet.door.relay import Broken, Exchange, Send
from panel.fleet.door.snapshot import NoSnapshot, Route, Snapshot
from panel.fleet.door.upstream import ClientGone, Pool, Where

log = logging.getLogger("berth.door")

MODELS = "/v1/models"
_ONE_MODEL = re.compile(r"/v1/models/[^/]+")


@dataclass(slots=True)
class Count:
    """What a deployment was asked since this process began."""

    active: int = 0
    requests: int = 0
    broken: int = 0

    def __enter__(self) -> None:
        self.requests += 1
        self.active += 1

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.active -= 1
        self.broken += isinstance(exc, (DoorError, Broken))


class Source(Protocol):
    """Gives the Snapshot, with `newest` one that was begun after the call. Raises NoSnapshot."""

    def __call__(self, *, newest: bool = False) -> Awaitable[Snapshot]: ...


class Door:
    """`snapshot` is awaited once per request.

    `where` says which addresses may be called for another host's door; without it what the snapshot names is.
    `used` collects token id → Unix time of the last request, for whoever writes it down; `counts` is by model name.
    """

    def __init__(
        self,
        snapshot: Source,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        where: Where | None = None,
    ) -> None:
        self._snapshot, self._clock = snapshot, clock
        self.limits = limits or Limits()
        self._pool = Pool(self.limits, where)
        self._held = Held(self.limits.bodies)
        self.used: dict[int, float] = {}
        self.counts: dict[str, Count] = {}

    def close(self) -> None:
        self._pool.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            return
        asked = Asked(scope["headers"])
        try:
            await self._answer(scope, receive, send, asked)
        except DoorError as refusal:
            headers = [*refusal.headers(), (b"x-request-id", asked.request_id)]
            await say(send, scope, refusal.status, refusal.body(), headers)
        except ClientGone:
            log.debug("client left: %s %s", scope["path"], asked.request_id.decode())
        except Broken as exc:
            # Returning without the end of the answer makes the server cut the connection: the client sees it.
            log.warning("answer broke off (%s), request %s", exc, asked.request_id.decode())

    async def _answer(self, scope: Scope, receive: Receive, send: Send, asked: Asked) -> None:
        path, method = path_of(scope), scope["method"]
        allowed = _methods(path)
        if method == "OPTIONS" and allowed:
            await say(send, scope, 204, b"", [(b"allow", ", ".join(allowed).encode())])
            return
        snapshot, caller = await self._identify(asked)
        if caller.token is not None and caller.token.id is not None:
            self.used[caller.token.id] = self._clock()
        if not allowed:
            raise _no_such_path(path)
        if method not in allowed:
            listed = ", ".join(allowed)
            raise DoorError(405, "request.method", f"{path} takes {listed}.", headers=[(b"allow", listed.encode())])
        if path in ASK:
            await self._ask(path, asked, receive, send, snapshot, caller)
        else:
            answer = self._models(path, snapshot, caller)
            await say(send, scope, 200, json.dumps(answer).encode(), [(b"x-request-id", asked.request_id)])

    async def _identify(self, asked: Asked) -> tuple[Snapshot, access.Caller]:
        try:
            snapshot = await self._snapshot()
            caller = access.identify(asked.authorization, snapshot, self._clock())
            if caller.probe_run:  # it comes the moment an engine listens, of which an older snapshot does not know
                snapshot = await self._snapshot(newest=True)
        except NoSnapshot as exc:
            raise DoorError(
                503,
                "panel.not_ready",
                "The panel does not know its tokens and models at this moment.",
                "It may be starting, or its database is away; ask again.",
                retry_after=2,
            ) from exc
        return snapshot, caller

    def _models(self, path: str, snapshot: Snapshot, caller: access.Caller) -> dict[str, Any]:
        if path == MODELS:
            return routes.listing(snapshot, caller)
        return routes.entry(routes.choose(snapshot, caller, path.removeprefix(MODELS + "/"), self._clock()))

    async def _ask(
        self, path: str, asked: Asked, receive: Receive, send: Send, snapshot: Snapshot, caller: access.Caller
    ) -> None:
        declared = asked.length()
        patience = Limit(self._pool.rounds)
        body = b""
        try:
            body = await read_body(receive, declared, self.limits, self._held, patience)
            model = await find_model(body)
            route = routes.choose(snapshot, caller, model, self._clock())
            exchange = Exchange(self._pool, receive, send, patience, asked.request_id)
            count = self.counts.get(route.name) or self.counts.setdefault(route.name, Count())
            with count:
                try:
                    await exchange.relay(route, asked.head(path, route, len(body)), body)
                except DoorError as refusal:
                    again = await self._with_newer_key(refusal, route, caller, model)
                    await exchange.relay(again, asked.head(path, again, len(body)), body)
        finally:
            self._held.bytes -= len(body)
            patience.close()

    async def _with_newer_key(self, refusal: DoorError, route: Route, caller: access.Caller, model: str) -> Route:
        """The route anew when another host's door refused a key that was replaced a moment ago; else the refusal."""
        if refusal.code != "door.key_refused":
            raise refusal
        try:
            snapshot = await self._snapshot(newest=True)
        except NoSnapshot:
            raise refusal from None
        again = routes.choose(snapshot, caller, model, self._clock())
        if again.via is None or route.via is None or again.via.key == route.via.key:
            raise refusal
        return again


def _methods(path: str) -> tuple[str, ...]:
    """The methods that a path takes; none for a path that is not open."""
    if path in ASK:
        return ("POST", "OPTIONS")
    if path == MODELS or _ONE_MODEL.fullmatch(path):
        return ("GET", "HEAD", "OPTIONS")
    return ()


def _no_such_path(path: str) -> DoorError:
    return DoorError(
        404,
        "request.path",
        f"There is nothing at {path[:120]}.",
        "Open here: " + ", ".join([MODELS, *sorted(ASK)]) + ".",
    )
