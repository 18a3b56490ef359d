"""Bodies are bounded while they come in, whoever sends them."""

import asyncio
from typing import Any

import pytest

from panel.core.bodies import AGENTS, PAGES, Bounded


def call(path: str, parts: list[bytes], *, length: int | None = None) -> tuple[Any, ...]:
    """(what the app read, how many parts were taken from the client, status that the client got)."""
    read: list[bytes] = []
    left = list(parts)
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            read.append(message.get("body", b""))
            if not message.get("more_body"):
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"ok"})
                return

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", b"%d" % length)] if length is not None else []
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(Bounded(app)(scope, receive, send))
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) == 1, "one answer"
    return sum(map(len, read)), len(parts) - len(left), starts[0]["status"]


def test_small_bodies_pass() -> None:
    assert call("/login", [b"a", b"b"]) == (2, 2, 200)
    assert call("/agent/v1/report", [b"x" * (1 << 20)] * 16, length=16 << 20)[2] == 200


@pytest.mark.parametrize(("path", "most"), [("/login", PAGES), ("/agent/v1/join", AGENTS)])
def test_a_body_without_an_end_is_cut_off(path: str, most: int) -> None:
    piece = b"x" * (1 << 20)
    read, taken, status = call(path, [piece] * 100)
    assert status == 413
    assert read <= most
    assert taken == (most >> 20) + 1, "no more of it was taken"


def test_an_announced_length_is_believed_before_anything_is_read() -> None:
    assert call("/login", [b"x"], length=100 << 20) == (0, 0, 413)
