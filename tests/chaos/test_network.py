"""A real agent and a panel at the wire with a bad line between them: what is ordered happens once, and all is told."""

import json
import threading
import time
from collections.abc import Iterator

import pytest

from panel.fleet import wire
from tests.agent.conftest import Host, marked
from tests.chaos.cable import MODES, Cable
from tests.fakes.panel import FakePanel
from tests.waiting import until

pytestmark = pytest.mark.slow

TALKS = """
for n in range(100000):
    print("line", n, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def cable(fake_panel: FakePanel) -> Iterator[Cable]:
    made = Cable(fake_panel.server.server_address[1])
    yield made
    made.close()


@pytest.fixture
def there(host: Host, talks: wire.EngineTask, fake_panel: FakePanel, cable: Cable) -> Iterator[Host]:
    fake_panel.url = cable.url
    host.configure(fake_panel, report_s=0.3)
    host.start_agent()
    yield host


@pytest.fixture
def talks(host: Host) -> wire.EngineTask:
    """An engine that never stops talking."""
    return host.task(host.engine(TALKS))


def written(host: Host, job_id: str) -> bytes:
    return (host.job_folder(job_id) / "log").read_bytes()


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "dead"])
def test_stops_and_starts_over_a_bad_line(
    talks: wire.EngineTask, there: Host, fake_panel: FakePanel, cable: Cable, mode: str
) -> None:
    stays = fake_panel.order(talks)
    goes = fake_panel.order(talks)
    for job_id in (stays, goes):
        fake_panel.wait_state(job_id, "running")
    pid = marked(stays)
    cable.set(mode)
    fake_panel.stop(goes)
    comes = fake_panel.order(talks)
    time.sleep(1.5)
    assert marked(stays) == pid, "an engine does not care"
    cable.set("whole")
    fake_panel.wait_state(goes, "ended")
    fake_panel.wait_state(comes, "running")
    assert (len(marked(stays)), marked(goes), len(marked(comes))) == (1, [], 1)
    until(lambda: fake_panel.log(goes) == written(there, goes), why="the whole log of what ended is here")
    for job_id in (stays, comes):
        fake_panel.stop(job_id)
        fake_panel.wait_state(job_id, "ended")
        until(lambda job_id=job_id: fake_panel.log(job_id) == written(there, job_id), why="byte for byte")
        assert fake_panel.logs[job_id].gaps == []
    if mode in ("repeated", "reordered"):
        assert cable.delivered, "something came twice or late"


def test_work_comes_though_the_long_poll_hangs_on_a_dead_line(
    talks: wire.EngineTask, there: Host, fake_panel: FakePanel, cable: Cable
) -> None:
    """Something between forgot the connection and tells neither end: the poll would hang for its whole 35 s."""
    job_id = fake_panel.order(talks)
    fake_panel.wait_state(job_id, "running")
    until(lambda: fake_panel.polled_revs[-1] == fake_panel.rev, why="a poll waits")
    polling = [thread for thread in threading.enumerate() if thread.name == "cable"]
    assert polling
    cable.set("dead")
    cable.set("whole")
    began = time.monotonic()
    fake_panel.stop(job_id)
    fake_panel.wait_state(job_id, "ended", timeout_s=40.0)
    assert time.monotonic() - began < 30.0


def test_older_work_after_newer_changes_nothing(
    talks: wire.EngineTask, there: Host, fake_panel: FakePanel, cable: Cable
) -> None:
    before = json.dumps(fake_panel.work()).encode()
    job_id = fake_panel.order(talks)
    pid = fake_panel.wait_state(job_id, "running").pid
    for _ in range(2):
        fake_panel.raw_work = before
        with fake_panel.changed:
            fake_panel.changed.notify_all()
        fake_panel.wait(lambda: fake_panel.raw_work is None)
    count = len(fake_panel.reports)
    fake_panel.wait(lambda: len(fake_panel.reports) > count + 2)
    assert marked(job_id) == [pid] and fake_panel.statuses[job_id].state == "running"
    fake_panel.stop(job_id)
    fake_panel.wait_state(job_id, "ended")
