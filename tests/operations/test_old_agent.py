"""A host whose agent is that of the first release, on the wire of today: it reports, finds, starts, logs and stops."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from deployments import services
from panel.accounts.models import User
from panel.fleet import logstore
from panel.fleet.models import Host, Job
from tests.e2e.stack import ROOT, Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.servers import Servers
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
AGENTS = sorted((ROOT / "tests/data/releases").glob("*-agent.zip"))


class Older(Stack):
    """Its agent is an older one, from a folder of its own."""

    agent: Path

    def start(self, name: str) -> None:
        if name != "agent":
            super().start(name)
            return
        argv = [sys.executable, "-m", "panel.fleet.agent", "--dir", str(self.data / "agent")]
        with (self.folder / "agent.log").open("ab") as log:
            env = {**self.env, "PYTHONPATH": str(self.agent)}
            self.procs[name] = subprocess.Popen(
                argv, cwd=self.agent, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )


@pytest.fixture(params=AGENTS, ids=lambda path: path.stem)
def stack(
    request: pytest.FixtureRequest,
    servers: Servers,
    django_test_environment: None,
    django_db_blocker: Any,
    tmp_path: Path,
) -> Iterator[Older]:
    Older.agent = tmp_path / "older"
    with zipfile.ZipFile(request.param) as packed:
        packed.extractall(Older.agent)
    with django_db_blocker.unblock(), running(servers, tmp_path, Older) as berth:
        make_fake_engine(berth.engines)
        make_fake_model(berth.models / "good", phase_s=0.05)
        berth.start_all()
        yield berth  # type: ignore[misc]  # it was made as one


def test_there_is_one_to_try() -> None:
    assert AGENTS, "python -m tests.operations.old_agent COMMIT tests/data/releases/RELEASE-agent.zip"


def test_a_run_on_a_host_with_an_older_agent(stack: Older) -> None:
    mine = Path(f"/proc/{stack.procs['agent'].pid}/cwd").readlink()
    assert mine == stack.agent and not (stack.agent / "panel/fleet/wire_base.py").exists(), "it is the older one"
    stack.scan()
    row = stack.deploy("chat", "good")
    ready = stack.wait_for(row, "ready", timeout=60)
    assert ready.run.answer["answer"], "it answered through the panel"
    written = stack.data / "agent" / "jobs" / str(ready.run.job_id) / "log"
    until(
        lambda: b"".join(p.data for p in logstore.read_all(ready.run.job_id)) == written.read_bytes(),
        why="its log is here",
    )

    browser = Client(headers={"Accept": "text/html"})
    browser.force_login(User.objects.create_user("ada", role="admin"))
    host = Host.objects.get()
    for path in (
        "/",
        "/hosts/",
        f"/hosts/{host.pk}/",
        f"/deployments/{row.pk}/",
        f"/runs/{ready.run.pk}/",
        "/models/",
        "/runtimes/",
    ):
        assert browser.get(path).status_code == 200, path

    # What it does not know it refuses in words, and nothing waits for it for ever.
    form = {
        "artifact": stack.artifact("good").pk,
        "name": "soon",
        "device": "auto",
        "gpu_count": 1,
        "task": "generate",
        "restart": "never",
    }
    assert browser.post("/deployments/check", form).status_code == 200
    if (check := Job.objects.filter(kind="check").first()) is not None:
        until(lambda: Job.objects.get(pk=check.pk).state in ("ended", "refused"), why="the check is over")
        card = browser.post("/deployments/check", form)
        assert card.status_code == 200 and b"Asking" not in card.content

    services.stop(ready, actor=None)
    stack.wait_for(row, "stopped", timeout=40)
    assert not stack.job_processes(ready.run.job_id)
    assert "Traceback" not in stack.logs(), stack.logs()
