"""What to do next with one deployment, decided from what is true now. Pure: a Situation in, a Step out.

reconcile.py loads the situation, does the step and asks again; the arrows are drawn in states.py. The way up:

    Place ─── Describe ─── Ask ─────── Order ── ReadLog … Probe ── ready
      │       a lone GGUF  settings that nobody has
      │                    shown to their engine yet
    Fail: no place         a sure refusal ends the start
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deployments.spec import Restart
from deployments.states import DEADLINES, LIVE, RESTING, Desired, State

LOG_WAIT_S = 5.0  # how long an end waits for the rest of its log
HOST_RESTARTED = "host_restarted"  # the host's word for what a restart of its machine ended
NO_CONTACT = {"code": "lost.no_contact", "params": {}}
DESCRIBING = {"code": "preparing.sidecar", "params": {}}
ASKING = {"code": "preparing.check", "params": {}}


@dataclass(frozen=True)
class JobView:
    """What the host last said of the run's process."""

    state: str  # ordered, starting, running, stopping, ended, refused
    desired: str
    listening: bool = False
    log_missing: int = 0  # bytes written on the host and not here yet
    log_unread: int = 0  # bytes here that the phase parser has not seen
    ended_ago_s: float = 0.0
    stop_asked: bool = False
    leftover: tuple[int, ...] = ()
    restarted: bool = False  # it ended because its machine started again, and not too often

    @property
    def over(self) -> bool:
        return self.state in ("ended", "refused")


@dataclass(frozen=True)
class RunView:
    ended: bool
    current: bool  # of the revision and the start that people want now
    was_ready: bool
    failing: dict[str, Any] = field(default_factory=dict)  # a reason for which we end it ourselves
    probe: str = "idle"  # idle, asked, answered, failed
    probe_due_s: float = 0.0  # seconds until the question may be asked (again)
    job: JobView | None = None
    hung_min: int | None = None  # for how long it has given no answer, when that counts as failed
    mend_due: bool = False  # a fix that Berth may apply by itself, once
    check: str = ""  # the engine's word on the settings: "" there or not wanted, asking, due to be looked at
    check_left_s: float = 0.0  # seconds that it is waited for still
    sidecar: str = ""  # the description of a GGUF file: "" there or not needed, moving on the host, due to be looked at


@dataclass(frozen=True)
class Situation:
    """All that a decision rests on. Times are seconds from now (negative: in the past)."""

    state: State
    desired: Desired
    start_asked: bool  # a person pressed start, restart or saved an edit since the newest run began
    deadline_in_s: float | None
    retry_in_s: float | None  # an automatic restart is planned
    host_lost: bool
    run: RunView | None


# --- steps: what reconcile does ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """Nothing to do; look again in `seconds` (None: when something changes)."""

    seconds: float | None = None
    reason: dict[str, Any] | None = None  # shown while waiting; None leaves what is there


@dataclass(frozen=True)
class Move:
    """Take an arrow that needs no other act."""

    to: State
    reason: dict[str, Any] = field(default_factory=dict)
    automatic: bool = False  # counts as an automatic restart
    fresh: bool = False  # a person's start: the restart counter begins anew


@dataclass(frozen=True)
class Place:
    """Choose host, runtime and devices, reserve, make the run."""


@dataclass(frozen=True)
class Describe:
    """Have the host describe the model's file for the engine, or take what became of that."""


@dataclass(frozen=True)
class Ask:
    """Have the host ask its engine what it thinks of the settings, or take what it said."""


@dataclass(frozen=True)
class Order:
    """Order the job on the host."""


@dataclass(frozen=True)
class ReadLog:
    """Let the phase parser read on."""


@dataclass(frozen=True)
class Probe:
    """Ask the test question through the door."""


@dataclass(frozen=True)
class StopRun:
    """Ask the host to end the run. With `failing` the end will count as a failure for that reason."""

    failing: dict[str, Any] | None = None


@dataclass(frozen=True)
class EndRun:
    """The run is over: write its end, give back its memory, move to `to`."""

    to: State


@dataclass(frozen=True)
class Fail:
    """The start is over before there was a process: write its end, in a run of its own where it has none yet."""

    reason: dict[str, Any]


@dataclass(frozen=True)
class Mend:
    """Apply the first fix of the failure by itself, or note that none is safe."""


Step = Wait | Move | Place | Describe | Ask | Order | ReadLog | Probe | StopRun | EndRun | Fail | Mend


def decide(s: Situation) -> Step:
    """The next step. Process exit wins over everything else, then what people want, then the state's own way."""
    if s.run is not None and not s.run.ended and s.run.job is not None and s.run.job.over:
        return _process_over(s, s.run, s.run.job)
    if s.state in RESTING:
        return _resting(s)
    if s.desired == Desired.STOPPED or (s.run is not None and not s.run.ended and not s.run.current):
        stopping = _towards_stop(s)
        if stopping is not None:
            return stopping
    return _WAYS[s.state](s)


def _process_over(s: Situation, run: RunView, job: JobView) -> Step:
    if job.log_missing and job.ended_ago_s < LOG_WAIT_S and not s.host_lost:
        return Wait(0.5)
    if job.log_unread:
        return ReadLog()
    if job.restarted and s.state in LIVE and s.desired == Desired.RUNNING and job.desired != "stop" and not run.failing:
        return EndRun(State.QUEUED)  # no failure of its own: what should run comes back, whatever the restart policy
    if run.failing or not (job.desired == "stop" or job.stop_asked) or job.state == "refused":
        return EndRun(State.STOPPED if s.desired == Desired.STOPPED and not run.failing else State.FAILED)
    return EndRun(State.STOPPED if s.desired == Desired.STOPPED else State.QUEUED)


def _resting(s: Situation) -> Step:
    if s.run is not None and not s.run.ended and s.run.job is None:  # it failed before anything was ordered
        return EndRun(s.state)
    if s.desired == Desired.STOPPED:
        return Wait()
    unproven = s.run is not None and not s.run.ended
    if unproven:  # an earlier run may still hold its memory: starting beside it would break both
        return Wait(5.0)
    if s.start_asked or s.state == State.STOPPED:
        return Move(State.QUEUED, fresh=True)
    if s.run is not None and s.run.mend_due:  # before the same is tried once more
        return Mend()
    if s.retry_in_s is None:
        return Wait()
    return Move(State.QUEUED, automatic=True) if s.retry_in_s <= 0 else Wait(s.retry_in_s)


def _towards_stop(s: Situation) -> Step | None:
    if s.state in (State.QUEUED, State.PLACING):
        return Move(State.STOPPED)
    if s.state in LIVE and s.state != State.STOPPING:
        if s.run is None or s.run.job is None:  # nothing was ordered: there is nothing to end on the host
            return EndRun(State.STOPPED if s.desired == Desired.STOPPED else State.QUEUED)
        return StopRun()
    return None


def _queued(s: Situation) -> Step:
    return Move(State.PLACING) if s.retry_in_s is None or s.retry_in_s <= 0 else Wait(s.retry_in_s)


def _placing(s: Situation) -> Step:
    return Fail(_over(s.state)) if _overdue(s) else Place()


def _preparing(s: Situation) -> Step:
    if _overdue(s):
        return Fail(_over(s.state))
    if s.run is not None and s.run.sidecar == "moving":
        return Wait(_sooner(s.deadline_in_s, 5.0), reason=DESCRIBING)
    if s.run is not None and s.run.sidecar:
        return Describe()
    if s.run is not None and s.run.check == "asking" and not s.host_lost:
        return Wait(_sooner(s.deadline_in_s, min(5.0, s.run.check_left_s)), reason=ASKING)
    return Ask() if s.run is not None and s.run.check else Order()


def _overdue(s: Situation) -> bool:
    return s.deadline_in_s is not None and s.deadline_in_s <= 0


def _over(state: State) -> dict[str, Any]:
    return {"code": DEADLINES[state].reason, "params": {}}


def _starting(s: Situation) -> Step:
    run, job = s.run, s.run.job if s.run else None
    if run is None or job is None:
        return Fail({"code": "start.no_job", "params": {}})
    if job.log_unread:
        return ReadLog()
    if run.probe == "answered":
        return Move(State.READY)
    if run.probe == "failed":
        return StopRun(failing={"code": "answer.failed", "params": {}})
    if _overdue(s):
        return StopRun(failing=_over(s.state))
    if s.host_lost:
        return Move(State.LOST, NO_CONTACT)
    if job.listening and run.probe == "idle":
        return Probe() if run.probe_due_s <= 0 else Wait(run.probe_due_s)
    # While it is asked: until whoever asks counts as gone. What is heard meanwhile wakes us sooner.
    return Wait(_sooner(s.deadline_in_s, min(5.0, run.probe_due_s or 5.0)))


def _ready(s: Situation) -> Step:
    if s.run is not None and s.run.job is not None and s.run.job.log_unread:
        return ReadLog()
    if s.host_lost:  # of an engine that nobody can reach nobody knows whether it hangs
        return Move(State.LOST, NO_CONTACT)
    if s.run is not None and s.run.job is not None and s.run.hung_min is not None:
        return StopRun(failing={"code": "serve.hung", "params": {"minutes": s.run.hung_min}})
    return Wait(30.0)


def _lost(s: Situation) -> Step:
    if s.host_lost:
        return Wait(30.0)
    return Move(State.READY if s.run is not None and s.run.was_ready else State.STARTING)


def _stopping(s: Situation) -> Step:
    job = s.run.job if s.run is not None else None
    if s.run is None or s.run.ended or job is None:
        return EndRun(State.STOPPED if s.desired == Desired.STOPPED else State.QUEUED)
    if job.desired != "stop":
        return StopRun(failing=s.run.failing or None)
    if s.host_lost:
        return Wait(30.0, reason=NO_CONTACT)
    if _overdue(s):
        return Move(State.FAILED, {**_over(s.state), "params": {"pids": list(job.leftover)}})
    return Wait(_sooner(s.deadline_in_s, 5.0))


def _sooner(deadline: float | None, seconds: float) -> float:
    return seconds if deadline is None else max(0.1, min(seconds, deadline))


_WAYS = {
    State.QUEUED: _queued,
    State.PLACING: _placing,
    State.PREPARING: _preparing,
    State.STARTING: _starting,
    State.READY: _ready,
    State.LOST: _lost,
    State.STOPPING: _stopping,
}


def deadline_of(state: State, *, start_deadline_s: float, grace_s: float) -> float | None:
    """Seconds that a state may last for this spec, or None where it may rest."""
    if state == State.STARTING:
        return start_deadline_s
    limit = DEADLINES[state].seconds
    return limit + grace_s if limit is not None and state == State.STOPPING else limit


def retry_delay(restart: Restart, attempts: int, *, first_s: float, longest_s: float) -> float | None:
    """Pause before the next automatic restart after `attempts` earlier ones, or None to give up."""
    if restart.policy == "never" or attempts >= restart.max_attempts:
        return None
    return float(min(longest_s, first_s * 2**attempts))
