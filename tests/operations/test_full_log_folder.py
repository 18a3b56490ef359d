"""The panel's folder of logs takes nothing while an engine writes much: the engine goes on, pages and doctor say so, and
the log is whole once there is room again.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from panel.accounts.models import User
from panel.core import trouble
from panel.fleet import logstore
from panel.fleet.models import JobLog
from tests.e2e.stack import Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.panel.running import ROOT
from tests.servers import Servers
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
FLOOD_MIB = 4


@pytest.fixture
def stack(servers: Servers, django_test_environment: None, django_db_blocker: Any, tmp_path: Path) -> Iterator[Stack]:
    with django_db_blocker.unblock(), running(servers, tmp_path) as berth:
        make_fake_engine(berth.engines)
        make_fake_model(berth.models / "floods", phase_s=0.05, flood_mib=FLOOD_MIB)
        berth.start_all()
        berth.scan()
        yield berth


def mount(*args: str) -> bool:
    return subprocess.run(["mount", *args], capture_output=True, check=False).returncode == 0


@pytest.fixture
def full(stack: Stack) -> Iterator[Callable[[], None]]:
    """The folder holds one MiB, or nothing where nothing can be mounted; what is called makes room."""
    folder = stack.data / "logs"
    folder.mkdir(exist_ok=True)
    mounted = mount("-t", "tmpfs", "-o", "size=1m", "berth-test", str(folder))
    blocker = folder / "jobs"
    if not mounted:
        blocker.write_text("in the way")

    def room() -> None:
        if mounted:
            assert mount("-o", "remount,size=64m", str(folder))
        else:
            blocker.unlink()

    yield room
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def doctor(stack: Stack) -> str:
    argv = [sys.executable, "manage.py", "doctor"]
    return subprocess.run(
        argv, cwd=ROOT, env=stack.env, capture_output=True, text=True, timeout=120, check=False
    ).stdout


def test_the_log_is_whole_when_there_is_room_again(stack: Stack, full: Callable[[], None]) -> None:
    row = stack.deploy("chatty", "floods")
    ready = stack.wait_for(row, "ready", timeout=60)
    job = ready.run.job_id
    written = stack.data / "agent" / "jobs" / str(job) / "log"
    assert written.stat().st_size > FLOOD_MIB << 20
    stored = JobLog.objects.get(pk=job).size
    assert stored < written.stat().st_size, "it cannot all be there"
    until(lambda: trouble._asked(trouble.LOGS), timeout=20, why="the panel met the full folder")
    said = doctor(stack)
    assert "Logs cannot be written down" in said or "MiB are free" in said
    browser = Client(headers={"Accept": "text/html"})
    browser.force_login(User.objects.create_user("mina", role="operator"))
    trouble._known.clear()
    page = browser.get(f"/deployments/{row.pk}/")
    assert page.status_code == 200 and "The log waits on its host" in page.content.decode()
    assert stack.state(row) == "ready" and len(stack.job_processes(job)) > 0, "the engine knows nothing of it"
    lines = [line for line in stack.logs().splitlines() if "logs cannot be written down" in line]
    assert 1 <= len(lines) <= 4 and "incident" not in stack.logs(), "said now and then, and no failure of ours"

    full()
    until(lambda: JobLog.objects.get(pk=job).size >= written.stat().st_size, timeout=60, why="the log came")
    kept = b"".join(part.data for part in logstore.read_all(job))
    assert kept == written.read_bytes()[: len(kept)] and len(kept) > FLOOD_MIB << 20
    assert not any(part.gap for part in logstore.read_all(job))
