"""Small pieces that both doors share: the path as it was sent, the headers that count, answers of the door itself."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from os import urandom
from typing import Any

from panel.fleet.door.errors import DoorError
from panel.fleet.door.relay import SAFE, Send
from panel.fleet.door.upstream import Header

Scope = MutableMapping[str, Any]

ASK = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def path_of(scope: Scope) -> str:
    """The path exactly as it was sent: an encoded or dotted spelling of an allowed path is another path."""
    raw: bytes | None = scope.get("raw_path")
    return raw.partition(b"?")[0].decode("latin-1") if raw is not None else str(scope["path"])


def check_headers(headers: list[Header]) -> int | None:
    """The declared length of a JSON body. Raises DoorError 415."""
    declared: int | None = None
    kind = encoding = b""
    for name, value in headers:
        if name == b"content-length":
            declared = int(value)
        elif name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
        elif name == b"content-encoding":
            encoding = value.strip().lower()
    if kind != b"application/json" or encoding not in (b"", b"identity"):
        raise DoorError(
            415,
            "request.media_type",
            "The body must be plain JSON.",
            "Send `Content-Type: application/json`, not compressed.",
        )
    return declared


def request_id(headers: list[Header]) -> bytes:
    """The client's own id when it is a plain word, else a new one; the engine and the client get it."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value
    return urandom(8).hex().encode()


def with_id(headers: list[Header], identity: bytes) -> list[Header]:
    return [*((name, value) for name, value in headers if name != b"x-request-id"), (b"x-request-id", identity)]


async def say(
    send: Send, scope: Scope, status: int, body: bytes, headers: list[Header], *, said_by: bytes = b"panel"
) -> None:
    """An answer of the door itself. A HEAD gets the headers of the same GET."""
    headers = [*headers, (b"x-berth-said-by", said_by), (b"cache-control", b"no-store"), *SAFE]
    if status != 204:
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
