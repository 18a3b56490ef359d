"""The states of a deployment, the arrows between them, who owns each arrow, and how long each state may last.

    queued → placing → preparing → starting → ready → stopping → stopped
       any of these → failed(reason)          starting|ready → lost → the same again, or failed

Only reconcile (deployments/reconcile.py) moves a state; people move `Desired`:

    stopped, failed → queued      someone pressed Start, or the restart policy is due
    queued → placing              a worker took the row
    placing → preparing           a host, a runtime and devices were chosen and reserved
    placing → queued              no room now: waits with reasons per candidate
    preparing → starting          the host described the model's file and its engine took the settings, where either is
                                  to be waited for; then the job was ordered
    preparing → failed            the engine refused the settings when it was asked: nothing was started
    starting → ready              the engine answered the test question through the door
    queued … ready → stopping     desired is stopped, or a newer revision or a restart asks for another run
    stopping → stopped            every process of the run is gone (stop is proven)
    stopping → queued             the stop made room for a newer revision or a restart
    starting|ready → lost         no contact with the agent; the engine may be fine (a stop simply goes on waiting)
    lost → starting|ready         the agent is back
    any → failed                  with a reason; process exit always wins: where the process is already gone,
                                  stopping is skipped and the run ends as stopped or queued
    failed → stopped              a stop that had not been proven in time was proven later
"""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    PLACING = "placing"
    PREPARING = "preparing"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


class Desired(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


S = State
ARROWS: dict[State, frozenset[State]] = {
    S.QUEUED: frozenset({S.PLACING, S.STOPPED, S.FAILED}),
    S.PLACING: frozenset({S.QUEUED, S.PREPARING, S.STOPPED, S.FAILED}),
    S.PREPARING: frozenset({S.STARTING, S.STOPPING, S.STOPPED, S.QUEUED, S.FAILED}),
    S.STARTING: frozenset({S.READY, S.STOPPING, S.STOPPED, S.QUEUED, S.LOST, S.FAILED}),
    S.READY: frozenset({S.STOPPING, S.STOPPED, S.QUEUED, S.LOST, S.FAILED}),
    S.STOPPING: frozenset({S.STOPPED, S.QUEUED, S.FAILED}),
    S.LOST: frozenset({S.STARTING, S.READY, S.STOPPING, S.STOPPED, S.QUEUED, S.FAILED}),
    S.STOPPED: frozenset({S.QUEUED}),
    S.FAILED: frozenset({S.QUEUED, S.STOPPED}),
}

RESTING = frozenset({S.STOPPED, S.FAILED})  # nothing of it runs, nothing is due
LIVE = frozenset({S.PREPARING, S.STARTING, S.READY, S.STOPPING, S.LOST})  # a run exists


def may_move(old: State, new: State) -> bool:
    return new in ARROWS[old]


@dataclass(frozen=True)
class Deadline:
    """How long a state may last (seconds) and the reason code when it is over; None means that it may rest there."""

    seconds: float | None
    reason: str = ""


DEADLINES: dict[State, Deadline] = {
    S.QUEUED: Deadline(None, "queued.waiting"),  # shows what it waits for; a person decides how long that is worth
    S.PLACING: Deadline(60, "placing.deadline"),
    # The description of a file, then a minute for the engine's word (checking.LIMIT_S), and the looks between.
    S.PREPARING: Deadline(690, "preparing.deadline"),
    S.STARTING: Deadline(3600, "start.deadline"),
    S.READY: Deadline(None),
    S.STOPPING: Deadline(300, "stop.not_proven"),  # plus the grace; then says which processes are left
    S.LOST: Deadline(None, "lost.no_contact"),  # an unreachable agent is not a failure
    S.STOPPED: Deadline(None),
    S.FAILED: Deadline(None),
}
