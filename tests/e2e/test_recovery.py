"""kill -9 of each part during a start and during a stop: exactly one engine or none, the right state, nothing lost."""

import os
import signal
from itertools import pairwise

import psutil
import pytest

from deployments import services
from deployments.models import Transition
from panel.audit.models import Event
from panel.fleet import logstore
from panel.fleet.models import Reservation
from tests.e2e.stack import Stack
from tests.fakes.make_engine import make_fake_model
from tests.waiting import until

PARTS = ["web", "worker", "agent"]


@pytest.fixture(scope="module", autouse=True)
def models(stack: Stack) -> None:
    make_fake_model(stack.models / "steady", phase_s=0.4, stop_s=0.5)
    stack.scan()


def engines(stack: Stack, row) -> set[str]:
    """Job ids with a living engine, found in /proc."""
    return {proc.environ()["BERTH_JOB"] for proc in stack.job_processes()}


def check_up(stack: Stack, row) -> None:
    stack.wait_for(row, "ready", timeout=40)
    assert engines(stack, row) == {str(row.run_id)}, "exactly one engine"
    assert row.runs.count() == 1, "the same run, not another one"
    assert Reservation.objects.filter(holder=str(row.run_id)).exists()
    whole = b"".join(part.data for part in logstore.read_all(row.run_id))
    until(
        lambda: b"Application startup complete" in b"".join(p.data for p in logstore.read_all(row.run_id)),
        why=f"the whole log is here: {whole[-500:]!r}",
    )


def check_down(stack: Stack, row) -> None:
    stack.wait_for(row, "stopped", timeout=40)
    assert engines(stack, row) == set()
    row.run.refresh_from_db()
    assert row.run.outcome == "stopped"
    assert not Reservation.objects.filter(holder=str(row.run_id)).exists()
    verbs = Event.objects.filter(target_kind="deployment", target_id=str(row.pk)).values_list("verb", flat=True)
    assert sorted(verbs) == ["deployment.created", "deployment.stopped"], "each act once"


@pytest.mark.parametrize("part", PARTS)
def test_killed_during_a_start(stack: Stack, part: str) -> None:
    row = stack.deploy(f"start-{part}", "steady")
    stack.wait_for(row, "starting")
    stack.kill(part)
    stack.start(part)
    check_up(stack, row)
    services.stop(row, actor=None)
    check_down(stack, row)


@pytest.mark.parametrize("part", PARTS)
def test_killed_during_a_stop(stack: Stack, part: str) -> None:
    row = stack.deploy(f"stop-{part}", "steady")
    check_up(stack, row)
    services.stop(row, actor=None)
    stack.wait_for(row, "stopping", "stopped")
    stack.kill(part)
    stack.start(part)
    check_down(stack, row)


def shim_of(stack: Stack, row) -> psutil.Process:
    """The engine's parent: the process that watches it."""
    engine = next(p for p in stack.job_processes(row.run_id) if "serve" in p.cmdline())
    parent = engine.parent()
    assert parent is not None and parent.pid != stack.procs["agent"].pid
    return parent


def test_a_killed_shim_does_not_take_the_engine_with_it(stack: Stack) -> None:
    row = stack.deploy("shim-ready", "steady")
    check_up(stack, row)
    os.kill(shim_of(stack, row).pid, signal.SIGKILL)
    port = row.run.job.status["port"]
    until(lambda: psutil.net_connections is not None and stack.job_processes(row.run_id), why="the engine lives")
    assert stack.state(row) == "ready"
    assert port
    services.stop(row, actor=None)
    check_down(stack, row)


def test_a_shim_killed_during_a_start(stack: Stack) -> None:
    row = stack.deploy("shim-start", "steady")
    stack.wait_for(row, "starting")
    until(lambda: stack.job_processes(row.run_id), why="the engine was started")
    os.kill(shim_of(stack, row).pid, signal.SIGKILL)
    stack.wait_for(row, "ready", "failed", timeout=40)
    alive = engines(stack, row)
    assert alive == ({str(row.run_id)} if row.state == "ready" else set())
    services.stop(row, actor=None)
    until(lambda: stack.state(row) in ("stopped", "failed") and not engines(stack, row), why="nothing is left")


def test_an_engine_killed_from_outside_is_noticed(stack: Stack) -> None:
    row = stack.deploy("murdered", "steady", restart={"policy": "never"})
    check_up(stack, row)
    for proc in stack.job_processes(row.run_id):
        proc.kill()
    stack.wait_for(row, "failed")
    assert row.run.signal == signal.SIGKILL
    assert engines(stack, row) == set()


def test_a_silent_agent_is_no_contact_and_not_a_failure(stack: Stack) -> None:
    row = stack.deploy("silent", "steady")
    check_up(stack, row)
    stack.procs["agent"].send_signal(signal.SIGSTOP)
    try:
        stack.wait_for(row, "lost", timeout=30)
        assert row.reason["code"] == "lost.no_contact"
        assert engines(stack, row) == {str(row.run_id)}
    finally:
        stack.procs["agent"].send_signal(signal.SIGCONT)
    stack.wait_for(row, "ready")
    services.stop(row, actor=None)
    check_down(stack, row)


def test_all_of_berth_killed_at_once_and_back(stack: Stack) -> None:
    row = stack.deploy("survivor", "steady")
    check_up(stack, row)
    for part in PARTS:
        stack.kill(part)
    assert engines(stack, row) == {str(row.run_id)}, "engines outlive the panel"
    for part in PARTS:
        stack.start(part)
    until(stack.healthy, timeout=30, why="web is back")
    stack.wait_for(row, "ready", timeout=30)
    assert row.runs.count() == 1
    services.stop(row, actor=None)
    check_down(stack, row)


def test_the_story_has_no_arrow_twice_in_a_row(stack: Stack) -> None:
    for deployment in set(Transition.objects.values_list("deployment_id", flat=True)):
        moves = list(Transition.objects.filter(deployment_id=deployment).order_by("pk").values_list("old", "new"))
        for before, after in pairwise(moves):
            assert before[1] == after[0], (deployment, moves)
