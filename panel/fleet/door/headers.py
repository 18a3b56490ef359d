"""Which headers pass, in both directions, and the head that an engine gets.

Lists of what passes, not of what does not: an unknown header can carry a cookie, a key or an order to the engine.
"""

from __future__ import annotations

import re
from random import getrandbits

from panel.fleet.door.errors import DoorError
from panel.fleet.door.snapshot import Route
from panel.fleet.door.upstream import Head, Header

# Beside Content-Type and X-Request-Id, which the door reads itself.
REQUEST_HEADERS = frozenset({b"accept", b"user-agent", b"traceparent", b"tracestate"})
RESPONSE_HEADERS = frozenset(
    {
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"content-language",
        b"cache-control",
        b"retry-after",
        b"x-request-id",
        b"x-should-retry",
        b"openai-model",
        b"openai-processing-ms",
        b"openai-version",
    }
)
ENGINE_KEY = "x-berth-engine-key"  # to another host's door, by TLS: the key that the engine there wants
RUN = "/run/"
# The answer shares the panel's origin: a browser must never take it for a page.
SAFE = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"default-src 'none'; sandbox"))
_PASSED = ((b"x-berth-said-by", b"engine"), *SAFE)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Asked:
    """What counts of a request's headers, taken in one walk over them.

    `request_id` is the client's own when it is a plain word, else a new one; the engine and the client get it.
    """

    __slots__ = ("_encoding", "_kind", "_length", "authorization", "passed", "request_id")

    def __init__(self, headers: list[Header]) -> None:
        self.authorization: list[bytes] = []
        self.passed: list[Header] = []
        self.request_id = self._kind = self._length = self._encoding = b""
        for header in headers:
            name, value = header
            if name in REQUEST_HEADERS:
                self.passed.append(header)
            elif name == b"authorization":
                self.authorization.append(value)
            elif name == b"content-type":
                self._kind = value
            elif name == b"content-length":
                self._length = value
            elif name == b"content-encoding":
                self._encoding = value
            elif name == b"x-request-id" and not self.request_id and _REQUEST_ID.fullmatch(value):
                self.request_id = value
        if not self.request_id:
            self.request_id = b"%016x" % getrandbits(64)

    def length(self) -> int | None:
        """The declared length of the body, which must be JSON. Raises DoorError 415."""
        kind = self._kind
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            raise _media_type()
        if self._encoding.strip().lower() not in (b"", b"identity"):
            raise _media_type()
        return int(self._length) if self._length else None

    def head(self, path: str, route: Route, length: int) -> bytes:
        """The request line and headers for the engine: our path, its key, and the few headers that pass.

        To another host's door: the path names the run, our key for the door goes first, the engine's beside it.
        """
        via, key = route.via, route.key
        if via is None:
            target, host = path, f"{route.host}:{route.port}"
            keys = f"authorization: Bearer {key}\r\n" if key else ""
        else:
            target, host = f"{RUN}{via.job_id}{path}", "door"
            keys = f"authorization: Bearer {via.key}\r\n" + (f"{ENGINE_KEY}: {key}\r\n" if key else "")
        ours = f"POST {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n{keys}".encode("latin-1")
        passed = [*self.passed, (b"content-type", self._kind), (b"x-request-id", self.request_id)]
        theirs = b"".join([b"%b: %b\r\n" % header for header in passed])
        if theirs.count(b"\r") != len(passed) or theirs.count(b"\n") != len(passed) or b"\0" in theirs:
            theirs = b"".join([b"%b: %b\r\n" % header for header in passed if not _BREAKS.search(header[1])])
        return b"%b%b\r\n" % (ours, theirs)


_BREAKS = re.compile(rb"[\r\n\0]")


def answered(answer: Head, request_id: bytes) -> tuple[list[Header], bool]:
    """The headers for the client, and whether the answer is a stream of events."""
    events = False
    headers = []
    for header in answer.headers:
        name, value = header
        if name in RESPONSE_HEADERS:
            headers.append(header)
            if name == b"content-type":
                events = value.lower().startswith(b"text/event-stream")
            elif name == b"x-request-id":
                request_id = b""
    headers += _PASSED
    if request_id:
        headers.append((b"x-request-id", request_id))
    if events:
        headers.append((b"x-accel-buffering", b"no"))  # nginx in front must not collect the stream
    return headers, events


def _media_type() -> DoorError:
    return DoorError(
        415,
        "request.media_type",
        "The body must be plain JSON.",
        "Send `Content-Type: application/json`, not compressed.",
    )
