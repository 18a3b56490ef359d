"""The agents' line as an ASGI app, without a server around it."""

import asyncio
import json
from typing import Any

import pytest

from panel.fleet import line


async def answer_to(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the line sends to a call that says these and then nothing more."""
    sent: list[dict[str, Any]] = []
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else await asyncio.Event().wait()  # type: ignore[return-value]  # for ever

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/agent/v1/report", "headers": [(b"host", b"localhost")]}
    app = line.Line()
    try:
        await asyncio.wait_for(app(scope, receive, send), 10)
    finally:
        app.close()
    return sent


async def test_a_body_that_drips_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "READ_S", 0.01)
    start, body = await answer_to([{"type": "http.request", "body": b"{", "more_body": True}])
    assert (start["status"], json.loads(body["body"])["code"]) == (408, "link.slow")


async def test_nobody_is_answered_who_left() -> None:
    part = {"type": "http.request", "body": b"{", "more_body": True}
    assert await answer_to([part, {"type": "http.disconnect"}]) == []
