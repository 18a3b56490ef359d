"""A host whose clock is an hour off, either way: everything works, and the page says how far it is off."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.stack import Stack
from tests.fakes.make_engine import make_fake_model
from tests.waiting import until

# The agent with another clock, and its shims with the same one: they are processes of their own.
AGENT = """
import runpy, sys, time
from pathlib import Path
true, off, folder = time.time, {off}, Path({folder!r})
time.time = lambda: true() + off
from panel.fleet.agent import spawn
shim = spawn.SHIM.read_text()
assert shim.count("time.time()")
(folder / "shim.py").write_text(shim.replace("time.time()", "(time.time() + " + str(off) + ")"))
spawn.SHIM = folder / "shim.py"
runpy.run_module("panel.fleet.agent", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(params=[-3600, 3600], ids=["behind", "ahead"])
def off(request: pytest.FixtureRequest, stack: Stack) -> Iterator[int]:
    folder = stack.folder / f"clock{request.param}"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT.format(off=request.param, folder=str(folder)))
    usual = stack.COMMANDS
    stack.kill("agent")
    stack.COMMANDS = {**usual, "agent": [str(folder / "agent.py")]}
    stack.start("agent")
    until(lambda: abs(stack.host().clock_skew_s - request.param) < 20, why="the panel knows how far it is off")
    yield request.param
    stack.COMMANDS = usual
    stack.kill("agent")
    stack.start("agent")
    until(lambda: abs(stack.host().clock_skew_s) < 20, why="the clock is right again")


def test_an_hour_off_changes_nothing(stack: Stack, off: int) -> None:
    from panel.fleet import host_wording

    make_fake_model(stack.models / "steady", phase_s=0.1, stop_s=0.2)
    stack.scan()
    row = stack.deploy(f"steady{off}", "steady")
    stack.wait_for(row, "ready", timeout=60)
    run = row.run
    began = run.created_at.timestamp()
    run.job.refresh_from_db()
    assert abs(run.job.status["started_at"] - began) < 60, "by our clock"
    assert all(0 <= phase["start"] - began < 120 for phase in run.phases), run.phases
    ended = [phase["end"] - phase["start"] for phase in run.phases if phase["end"]]
    assert all(0 <= seconds < 120 for seconds in ended), run.phases
    assert ("ahead" if off > 0 else "behind") in host_wording.clock(stack.host())
    assert stack.host().restarted_at is None, "another clock is no restart"
    stop(row)
    stack.wait_for(row, "stopped", timeout=60)
    assert not stack.job_processes(run.job_id)


def stop(row: Any) -> None:
    from deployments import services

    services.stop(row, actor=None)
