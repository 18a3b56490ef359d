"""A machine goes down with everything on it and comes up again: what should run runs again, and the page says so."""

import json
import os
import signal
from typing import Any

from django.test import Client

from tests.agent.test_restarted_machine import of_earlier_boot
from tests.e2e.stack import Stack
from tests.fakes.make_engine import make_fake_model
from tests.waiting import until


def power_cut(stack: Stack, job_id: str) -> None:
    """The agent, the shim and the engine at once; what is on the disk becomes of an earlier boot."""
    from panel.fleet.models import Host

    folder = stack.data / "agent/jobs" / job_id
    shim = json.loads((folder / "job.json").read_text())["shim"][0]
    stack.kill("agent")
    os.kill(shim, signal.SIGKILL)
    for process in stack.job_processes(job_id):
        process.kill()
    until(lambda: not stack.job_processes(job_id), why="the engine is gone")
    (folder / "exit.json").unlink(missing_ok=True)
    for name in ("run.json", "job.json"):
        raw = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(of_earlier_boot(raw)))
    Host.objects.filter(is_local=True).update(boot_id="an-earlier-boot")


def page(row: Any) -> str:
    from panel.accounts.models import User

    client = Client()
    client.force_login(User.objects.get_or_create(username="vic", defaults={"role": "viewer"})[0])
    return client.get(f"/deployments/{row.pk}/").content.decode()


def test_what_should_run_comes_back_after_the_machine_and_the_page_says_so(stack: Stack) -> None:
    make_fake_model(stack.models / "small", phase_s=0.5)
    stack.scan()
    kept = stack.deploy("kept", "small", restart={"policy": "never"})
    stopped = stack.deploy("stopped", "small")
    for row in (kept, stopped):
        stack.wait_for(row, "ready", timeout=60)
    from deployments import services

    services.stop(stopped, actor=None)
    stack.wait_for(stopped, "stopped")
    first = kept.run
    power_cut(stack, str(first.job_id))
    stack.start("agent")
    until(lambda: stack.host().restarted_at, why="the restart is noticed")
    said = until(lambda: (text := page(kept)) and "started again at" in text and text, why="the page says so")
    assert "This deployment is being started again" in said
    until(
        lambda: (kept.refresh_from_db(), kept.run_id != first.pk and kept.state == "ready")[1],
        timeout=60,
        why="ready again",
    )
    first.refresh_from_db()
    assert (first.outcome, first.reason["code"]) == ("failed", "host_restarted")
    assert (kept.run.cause, kept.attempts) == ("host_restarted", 0)
    assert stack.state(stopped) == "stopped", "what was stopped stays so"
    assert "started again at" not in page(kept)


def test_a_machine_that_goes_down_each_time_is_not_sent_into_it_for_ever(stack: Stack) -> None:
    make_fake_model(stack.models / "heavy")
    stack.scan()
    row = stack.deploy("heavy", "heavy")
    for _n in range(4):
        stack.wait_for(row, "ready", timeout=60)
        before = row.run_id
        power_cut(stack, str(row.run.job_id))
        stack.start("agent")
        until(
            lambda before=before: (row.refresh_from_db(), row.run_id != before or row.state == "failed")[1], timeout=60
        )
        if row.state == "failed":
            break
    assert row.state == "failed" and row.reason["code"] == "host_restarted"
    assert row.runs.count() == 4
