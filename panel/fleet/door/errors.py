"""The door's own answers when it refuses or something broke: OpenAI's error shape, plus who failed and what to do.

    {"error": {"message", "type", "code", "param"}, "berth": {"who": "panel"|"engine", "hint", …}}

The header `X-Berth-Said-By` says who wrote the answer (`panel` here; `engine` on everything passed through);
`berth.who` says where it failed: the panel refused, or the engine broke. Sentences are English: programs read them
by `code`, and pages that show one translate the code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    502: "engine_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class DoorError(Exception):
    """One refusal. `facts` go into `berth`; `retry_after` (seconds) becomes a header; `close` ends the connection."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        *,
        param: str | None = None,
        who: str = "panel",
        facts: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        close: bool = False,
    ) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.param, self.who, self.facts = param, who, dict(facts or {})
        self.retry_after, self.extra, self.close = retry_after, tuple(headers), close

    def body(self) -> bytes:
        error = {
            "message": self.message,
            "type": TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        berth = {"who": self.who, "hint": self.hint, **self.facts}
        return json.dumps({"error": error, "berth": berth}, ensure_ascii=False).encode("utf-8", "replace")

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = list(self.extra)
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after))
        elif self.status in (502, 503):
            # OpenAI's clients ask again on every 5xx; where waiting does not help they are told not to.
            headers.append((b"x-should-retry", b"false"))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


class BodyError(DoorError):
    """400: the body cannot be read, so no route is known."""

    def __init__(self, code: str, message: str, hint: str = "", *, param: str | None = None) -> None:
        super().__init__(400, code, message, hint, param=param)


class EngineBroke(DoorError):
    """502 or 504: the engine did not answer as a server should. `started` once its answer had begun."""

    def __init__(self, code: str, message: str, hint: str = "", *, status: int = 502) -> None:
        super().__init__(status, code, message, hint, who="engine", retry_after=2)
