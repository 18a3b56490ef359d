"""The door of another host: one more pure ASGI app. It lets the panel's door through to this host's own engines.

    POST /run/<job>/v1/<path>   Authorization: Bearer <the panel's key for this door>, X-Berth-Engine-Key: <its own>

What is open stands in one small file that the agent keeps beside it; so it works on while the agent is away. Its own
answers say `X-Berth-Said-By: door`, the engine's pass with `engine`.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from panel.fleet.agent.procs import Ident
from panel.fleet.door.access import bearer
from panel.fleet.door.asgi import ASK, Scope, path_of, say
from panel.fleet.door.body import Held, Receive, read_body
from panel.fleet.door.deadline import Limit
from panel.fleet.door.errors import DoorError
from panel.fleet.door.headers import ENGINE_KEY, RUN, Asked
from panel.fleet.door.limits import Limits
from panel.fleet.door.relay import Broken, Exchange, Send
from panel.fleet.door.snapshot import Route, token_hash
from panel.fleet.door.upstream import ClientGone, Pool

log = logging.getLogger("berth.door")

MAX_FILE = 1 << 20
_TARGET = re.compile(re.escape(RUN) + r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(/v1/.{1,100})")


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine of this host: where it listens on loopback, and the process that must still be it."""

    host: str
    port: int
    process: Ident


@dataclass(frozen=True, slots=True)
class Open:
    """What is open: the hashes of the keys that are taken, and the engines by job id."""

    accepts: frozenset[str] = frozenset()
    runs: Mapping[str, Engine] = field(default_factory=dict)


class Book:
    """Reads the agent's file again whenever it is another one. One that cannot be read changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: tuple[int, ...] = ()
        self._open = Open()

    def now(self) -> Open:
        try:
            stat = self.path.stat()
            mark = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if mark != self._mark:
                self._open, self._mark = parse(self.path.read_bytes()[:MAX_FILE]), mark
        except (OSError, ValueError, KeyError, TypeError) as exc:
            log.warning("%s cannot be read: %s", self.path.name, exc)
        return self._open


def parse(raw: bytes) -> Open:
    """Raises ValueError, KeyError or TypeError."""
    value = json.loads(raw)
    runs = {}
    for job_id, run in value["runs"].items():
        process = Ident.load(run["process"])
        # A door to anything but a loopback port of a known process is never opened, whatever the file says.
        if process is None or not ipaddress.ip_address(run["host"]).is_loopback or not 0 < run["port"] < 65536:
            raise ValueError(f"job {job_id[:40]}")
        runs[job_id] = Engine(run["host"], run["port"], process)
    return Open(frozenset(map(str, value["accepts"])), runs)


class HostDoor:
    """The app. Its own refusals tell a stranger nothing about what runs here."""

    def __init__(self, book: Book, limits: Limits | None = None) -> None:
        self._book = book
        self.limits = limits or Limits()
        self._pool = Pool(self.limits)
        self._held = Held(self.limits.bodies)

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
            await say(send, scope, refusal.status, refusal.body(), headers, said_by=b"door")
        except ClientGone:
            log.debug("the panel left, request %s", asked.request_id.decode())
        except Broken as exc:
            log.warning("answer broke off (%s), request %s", exc, asked.request_id.decode())

    async def _answer(self, scope: Scope, receive: Receive, send: Send, asked: Asked) -> None:
        book = self._book.now()
        if token_hash(bearer(asked.authorization)) not in book.accepts:
            raise DoorError(401, "token.unknown", "This key is not known here.")
        target = _TARGET.fullmatch(path_of(scope))
        if target is None or target[2] not in ASK:
            raise DoorError(404, "request.path", "There is nothing here.")
        if scope["method"] != "POST":
            raise DoorError(405, "request.method", "This takes POST.", headers=[(b"allow", b"POST")])
        declared = asked.length()
        route = _route(book, target[1], scope["headers"])
        patience = Limit(self._pool.rounds)
        body = b""
        try:
            body = await read_body(receive, declared, self.limits, self._held, patience)
            # The panel's door tells the client of a broken stream: here the cut itself is the word.
            exchange = Exchange(self._pool, receive, send, patience, asked.request_id, tell=False)
            await exchange.relay(route, asked.head(target[2], route, len(body)), body)
        finally:
            self._held.bytes -= len(body)
            patience.close()


def _route(book: Open, job_id: str, headers: list[tuple[bytes, bytes]]) -> Route:
    """Raises DoorError when that job does not run here now."""
    engine = book.runs.get(job_id)
    # The file may be older than the engine's end (the agent is away), and its port somebody else's by now.
    if engine is None or not engine.process.alive():
        raise DoorError(
            404, "door.not_running", "The engine does not run on its host at this moment.", "Ask again.", who="host"
        )
    keys = [value for name, value in headers if name == ENGINE_KEY.encode()]
    key = keys[0].decode("latin-1") if len(keys) == 1 else ""
    return Route("", 0, "ready", open=True, host=engine.host, port=engine.port, key=key)
