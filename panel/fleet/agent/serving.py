"""Looks at each engine that listens, every few seconds: its /metrics and /health, on its own loopback port.

In a thread of its own, since an engine that hangs must keep neither the keeper nor the report waiting. Bounded in time
and size. The newest look is kept in memory and travels in the report.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from panel.fleet.agent import procs
from panel.fleet.agent.engine_metrics import MAX_TEXT, normalised
from panel.fleet.agent.forbidden import words
from panel.fleet.wire_serving import Serving

log = logging.getLogger(__name__)

ANSWER_S = 3.0  # for each of the two questions, over all
AT_ONCE = 4
# Where an engine has its key from. vLLM and SGLang show their metrics without one.
KEYS = tuple(words("VLLM_API_KEY LLAMA_API_KEY SGLANG_API_KEY"))


@dataclass(frozen=True)
class Place:
    """Where an engine listens. `pid` is its main process, which holds its key."""

    host: str
    port: int
    pid: int


class Late(Exception):
    """The answer is not whole in time."""


class TooLarge(Exception):
    """The answer is larger than anything an engine says of itself."""


def get(place: Place, path: str, *, key: str = "", seconds: float | None = None) -> tuple[int, bytes]:
    """(status, body) of one GET. Raises Late, TooLarge, OSError and http.client.HTTPException."""
    seconds = ANSWER_S if seconds is None else seconds
    end = time.monotonic() + seconds
    connection = http.client.HTTPConnection(place.host, place.port, timeout=seconds)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        body = bytearray()
        while piece := answer.read1(1 << 16):
            body += piece
            if len(body) > MAX_TEXT:
                raise TooLarge
            if time.monotonic() > end:
                raise Late
        return answer.status, bytes(body)
    except TimeoutError as exc:
        raise Late from exc
    finally:
        connection.close()


def look(place: Place) -> Serving:
    """What the engine says of itself now. Never raises."""
    at = time.time()
    problem, numbers = "", {}
    try:
        status, body = get(place, "/metrics")
        if status in (401, 403) and (key := _key(place.pid)):
            status, body = get(place, "/metrics", key=key)
        if status == 200:
            numbers = normalised(body.decode("utf-8", "replace"))
        problem = f"http_{status}" if status != 200 else "" if numbers else "empty"
    except (OSError, http.client.HTTPException, Late, TooLarge) as exc:
        problem = _code(exc)
    return Serving(at=at, problem=problem, health=_health(place), **numbers)


def _health(place: Place) -> int | None:
    try:
        return get(place, "/health")[0]
    except (OSError, http.client.HTTPException, Late, TooLarge):
        return None


def _code(exc: Exception) -> str:
    if isinstance(exc, Late):
        return "timeout"
    if isinstance(exc, TooLarge):
        return "too_large"
    return "refused" if isinstance(exc, ConnectionError) else "unreadable"


def _key(pid: int) -> str:
    """The engine's own key, from the environment that it was started with. It is kept nowhere."""
    return next((key for name in KEYS if (key := procs.env_of(pid, name))), "")


class Watcher:
    """Keeps the newest look at each engine. `places` gives those that listen now, by job id."""

    def __init__(self, places: Callable[[], dict[str, Place]], stop: threading.Event, every_s: float) -> None:
        self._places, self._stop, self._every_s = places, stop, max(1.0, every_s)
        self.latest: dict[str, Serving] = {}

    def run(self) -> None:
        """Until `stop`."""
        with ThreadPoolExecutor(AT_ONCE, "serving") as pool:
            while not self._stop.wait(self._every_s):
                try:
                    self.turn(pool)
                except Exception:  # one engine's oddity must not end the looks at the others
                    log.exception("the engines could not be looked at")

    def turn(self, pool: ThreadPoolExecutor) -> None:
        """Look at all of them once; what has ended is forgotten."""
        places = self._places()
        self.latest = dict(zip(places, pool.map(look, places.values()), strict=True))
