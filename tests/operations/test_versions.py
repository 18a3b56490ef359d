"""Old agent with new panel and the reverse: nobody misreads the other, engines go on, both sides say what to do."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from panel.fleet import wire
from panel.fleet.agent import orders
from panel.fleet.agent.version import VERSION
from tests.agent.conftest import Host as AgentHost
from tests.agent.conftest import host as host  # a fixture
from tests.agent.conftest import marked
from tests.fakes.panel import FakePanel
from tests.waiting import until

ROOT = Path(__file__).parents[2]
OLDER, NEWER = wire.WIRE_VERSION - 1, wire.WIRE_VERSION + 1


def test_a_panel_that_says_no_version_is_one_of_before() -> None:
    assert orders.parse(b'{"rev": 1}') == (1, [])


# --- the agent of today -----------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("other", [OLDER, NEWER], ids=["older panel", "newer panel"])
def test_an_agent_takes_no_work_of_another_wire_and_says_what_to_run(host: AgentHost, other: int) -> None:
    with FakePanel() as panel:
        executable = host.engine("print('up', flush=True); time.sleep(600)")
        host.configure(panel)
        host.start_agent()
        job_id = panel.order(host.task(executable))
        panel.wait_state(job_id, "running")
        pid = until(lambda: marked(job_id))
        usual = panel.work
        panel.work = lambda: {**usual(), "wire": other, "jobs": []}  # type: ignore[method-assign]  # would stop it all
        panel.set(panel.orders)
        log = host.folder / "agent.log"
        until(lambda: f"the panel speaks wire {other}" in log.read_text(), why="the agent says why")
        said = next(line for line in log.read_text().splitlines() if "speaks wire" in line)
        assert "berth-agent --update" in said and VERSION in said and "Traceback" not in log.read_text()
        assert marked(job_id) == pid, "its engine goes on"
        panel.work = usual  # type: ignore[method-assign]
        panel.set(panel.orders)
        panel.wait(lambda: panel.reports[-1].rev == panel.rev)
        assert marked(job_id) == pid


@pytest.mark.parametrize("code", ["link.version"])
def test_a_refusal_by_the_panel_stands_in_the_agents_log_whole(code: str) -> None:
    from panel.fleet.agent.client import Rejected
    from panel.fleet.seats import OtherWire

    error = OtherWire(params={"agent": "9.9.9", "panel": VERSION, "command": "berth-agent --update"})
    import json

    said = str(Rejected(426, json.dumps(error.as_dict())))
    assert code in said and "9.9.9" in said and VERSION in said and "Run on this host: berth-agent --update" in said


# --- the panel of today -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("other", [OLDER, NEWER], ids=["older agent", "newer agent"])
def test_the_panel_refuses_every_call_of_another_wire_and_the_hosts_page_says_what_to_run(
    db: None, client: Client, other: int
) -> None:
    from panel.accounts.models import User
    from panel.fleet.models import Host
    from panel.fleet.services import digest

    row = Host.objects.create(name="harbour", token_hash=digest("t0ken"))
    headers = {
        "Authorization": "Bearer t0ken", wire.WIRE_HEADER: str(other), "User-Agent": f"berth-agent/{other}.7.0",
    }  # fmt: skip
    calls: list[tuple[str, str]] = [("get", "work?rev=0"), ("post", "report")]
    calls += [("post", f"jobs/00000000-0000-4000-8000-000000000000/{what}") for what in ("log", "result")]
    for method, path in calls:
        send: Any = getattr(client, method)
        more = {"data": b"", "content_type": "application/json"} if method == "post" else {}
        answer = send(f"/agent/v1/{path}", headers=headers, **more)
        assert (answer.status_code, answer.json()["code"]) == (426, "link.version"), path
        said = answer.json()["message"] + answer.json()["hint"]
        assert f"{other}.7.0" in said and VERSION in said and "berth-agent --update" in said
    assert client.get("/agent/v1/script", headers=headers).status_code == 200, "the way out is open to every version"
    client.force_login(User.objects.create_user("ada", password="correct horse battery", role="admin"))
    page = client.get(f"/hosts/{row.pk}/").text
    assert f"{other}.7.0" in page and "do not understand each other" in page and "berth-agent --update" in page


def test_the_agent_says_its_version() -> None:
    argv = [sys.executable, "-m", "panel.fleet.agent", "--dir", "/nonexistent", "--version"]
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == VERSION
