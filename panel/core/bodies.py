"""A bound on request bodies, before anything else reads them: Django stores a whole body aside before it asks who sent
it, so a stranger could fill the disk. The door bounds its own.
"""

import json
from typing import Any

PAGES = 4 << 20  # bytes; a form with everything in it is far smaller
AGENTS = 17 << 20  # the agents' line says its own, smaller bound in its own words
_REFUSAL = {
    "code": "request.too_large",
    "message": "This request is larger than anything that the panel takes.",
    "hint": "",
}


class Bounded:
    """An ASGI app behind the bound. What is too long gets 413, and the app sees a client that left."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = AGENTS if scope["path"].startswith("/agent/") else PAGES
        if _announced(scope) > most:
            await _refuse(send)
            return
        taken = 0
        refused = False

        async def counted() -> Any:
            nonlocal taken, refused
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most and message["type"] == "http.request":
                refused = True
                await _refuse(send)
                return {"type": "http.disconnect"}
            return message

        async def unless_refused(message: Any) -> None:
            if not refused:
                await send(message)

        await self.app(scope, counted, unless_refused)


def _announced(scope: Any) -> int:
    """The length that the header says; a chunked body says none."""
    word = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(word) if word.isdigit() and len(word) < 20 else 0


async def _refuse(send: Any) -> None:
    body = json.dumps(_REFUSAL).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
