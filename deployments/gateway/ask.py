"""One question through the door, with one deadline over all of it: the answer probe and the box on the ready page."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from panel.core import http

MAX_ANSWER = 4 << 20  # bytes


@dataclass(frozen=True)
class Answer:
    """What came. `status` 0 means that nothing did; `text` then is a code: timeout, unreachable, too_large.

    `said_by` is who wrote the answer ("panel", "engine" or ""), `who` is where it failed by the panel's own word.
    """

    status: int
    text: str
    latency_ms: float
    said_by: str = ""
    json: Any = None

    @property
    def who(self) -> str:
        berth = self.json.get("berth") if isinstance(self.json, dict) and self.said_by == "panel" else None
        return str(berth.get("who", "panel")) if isinstance(berth, dict) else self.said_by


def ask(base_url: str, token: str, path: str, body: dict[str, Any], timeout_s: float) -> Answer:
    """POST `body` to `base_url` + `path` (which begins with /v1). For threads without a running event loop."""
    return asyncio.run(ask_async(base_url, token, path, body, timeout_s))


async def ask_async(base_url: str, token: str, path: str, body: dict[str, Any], timeout_s: float) -> Answer:
    began = time.perf_counter()
    httpx = http.library()
    try:
        async with asyncio.timeout(timeout_s):
            status, said_by, data = await _post(httpx, base_url, token, path, body)
    except (TimeoutError, httpx.TimeoutException):
        return Answer(0, "timeout", _ms(began))
    except httpx.HTTPError:
        return Answer(0, "unreachable", _ms(began))
    if len(data) > MAX_ANSWER:
        return Answer(0, "too_large", _ms(began), said_by)
    text = data.decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    return Answer(status, text, _ms(began), said_by, parsed)


async def _post(httpx: Any, base_url: str, token: str, path: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
    headers = {"Authorization": f"Bearer {token}"}
    data = bytearray()
    # The deadline is the caller's; a proxy of the environment has no business between the panel and its own door.
    async with (
        httpx.AsyncClient(base_url=base_url, timeout=None, trust_env=False) as client,
        client.stream("POST", path, json=body, headers=headers) as answer,
    ):
        async for piece in answer.aiter_bytes():
            data += piece
            if len(data) > MAX_ANSWER:
                break
    return answer.status_code, answer.headers.get("x-berth-said-by", ""), bytes(data)


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1000
