"""Uvicorn's answer to one request, sent with less: head and first piece of the body in one write.

Uvicorn writes them apart, which are two calls of the system, and searches each name and value of a header for itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_FRAMING = {len(b"content-length"), len(b"transfer-encoding"), len(b"connection")}


class Cycle(RequestResponseCycle):
    """A RequestResponseCycle of uvicorn's becomes one by its `__class__`: there is no setting for it."""

    _head = b""  # not written yet

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.response_started and not self.response_complete:
            self._body(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError(f"Unexpected ASGI message {kind!r}.")

    def _start(self, status: int, headers: Any) -> None:
        lines = [STATUS_LINE[status]]
        says_close = False
        for header in [*self.default_headers, *headers]:
            lines.append(b"%b: %b\r\n" % tuple(header))
            if len(header[0]) in _FRAMING:
                says_close |= self._framing(header[0].lower(), header[1])
        if not self.keep_alive and not says_close:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\r") != len(lines) or head.count(b"\n") != len(lines) or b"\0" in head:
            raise RuntimeError("Invalid HTTP header.")
        self.response_started, self.waiting_for_100_continue, self._head = True, False, head
        # A body that is not there yet does not hold its head back.
        asyncio.get_running_loop().call_soon(self._flush)

    def _framing(self, name: bytes, value: bytes) -> bool:
        """Note what the header says of the body's length; True when it says that the connection ends."""
        if name == b"content-length" and self.chunked_encoding is None:
            self.expected_content_length, self.chunked_encoding = int(value), False
        elif name == b"transfer-encoding" and value.lower() == b"chunked":
            self.expected_content_length, self.chunked_encoding = 0, True
        elif name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]:
            self.keep_alive = False
            return True
        return False

    def _body(self, data: bytes, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            data, self.expected_content_length = b"", 0
        elif self.chunked_encoding:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if not more:
                data += b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(data)
            if self.expected_content_length < 0:
                raise RuntimeError("Response content longer than Content-Length")
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self.transport.write(data)
        if not more:
            self._end()

    def _end(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _flush(self) -> None:
        if self._head and not self.disconnected:
            self.transport.write(self._head)
            self._head = b""
