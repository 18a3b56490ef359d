"""What is said of another host: that it cannot be reached, and what its door answered instead of an engine."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

from panel.fleet.door.errors import DoorError, EngineBroke
from panel.fleet.door.snapshot import Via
from panel.fleet.door.upstream import BadAnswer, Head

ANSWER = 64 << 10  # bytes of a door's own answer
_CODE = re.compile(r"[a-z_]+(\.[a-z0-9_]+)+")
RETRY_S = 5


def host_away(via: Via) -> DoorError:
    """503: nobody answers at the host's door. It says since when the panel has heard nothing, where it has not."""
    facts: dict[str, Any] = {"host": via.host}
    text = f"The host {via.host!r} of this model cannot be reached."
    if via.silent and via.heard_at is not None:
        since = datetime.fromtimestamp(via.heard_at, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        facts["last_heard_at"] = since
        text += f" It was last heard of at {since}."
    return DoorError(
        503,
        "door.host_away",
        text,
        "The engine there may be well; the page of the host says what to do. Ask again later.",
        who="host",
        facts=facts,
        retry_after=RETRY_S,
    )


def wrong_certificate(via: Via) -> DoorError:
    return DoorError(
        502,
        "door.certificate",
        f"Whoever answers for the host {via.host!r} has another certificate than its door.",
        "Nothing was sent there. Restart the agent on that host; if it stays, somebody stands in between.",
        who="host",
        facts={"host": via.host},
    )


def broke_off(via: Via) -> EngineBroke:
    """The connection to the host's door ended in the middle: its engine ended, or the way there."""
    broke = EngineBroke(
        "door.broke_off",
        f"The answer from the host {via.host!r} broke off: its engine or the connection to it ended.",
        "The page of the deployment says what happened.",
    )
    broke.who = "host"  # it is not known to be the engine's fault
    broke.facts["host"] = via.host
    return broke


async def refused(more: Callable[[], Awaitable[bytes]], answer: Head, via: Via) -> DoorError:
    """What the host's door said itself, as the panel's word. Raises BadAnswer when it makes no sense."""
    data = bytearray()
    while piece := await more():
        data += piece
        if len(data) > ANSWER:
            raise BadAnswer("a door's own answer too large")
    try:
        error, berth = (json.loads(data)[part] for part in ("error", "berth"))
        code, message, hint = str(error["code"]), str(error["message"]), str(berth.get("hint", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise BadAnswer("a door's own answer makes no sense") from exc
    if not _CODE.fullmatch(code) or answer.status < 400:
        raise BadAnswer("a door's own answer makes no sense")
    facts: dict[str, Any] = {"host": via.host}
    if code.startswith("engine."):
        broke = EngineBroke(code, message, hint, status=504 if answer.status == 504 else 502)
        broke.facts |= facts
        return broke
    if code.startswith("token."):
        return DoorError(
            503,
            "door.key_refused",
            f"The door of the host {via.host!r} does not take the panel's key yet.",
            "The host gets it with its next call.",
            who="host",
            facts=facts,
            retry_after=2,
        )
    status = answer.status if answer.status in (408, 413, 415, 502, 503, 504) else 502
    status = 503 if answer.status == 404 else status  # an engine that has just ended, or has just begun
    retry = 2 if status in (502, 503) else None
    return DoorError(status, code, message, hint, who="host", facts=facts, retry_after=retry)
