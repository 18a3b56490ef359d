"""What a part of the panel has run into just now, for pages to say: in the broker's memory, and gone by itself."""

import time

import redis

from panel.core import sse

LOGS = "berth:trouble:logs"  # why the folder of logs takes nothing
LASTS_S = 60  # after the last time; whoever has it meets it again sooner
KNOWN_S = 2.0  # how old an answer may be that a page shows

_known: dict[str, tuple[float, str]] = {}


def note(what: str, why: str) -> None:
    """Never raises: without a broker no page says so, the log does."""
    if sse.broker_away():
        return
    try:
        sse.broker().set(what, why[:300], ex=LASTS_S)
    except redis.RedisError:
        sse.broker_failed()


def noted(what: str) -> str:
    """Why, "" where there is no such trouble, or nobody knows."""
    at, found = _known.get(what, (float("-inf"), ""))
    if time.monotonic() - at < KNOWN_S:
        return found
    found = _asked(what)
    _known[what] = (time.monotonic(), found)
    return found


def _asked(what: str) -> str:
    if sse.broker_away():
        return ""
    try:
        raw = sse.broker().get(what)
    except redis.RedisError:
        sse.broker_failed()
        return ""
    return raw.decode(errors="replace") if isinstance(raw, bytes) else ""
