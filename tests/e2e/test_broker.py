"""Without the broker, and with one that hangs: clicks work within seconds, the loop goes on, nothing is lost."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import pytest
from django.contrib.auth.hashers import make_password

from panel.accounts.models import User
from tests.e2e.stack import Stack, until
from tests.fakes.make_engine import make_fake_model
from tests.servers import Servers

PASSWORD = "harbour lights at nine"
CLICK_S = 5.0  # one read of a hanging broker may time out, not several


@pytest.fixture(scope="module", autouse=True)
def models(stack: Stack) -> None:
    make_fake_model(stack.models / "steady", phase_s=0.2, stop_s=0.2)
    stack.scan()
    User.objects.create(username="olga", password=make_password(PASSWORD, hasher="argon2"), role="operator")


@contextmanager
def away(servers: Servers, how: str) -> Iterator[None]:
    """The broker killed, or stopped so that it accepts connections and says nothing."""
    if servers.embedded is None:
        pytest.skip("the broker of this run is not ours to stop")
    broker = servers.embedded.valkey
    assert broker.process is not None
    pid = broker.process.pid
    os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    try:
        yield
    finally:
        if how == "killed":
            broker.process.wait(10)
            broker.start()
        else:
            os.kill(pid, signal.SIGCONT)
        until(broker.answers, why="the broker is back")


def signed_in(stack: Stack) -> httpx.Client:
    client = httpx.Client(base_url=stack.url, timeout=60, trust_env=False, headers={"Sec-Fetch-Mode": "navigate"})
    client.get("/login")
    form = {"name": "olga", "password": PASSWORD, "csrfmiddlewaretoken": client.cookies["berth_csrf"]}
    assert client.post("/login", data=form).status_code == 302
    client.headers["X-CSRFToken"] = client.cookies["berth_csrf"]
    return client


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_a_stop_and_a_start_without_the_broker(stack: Stack, servers: Servers, how: str) -> None:
    row = stack.deploy(f"broker-{how}", "steady")
    stack.wait_for(row, "ready", timeout=40)
    with closing(signed_in(stack)) as client:
        with away(servers, how):
            for act, state in (("stop", "stopped"), ("start", "starting")):
                began = time.monotonic()
                assert client.post(f"/deployments/{row.pk}/{act}").status_code == 302
                assert time.monotonic() - began < CLICK_S
                stack.wait_for(row, state, timeout=30)
            assert stack.host().lost_at is None, "the agent's line does not need the broker"
        stack.wait_for(row, "ready", timeout=40)
        client.post(f"/deployments/{row.pk}/stop")
    stack.wait_for(row, "stopped")
    assert not stack.job_processes(row.run_id)
    assert row.runs.count() == 2


def test_a_worker_that_sleeps_holds_up_nobody(stack: Stack) -> None:
    """The leader of the ticks keeps its lock while it is stopped; another worker goes on without it."""
    stack.COMMANDS = {**stack.COMMANDS, "second": [*stack.COMMANDS["worker"], "-n", "second@%h"]}
    rows = [stack.deploy(f"asleep-{n}", "steady") for n in range(3)]
    stack.procs["worker"].send_signal(signal.SIGSTOP)
    try:
        stack.start("second")
        for row in rows:
            stack.wait_for(row, "ready", timeout=60)
    finally:
        stack.procs["worker"].send_signal(signal.SIGCONT)
    assert [row.runs.count() for row in rows] == [1, 1, 1]
    assert all(stack.job_processes(row.run_id) for row in rows)
