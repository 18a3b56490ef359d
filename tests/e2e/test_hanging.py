"""An engine that hangs while its port is open and its health is 200: it is found, said, ended and started again."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deployments.models import Run, Transition
from panel.fleet import serving_points
from tests.e2e.stack import Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.servers import Servers
from tests.waiting import until

SOON = {"BERTH_LIVE_PROBE_S": "1", "BERTH_HUNG_S": "1", "BERTH_PROBE_TIMEOUT_S": "2"}  # on a CPU four times as long


@pytest.fixture(scope="module")
def stack(
    servers: Servers, django_test_environment: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    with django_db_blocker.unblock(), running(servers, tmp_path_factory.mktemp("berth"), env=SOON) as berth:
        make_fake_engine(berth.engines)
        make_fake_model(berth.models / "steady", metrics=str(berth.folder / "steer.json"))
        make_fake_model(
            berth.models / "hangs", hangs_at_request=5
        )  # the test question and the golden ones are answered
        berth.start_all()
        berth.scan()
        yield berth


def test_one_that_hangs_is_ended_by_the_restart_policy_and_a_busy_one_is_not(stack: Stack) -> None:
    hangs = stack.deploy("hangs", "hangs", restart={"policy": "never"})
    busy = stack.deploy("busy", "steady")
    for row in (hangs, busy):
        stack.wait_for(row, "ready", timeout=40)
    seen_at_work(stack, busy)
    first = hangs.run_id
    stack.wait_for(hangs, "failed", timeout=60)
    run = Run.objects.get(pk=first)
    assert (run.outcome, run.reason["code"]) == ("failed", "serve.hung")
    assert "serve.silent" in [one["code"] for one in run.findings["found"]], "it was said before it was ended"
    assert run.live["misses"] >= 3
    ways = Transition.objects.filter(deployment=hangs).values_list("new", flat=True)
    assert list(ways)[-2:] == ["stopping", "failed"]
    assert stack.job_processes(first) == []
    assert stack.state(busy) == "ready" and busy.runs.count() == 1


def seen_at_work(stack: Stack, row: Any) -> None:
    """Its numbers come by themselves, and are those that the engine tells."""
    (stack.folder / "steer.json").write_text(json.dumps({"waiting": 3, "kv": 0.5}))
    key = str(row.run.job_id)

    def steered() -> bool:
        points = serving_points.read([key])[key]
        return bool(points) and (points[-1].waiting, points[-1].kv_usage, points[-1].health) == (3, 0.5, 200)

    until(steered, timeout=30, why="the numbers of the engine are here")
    done = serving_points.read([key])[key][-1].done or 0
    from deployments.gateway.snapshot import probe_token

    body = {"model": row.name, "messages": [{"role": "user", "content": "Hello"}]}
    token = probe_token(row.pk, str(row.run_id))
    answer = httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    until(lambda: (serving_points.read([key])[key][-1].done or 0) > done, timeout=30, why="the answer is counted")
