"""The decisions of the loop: tables for each state, and properties that hold for every situation."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.spec import Restart
from deployments.states import ARROWS, LIVE, RESTING, Desired, State, may_move
from deployments.steps import (
    ASKING,
    NO_CONTACT,
    Ask,
    Describe,
    EndRun,
    Fail,
    JobView,
    Move,
    Order,
    Place,
    Probe,
    ReadLog,
    RunView,
    Situation,
    StopRun,
    Wait,
    decide,
    retry_delay,
)

UP, DOWN = Desired.RUNNING, Desired.STOPPED
RUNNING = JobView(state="running", desired="run")
OVER = JobView(state="ended", desired="run")
STOPPED = JobView(state="ended", desired="stop", stop_asked=True)


def at(state: State, desired: Desired = UP, run: RunView | None = None, **changes: Any) -> Situation:
    base = Situation(state, desired, start_asked=False, deadline_in_s=100.0, retry_in_s=None, host_lost=False, run=run)
    return replace(base, **changes)


def run(job: JobView | None = RUNNING, **changes: Any) -> RunView:
    return replace(RunView(ended=False, current=True, was_ready=False, job=job), **changes)


BOOTED = replace(OVER, restarted=True)
FAILING = {"code": "start.deadline", "params": {}}
LISTENS = replace(RUNNING, listening=True)

TABLE = [
    # the way up
    ("stopped and wanted", at(State.STOPPED), Move(State.QUEUED, fresh=True)),
    ("queued", at(State.QUEUED), Move(State.PLACING)),
    ("queued with a pause", at(State.QUEUED, retry_in_s=9.0), Wait(9.0)),
    ("placing", at(State.PLACING), Place()),
    ("preparing", at(State.PREPARING, run=run(job=None)), Order()),
    ("nobody has asked the engine", at(State.PREPARING, run=run(job=None, check="due")), Ask()),
    ("the engine is asked", at(State.PREPARING, run=run(job=None, check="asking", check_left_s=40.0)), Wait(5.0, reason=ASKING)),
    ("the engine is asked, not much longer", at(State.PREPARING, run=run(job=None, check="asking", check_left_s=2.0)), Wait(2.0, reason=ASKING)),
    ("asked, no contact", at(State.PREPARING, run=run(job=None, check="asking", check_left_s=40.0), host_lost=True), Ask()),
    ("the description comes first", at(State.PREPARING, run=run(job=None, check="due", sidecar="due")), Describe()),
    ("asked, and stopped", at(State.PREPARING, DOWN, run(job=None, check="asking", check_left_s=40.0)), EndRun(State.STOPPED)),
    ("asked, and edited", at(State.PREPARING, run=run(job=None, check="asking", check_left_s=40.0, current=False)), EndRun(State.QUEUED)),
    ("asked for too long", at(State.PREPARING, run=run(job=None, check="asking", check_left_s=40.0), deadline_in_s=-1.0), Fail({"code": "preparing.deadline", "params": {}})),
    ("placing too long", at(State.PLACING, deadline_in_s=-1.0), Fail({"code": "placing.deadline", "params": {}})),
    ("preparing too long", at(State.PREPARING, run=run(job=None), deadline_in_s=-1.0), Fail({"code": "preparing.deadline", "params": {}})),
    ("failed before the order", at(State.FAILED, run=run(job=None)), EndRun(State.FAILED)),
    ("the machine started again", at(State.READY, run=run(BOOTED, was_ready=True)), EndRun(State.QUEUED)),
    ("the machine started again meanwhile", at(State.LOST, run=run(BOOTED)), EndRun(State.QUEUED)),
    ("the machine started again, not wanted any more", at(State.STOPPING, DOWN, run=run(replace(BOOTED, desired="stop"))), EndRun(State.STOPPED)),
    ("the machine started again after it had failed", at(State.STOPPING, run=run(BOOTED, failing=FAILING)), EndRun(State.FAILED)),
    ("the machine started again under a failed one", at(State.FAILED, run=run(BOOTED)), EndRun(State.FAILED)),
    ("the order was lost", at(State.STARTING, run=run(job=None)), Fail({"code": "start.no_job", "params": {}})),
    ("starting", at(State.STARTING, run=run()), Wait(5.0)),
    ("starting near its deadline", at(State.STARTING, run=run(), deadline_in_s=2.0), Wait(2.0)),
    ("log to read", at(State.STARTING, run=run(replace(RUNNING, log_unread=9))), ReadLog()),
    ("listens: ask", at(State.STARTING, run=run(LISTENS)), Probe()),
    ("asked: wait", at(State.STARTING, run=run(LISTENS, probe="asked")), Wait(5.0)),
    ("wrong answer: pause", at(State.STARTING, run=run(LISTENS, probe_due_s=1.5)), Wait(1.5)),
    ("answered", at(State.STARTING, run=run(LISTENS, probe="answered")), Move(State.READY)),
    ("never answered", at(State.STARTING, run=run(LISTENS, probe="failed")), StopRun({"code": "answer.failed", "params": {}})),
    ("deadline", at(State.STARTING, run=run(), deadline_in_s=-1.0), StopRun(FAILING)),
    ("ready", at(State.READY, run=run()), Wait(30.0)),
    ("ready and hung", at(State.READY, run=run(hung_min=3)), StopRun({"code": "serve.hung", "params": {"minutes": 3}})),
    ("hung on a lost host", at(State.READY, run=run(hung_min=3), host_lost=True), Move(State.LOST, NO_CONTACT)),
    ("hung and not wanted", at(State.READY, DOWN, run(hung_min=3)), StopRun()),
    # the way down
    ("stop while queued", at(State.QUEUED, DOWN), Move(State.STOPPED)),
    ("stop while placing", at(State.PLACING, DOWN), Move(State.STOPPED)),
    ("stop before the order", at(State.PREPARING, DOWN, run(job=None)), EndRun(State.STOPPED)),
    ("stop while starting", at(State.STARTING, DOWN, run()), StopRun()),
    ("stop while ready", at(State.READY, DOWN, run()), StopRun()),
    ("stop while lost", at(State.LOST, DOWN, run(), host_lost=True), StopRun()),
    ("stopping", at(State.STOPPING, DOWN, run(replace(RUNNING, desired="stop"))), Wait(5.0)),
    ("stop not yet ordered", at(State.STOPPING, DOWN, run()), StopRun()),
    ("proven", at(State.STOPPING, DOWN, run(STOPPED)), EndRun(State.STOPPED)),
    ("not proven in time", at(State.STOPPING, DOWN, run(replace(RUNNING, desired="stop", leftover=(7,))), deadline_in_s=-1.0),
     Move(State.FAILED, {"code": "stop.not_proven", "params": {"pids": [7]}})),
    ("proven late", at(State.FAILED, DOWN, run(STOPPED)), EndRun(State.STOPPED)),
    # another revision, a restart
    ("edited while ready", at(State.READY, run=run(current=False)), StopRun()),
    ("edited: the old one is gone", at(State.STOPPING, run=run(STOPPED, current=False)), EndRun(State.QUEUED)),
    ("restart asked while starting", at(State.STARTING, run=run(current=False), start_asked=True), StopRun()),
    ("start pressed while stopping", at(State.STOPPING, UP, run(replace(RUNNING, desired="stop"))), Wait(5.0)),
    ("start pressed, now stopped", at(State.STOPPING, UP, run(STOPPED)), EndRun(State.QUEUED)),
    # process exit wins
    ("died while starting", at(State.STARTING, run=run(OVER)), EndRun(State.FAILED)),
    ("died when ready", at(State.READY, run=run(OVER, was_ready=True)), EndRun(State.FAILED)),
    ("died before the stop was ordered", at(State.READY, DOWN, run(OVER)), EndRun(State.STOPPED)),
    ("died with an answer at hand", at(State.STARTING, run=run(OVER, probe="answered")), EndRun(State.FAILED)),
    ("died after its deadline", at(State.STOPPING, run=run(STOPPED, failing=FAILING)), EndRun(State.FAILED)),
    ("refused by the host", at(State.STARTING, run=run(replace(OVER, state="refused"))), EndRun(State.FAILED)),
    ("dead, its log on the way", at(State.STARTING, run=run(replace(OVER, log_missing=5, ended_ago_s=1))), Wait(0.5)),
    ("dead, its log never came", at(State.STARTING, run=run(replace(OVER, log_missing=5, ended_ago_s=6))), EndRun(State.FAILED)),
    ("dead, its log to read", at(State.STARTING, run=run(replace(OVER, log_unread=5))), ReadLog()),
    ("ended by the host's own stop", at(State.READY, run=run(replace(OVER, stop_asked=True))), EndRun(State.QUEUED)),
    # contact
    ("lost while starting", at(State.STARTING, run=run(), host_lost=True), Move(State.LOST, {"code": "lost.no_contact", "params": {}})),
    ("back while starting", at(State.LOST, run=run()), Move(State.STARTING)),
    ("back when ready", at(State.LOST, run=run(was_ready=True)), Move(State.READY)),
    ("stopping, no contact", at(State.STOPPING, DOWN, run(replace(RUNNING, desired="stop")), host_lost=True, deadline_in_s=-1.0),
     Wait(30.0, reason={"code": "lost.no_contact", "params": {}})),
    # resting
    ("failed, nobody asks", at(State.FAILED, run=run(OVER, ended=True)), Wait()),
    ("failed, pressed start", at(State.FAILED, run=run(OVER, ended=True), start_asked=True), Move(State.QUEUED, fresh=True)),
    ("failed, retry later", at(State.FAILED, retry_in_s=7.0), Wait(7.0)),
    ("failed, retry now", at(State.FAILED, retry_in_s=-0.1), Move(State.QUEUED, automatic=True)),
    ("failed and unproven: never a second engine beside it", at(State.FAILED, run=run(), start_asked=True), Wait(5.0)),
    ("stopped stays", at(State.STOPPED, DOWN), Wait()),
]  # fmt: skip


@pytest.mark.parametrize(("what", "situation", "step"), TABLE, ids=[row[0] for row in TABLE])
def test_the_next_step(what: str, situation: Situation, step: Any) -> None:
    assert decide(situation) == step


def _can_be(s: Situation) -> bool:
    """While nothing runs yet, and once a stop is proven, there is no unfinished run."""
    return s.state not in (State.QUEUED, State.PLACING, State.STOPPED) or s.run is None or s.run.ended


jobs = st.builds(
    JobView,
    state=st.sampled_from(["ordered", "starting", "running", "stopping", "ended", "refused"]),
    desired=st.sampled_from(["run", "stop"]),
    listening=st.booleans(),
    log_missing=st.sampled_from([0, 5]),
    log_unread=st.sampled_from([0, 5]),
    ended_ago_s=st.sampled_from([0.0, 60.0]),
    stop_asked=st.booleans(),
)
runs = st.builds(
    RunView,
    ended=st.booleans(),
    current=st.booleans(),
    was_ready=st.booleans(),
    failing=st.sampled_from([{}, FAILING]),
    probe=st.sampled_from(["idle", "asked", "answered", "failed"]),
    probe_due_s=st.sampled_from([0.0, 2.0]),
    hung_min=st.sampled_from([None, 3]),
    check=st.sampled_from(["", "asking", "due"]),
    check_left_s=st.sampled_from([0.0, 30.0]),
    job=st.none() | jobs,
)
situations = st.builds(
    Situation,
    state=st.sampled_from(State),
    desired=st.sampled_from(Desired),
    start_asked=st.booleans(),
    deadline_in_s=st.sampled_from([None, -1.0, 50.0]),
    retry_in_s=st.sampled_from([None, -1.0, 5.0]),
    host_lost=st.booleans(),
    run=st.none() | runs,
).filter(_can_be)


@settings(max_examples=1000, deadline=None)
@given(situations)
def test_every_step_takes_an_arrow_that_exists(s: Situation) -> None:
    step = decide(s)
    if isinstance(step, Move):
        assert may_move(s.state, step.to), (s, step)
    if isinstance(step, Fail):
        assert may_move(s.state, State.FAILED), (s, step)
    if isinstance(step, EndRun) and s.run is not None:
        assert step.to == s.state or may_move(s.state, step.to), (s, step)
    if isinstance(step, StopRun):
        assert s.state in LIVE and s.run is not None and s.run.job is not None, (s, step)


@settings(max_examples=1000, deadline=None)
@given(situations)
def test_a_process_that_is_over_is_never_waited_for_for_long(s: Situation) -> None:
    over = s.run is not None and not s.run.ended and s.run.job is not None and s.run.job.over
    if over:
        step = decide(s)
        assert isinstance(step, EndRun | ReadLog) or (isinstance(step, Wait) and step.seconds == 0.5), (s, step)


@settings(max_examples=1000, deadline=None)
@given(situations)
def test_a_state_that_may_not_rest_is_looked_at_again(s: Situation) -> None:
    step = decide(s)
    if s.state not in RESTING and isinstance(step, Wait):
        assert step.seconds is not None and step.seconds <= 30, (s, step)


@settings(max_examples=1000, deadline=None)
@given(situations)
def test_nothing_new_is_started_when_it_shall_be_stopped(s: Situation) -> None:
    if s.desired == DOWN:
        step = decide(s)
        assert not isinstance(step, Place | Ask | Order | Probe), (s, step)
        assert (
            not (isinstance(step, Move) and step.to in (State.QUEUED, State.PLACING, State.READY))
            or s.state == State.LOST
        )


def test_every_state_can_be_left_and_reached() -> None:
    assert set(ARROWS) == set(State)
    reached = {new for arrows in ARROWS.values() for new in arrows}
    assert reached == set(State)


def test_the_pause_between_restarts_grows_and_ends() -> None:
    policy = Restart()
    pauses = [retry_delay(policy, n, first_s=10, longest_s=300) for n in range(6)]
    assert pauses == [10, 20, 40, 80, 160, None]
    assert retry_delay(Restart(max_attempts=5), 4, first_s=60, longest_s=300) == 300
    assert retry_delay(Restart(policy="never"), 0, first_s=10, longest_s=300) is None
