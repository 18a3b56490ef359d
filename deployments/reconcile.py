"""The loop that makes intent true: load · decide · act · apply, for one claimed deployment at a time.

Nothing is locked while acting; every write matches the claim token, so that a worker that lost its lease writes
nothing.
"""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, Q
from django.utils import timezone

from deployments import acts, applying, checking, describing, events, moves, placing
from deployments.models import Deployment, Run
from deployments.serving import liveness
from deployments.states import Desired, State
from deployments.steps import (
    Ask,
    Describe,
    EndRun,
    Fail,
    JobView,
    Mend,
    Move,
    Order,
    Place,
    Probe,
    ReadLog,
    RunView,
    Situation,
    Step,
    StopRun,
    Wait,
    decide,
)
from panel.core import claims, trace
from panel.core.claims import Claim

log = logging.getLogger(__name__)

MAX_STEPS = 50  # more in one go means that two steps undo each other
OWN_ROWS = 20  # rows that one sweep looks after itself while the broker is away
REST = timedelta(minutes=10)  # how soon a row that waits for news is looked at anyway
UNSEEN = timedelta(seconds=60)  # what has a deadline is looked at every few seconds: this long means that nobody could
CLOCK_NOISE = timedelta(seconds=2)  # between the clocks of several workers


def reconcile(pk: int) -> None:
    """Take the row's lease and do step after step until it waits. Returns at once when another worker has it."""
    with claims.hold(Deployment, pk) as claim:
        if claim is None:
            return
        row = None
        for _ in range(MAX_STEPS):
            row = row or load(pk)
            if row is None or row.claim_token != claim.token:  # gone, or another worker's by now
                return
            now = timezone.now()  # one look has one time: the clock can jump, or this worker sleep, at any line
            _count_what_was_seen(claim, row, now)
            step = decide(situation(row, now))
            if isinstance(step, Wait):
                if _rest(claim, row, step, now):
                    return
                row = None
                continue
            try:
                with trace.bound(row.trace):  # of the click that wanted it, whoever nudged
                    row = row if do(claim, row, step) else None
            except moves.LeaseLost:
                log.info("another worker has deployment %s now", pk)
                return
        log.error("deployment %s did not come to rest in %d steps; looking again later", pk, MAX_STEPS)
        claim.rows().update(due_at=timezone.now() + timedelta(seconds=30))


# Not wanted for a decision, and large: each round would fetch them again while a person waits for the start.
UNREAD = (
    "run__secrets", "run__command", "run__env", "run__error_block", "run__host__facts", "run__job__order",
    "run__measured", "run__golden", "run__findings", "run__diagnosis", "run__job__secrets", "run__job__result",
    "run__job__log__tail",
    "run__job__log__segments",
)  # fmt: skip


def load(pk: int) -> Deployment | None:
    """The row with what a decision rests on; acts fetch the rest. Each further table costs as much as the decision."""
    rows = Deployment.objects.select_related("revision", "run__job__log", "run__host").defer(*UNREAD)
    return rows.filter(pk=pk).first()


def situation(row: Deployment, now: datetime) -> Situation:
    """What decide() may know, read from one row and its newest run."""
    start_asked = row.restart_asked > row.restart_done
    run = row.run
    return Situation(
        state=State(row.state),
        desired=Desired(row.desired),
        start_asked=start_asked,
        deadline_in_s=_seconds_to(row.deadline_at, now),
        retry_in_s=_seconds_to(row.next_attempt_at, now),
        host_lost=bool(run and run.host and run.host.lost_at),
        run=_run_view(row, run, start_asked, now) if run is not None else None,
    )


def _count_what_was_seen(claim: Claim, row: Deployment, now: datetime) -> None:
    """Deadlines count the time in which someone looked: while the panel was away, or the clock was put forward, nothing
    could be seen of what they wait for. A clock that was put back takes them along.
    """
    gap = now - max(filter(None, (row.looked_at, row.state_since)))
    back = gap < -CLOCK_NOISE
    if not back and (gap <= UNSEEN or row.deadline_at is None):
        return
    row.looked_at, row.state_since = now, min(row.state_since, now)
    if row.deadline_at is not None:
        row.deadline_at += gap
    if back and row.next_attempt_at is not None:
        row.next_attempt_at += gap
    names = ("looked_at", "state_since", "deadline_at", "next_attempt_at")
    claim.rows().update(**{name: getattr(row, name) for name in names})
    log.info("deployment %s was not looked at for %.0f s by this clock", row.name, gap.total_seconds())


def _seconds_to(when: datetime | None, now: datetime) -> float | None:
    return (when - now).total_seconds() if when is not None else None


def _run_view(row: Deployment, run: Run, start_asked: bool, now: datetime) -> RunView:
    probe, due = acts.probe_state(run, now)
    preparing = row.state == State.PREPARING and run.job is None
    check, left = _check(run, now) if preparing else ("", 0.0)
    return RunView(
        ended=run.ended_at is not None,
        current=run.revision_id == row.revision_id and not start_asked,
        was_ready=run.ready_at is not None,
        failing=run.reason if run.ended_at is None else {},
        probe=probe,
        probe_due_s=due,
        hung_min=liveness.hung_minutes(run.live, row.state_since.timestamp(), now.timestamp()),
        job=_job_view(run, now) if run.job is not None else None,
        mend_due=row.state == State.FAILED and row.desired == Desired.RUNNING and applying.is_due(row),
        sidecar=_sidecar(run, now) if preparing else "",
        check=check,
        check_left_s=left,
    )


def _sidecar(run: Run, now: datetime) -> str:
    if not describing.wanted(run):
        return ""
    return "moving" if describing.is_moving(run, now) else "due"


def _check(run: Run, now: datetime) -> tuple[str, float]:
    if not checking.wanted(run):
        return "", 0.0
    left = checking.left_s(run, now)
    return ("asking" if left > 0 else "due"), left


def _job_view(run: Run, now: datetime) -> JobView:
    job = run.job
    status = job.status
    size = job.log.size
    return JobView(
        state=job.state,
        desired=job.desired,
        listening=bool(status.get("listening")),
        log_missing=max(0, int(status.get("log_size") or 0) - size),
        log_unread=max(0, size - run.log_parsed),
        ended_ago_s=(now - job.ended_at).total_seconds() if job.ended_at else 0.0,
        stop_asked=bool(status.get("stop_asked")),
        leftover=tuple(status.get("leftover_pids") or ()),
        restarted=acts.restarted(status) and not acts.restarts_too_often(run, now),
    )


def _rest(claim: Claim, row: Deployment, step: Wait, now: datetime) -> bool:
    """Let go of the row; False when someone nudged it meanwhile, then there is more to do.

    What was seen is noted by the clock of the look (`now`), since the row's deadline was counted by that one.
    """
    if step.reason is not None and row.reason != step.reason and claim.rows().update(reason=step.reason):
        events.announce(row.pk, state=row.state, name=row.name)
    pause = timedelta(seconds=step.seconds) if step.seconds is not None else REST
    return claim.release(wake=row.wake, due_at=now + pause, looked_at=now)


def do(claim: Claim, row: Deployment, step: Step) -> bool:
    """Carry out one step. A zero-row write means that someone was first; the next round sees the truth.

    True when `row` still says all that the database does. A wish of people that came meanwhile is then seen one step
    later, as it would be had it come a moment later; it also makes the release at the end fail (claims.py).
    """
    match step:
        case Move():
            return _move(claim, row, step)
        case Place():
            placing.place(claim, row)
        case Describe():
            acts.describe(claim, row)
        case Ask():
            acts.ask(claim, row)
        case Order():
            acts.order(claim, row)
        case ReadLog():
            acts.read_log(row)
        case Probe():
            acts.ask_later(row)
        case StopRun():
            acts.stop_run(claim, row, step.failing)
        case EndRun():
            acts.end_run(claim, row, step.to)
        case Fail():
            acts.fail(claim, row, step.reason)
        case Mend():
            applying.mend(row)
    return False


def _move(claim: Claim, row: Deployment, step: Move) -> bool:
    if not moves.move(claim, row, step.to, step.reason, **_counters(step)):
        return False
    if step.fresh or step.automatic:
        row.attempts, row.next_attempt_at = 0 if step.fresh else row.attempts + 1, None
    return True


def _counters(step: Move) -> dict[str, Any]:
    """What a step changes of the restart counter; `end_run` forgets old failures after a long good run."""
    if step.fresh:
        return {"attempts": 0, "next_attempt_at": None}
    if step.automatic:
        return {"attempts": F("attempts") + 1, "next_attempt_at": None}
    return {}


def clock_moved() -> None:
    """The clock was put forward or back: what was planned by it is looked at now."""
    now = timezone.now()
    Deployment.objects.filter(due_at__gt=now).update(due_at=now)


def sweep(limit: int = 200) -> int:
    """Send a task for every row that is due and that nobody holds. Returns how many.

    Where the broker is away some of them are looked after here, so that a stop works without it.
    """
    now = timezone.now()
    held = Q(claim_until__gt=now, claim_until__lte=now + 2 * timedelta(seconds=settings.BERTH_CLAIM_S))
    due = Deployment.objects.filter(due_at__lte=now).exclude(held).order_by("due_at")[:limit]
    sent, own = 0, 0
    for pk in list(due.values_list("pk", flat=True)):
        # Pushed a little into the future, so that a slow queue does not fill with the same row again and again.
        later = now + timedelta(seconds=settings.BERTH_TICK_S * 5)
        if not Deployment.objects.filter(pk=pk, due_at__lte=now).update(due_at=later):
            continue
        if not events.send(pk):
            reconcile(pk)
            own += 1
            if own >= OWN_ROWS:
                break
        sent += 1
    return sent
