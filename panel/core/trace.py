"""One id from a click to the shim: of a request, of a command in the shell, and of all that comes of it.

The web process takes the caller's `X-Request-ID` or makes one, and answers with it; services write it beside what is
wanted, so that it is there whatever restarts meanwhile; the loop takes it up from there, the order carries it to the
agent, and the shim writes it into its record. Every log line of these says it. Pages and API name it in errors.
"""

import contextlib
import logging
import re
import secrets
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

log = logging.getLogger(__name__)

HEADER = "X-Request-ID"
_GOOD = re.compile(r"[A-Za-z0-9._-]{4,64}")
_SECRET = re.compile(r"(?<=/)(?![0-9a-f]{8}-)[^/]{30,}")  # of a one-time link; run ids may be read
_current: ContextVar[str] = ContextVar("berth_trace", default="")


def current() -> str:
    """The id of what is going on in this task or thread; "" where nobody asked for anything."""
    return _current.get()


def new() -> str:
    """Sixteen signs that nothing else has."""
    return secrets.token_hex(8)


def accepted(wish: str) -> str:
    """A caller's own id when it is one that may stand in a log line, else a new one."""
    return wish if _GOOD.fullmatch(wish) else new()


def take_up(identity: str) -> None:
    """From now on this thread works for this id."""
    _current.set(identity)


@contextlib.contextmanager
def bound(identity: str) -> Iterator[str]:
    """All that is done inside belongs to this id; "" leaves what was there."""
    token = _current.set(identity or current())
    try:
        yield _current.get()
    finally:
        _current.reset(token)


class Traced:
    """An ASGI app whose requests have an id each, which the answer names."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        wish = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        identity = accepted(wish.decode("latin-1"))
        header = (HEADER.lower().encode(), identity.encode())

        status = 0

        async def named(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        with bound(identity):
            await self.app(scope, receive, named)
            if scope["method"] not in ("GET", "HEAD", "OPTIONS") and not scope["path"].startswith("/agent/"):
                log.info("%s %s: %d", scope["method"], _SECRET.sub("…", scope["path"])[:200], status)
