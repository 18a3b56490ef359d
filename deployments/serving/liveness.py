"""Whether an engine that serves still answers: when to ask it, what an answer proves, when it counts as hung. Pure.

`Run.live` holds {asked_at, done_at, ok_at, failing_since, misses, last, hung_at}, Unix seconds. An engine that is
merely busy is never taken for one that hangs: as long as anything in it is counted on, it lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from panel.fleet.wire_serving import Point

RETRY_S = 15.0  # between two questions while it gives no answer
LOST_S = 30.0  # beyond its time limit a question is nobody's any more
TRIES = 3  # questions without an answer, before a run counts as hung
TRIES_BLIND = 5  # where no number of the engine's own bears it out
GROWS = ("prompt_tokens", "generation_tokens", "steps", "done", "http_ok")  # only while something is worked on
MUTE = ("timeout", "refused", "unreadable")  # problems of an engine that tells its numbers at other times
CPU_FACTOR = 4  # one round of calculation may take minutes there
LOOK_S = 20.0  # by which the newest look at an engine may be older than the end of a question

Live = Mapping[str, Any]
Answered = Literal["ok", "silent", "unknown"]


@dataclass(frozen=True)
class Rhythm:
    """`every_s` between questions where nobody else asks, 0: never; `timeout_s` for each; `hung_s` without an answer,
    from which on the run counts as failed.
    """

    every_s: float
    timeout_s: float
    hung_s: float

    @property
    def shown_s(self) -> float:
        """From when on people are told."""
        return self.hung_s / 3


def sign_of_life(points: Sequence[Point], since: float) -> float | None:
    """When it was last seen to have answered or calculated, after `since`; None: not seen."""
    found = None
    for before, now in pairwise(points):
        # A number that is not told for a while must not look like one that began at zero.
        pairs = ((getattr(before, name), getattr(now, name)) for name in GROWS)
        grew = any(a is not None and b is not None and b > a for a, b in pairs)
        if grew and before.at >= since:
            found = now.at
    return found


def of_this(live: Live, since: float, now: float) -> dict[str, Any]:
    """What was noted since it is ready (again); what is of before, or of a clock that was put back, says nothing."""
    if any(live.get(name) and live[name] > now + RETRY_S for name in ("asked_at", "done_at", "ok_at")):
        return {}
    asked = live.get("asked_at") or 0.0
    return dict(live) if asked >= since else {}


def wants_question(points: Sequence[Point], live: Live, ready_at: float, rhythm: Rhythm, now: float) -> bool:
    """Whether it is time to ask: nothing proved lately that it answers, and nobody asks now."""
    if rhythm.every_s <= 0:
        return False
    asked, done = live.get("asked_at") or 0.0, live.get("done_at") or 0.0
    if asked > done and now - asked < rhythm.timeout_s + LOST_S:
        return False
    pause = min(RETRY_S, rhythm.every_s) if live.get("misses") else rhythm.every_s
    proved = max(ready_at, live.get("ok_at") or 0.0, sign_of_life(points, now - pause) or 0.0)
    return now - proved >= pause and now - done >= pause


def after(live: Live, came: Answered, last: Mapping[str, Any], now: float) -> dict[str, Any]:
    """What is noted after a question."""
    kept = {"asked_at": live.get("asked_at"), "done_at": now}
    if came == "ok":
        return {**kept, "ok_at": now}
    kept |= {name: live[name] for name in ("ok_at", "failing_since", "misses", "last") if live.get(name)}
    if came == "unknown":
        return kept
    misses = int(live.get("misses") or 0) + 1
    return {**kept, "misses": misses, "failing_since": live.get("failing_since") or live.get("asked_at"), "last": last}


def recovered(points: Sequence[Point], live: Live) -> bool:
    """Whether it was seen at work after a question that it gave no answer to: it was busy, not dead."""
    since = live.get("failing_since")
    return since is not None and sign_of_life(points, since) is not None


def borne_out(points: Sequence[Point], live: Live, *, near: bool) -> bool:
    """Whether the silence is the engine's: a question that got lost on the way is no fault of it.

    `near`: it is on this machine's loopback, where nothing gets lost.
    """
    tries = int(live.get("misses") or 0)
    done = live.get("done_at") or 0.0
    newest = points[-1] if points else None
    if newest is None or (newest.life is None and newest.problem not in MUTE):  # no numbers, or an older agent
        return tries >= (TRIES if near else TRIES_BLIND)
    if newest.at < done - LOOK_S:  # nothing newer was seen: it may be at work again
        return False
    stuck = newest.problem in MUTE or (newest.health or 0) >= 500 or (newest.running or 0) + (newest.waiting or 0) > 0
    return tries >= (TRIES if stuck else TRIES_BLIND) and (stuck or near)


def hung(points: Sequence[Point], live: Live, rhythm: Rhythm, now: float, *, near: bool) -> bool:
    """Whether it has given no answer for so long that it counts as failed."""
    since = live.get("failing_since")
    if since is None or rhythm.every_s <= 0 or now - since < rhythm.hung_s or recovered(points, live):
        return False
    return borne_out(points, live, near=near)


def hung_minutes(live: Live, since: float, now: float) -> int | None:
    """For how many minutes it gave no answer, where that was found to count as failed; `since`: when it got ready."""
    known = of_this(live, since, now)
    return max(1, round((known["hung_at"] - known["failing_since"]) / 60)) if known.get("hung_at") else None
