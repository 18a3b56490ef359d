"""/healthz: this process is alive. No login, no database, no broker, any Host name; a small ASGI app before Django."""

from typing import Any


async def healthz(scope: Any, receive: Any, send: Any) -> None:
    right = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    body = b"ok\n" if right else b""
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    if not right:
        headers.append((b"allow", b"GET, HEAD"))
    await send({"type": "http.response.start", "status": 200 if right else 405, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
