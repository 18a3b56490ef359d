"""Small pieces that both doors share: the path as it was sent, and answers of the door itself."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from panel.fleet.door.headers import SAFE
from panel.fleet.door.relay import Send
from panel.fleet.door.upstream import Header

Scope = MutableMapping[str, Any]

ASK = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score"})


def path_of(scope: Scope) -> str:
    """The path exactly as it was sent: an encoded or dotted spelling of an allowed path is another path."""
    raw: bytes | None = scope.get("raw_path")
    return raw.partition(b"?")[0].decode("latin-1") if raw is not None else str(scope["path"])


async def say(
    send: Send, scope: Scope, status: int, body: bytes, headers: list[Header], *, said_by: bytes = b"panel"
) -> None:
    """An answer of the door itself. A HEAD gets the headers of the same GET."""
    headers = [*headers, (b"x-berth-said-by", said_by), (b"cache-control", b"no-store"), *SAFE]
    if status != 204:
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
