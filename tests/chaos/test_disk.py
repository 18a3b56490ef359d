"""The disk of a host is full, read-only or slow: what runs goes on, a stop works, a start says why not, and all is well
as soon as the disk is.
"""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from panel.fleet import wire
from tests.agent.conftest import ROOT, Host, marked
from tests.chaos.small_disk import SmallDisk, why_not
from tests.fakes.panel import FakePanel
from tests.waiting import until

WHY_NOT = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

# As engines do: a line that cannot be written is lost, and the work goes on.
STEADY = """
import socket
listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
n = 0
while True:
    try:
        os.write(1, f"line {n}\\n".encode())
    except OSError:
        pass
    n += 1
    time.sleep(0.01)
"""


@pytest.fixture
def steady(host: Host) -> wire.EngineTask:
    return host.task(host.engine(STEADY))


@pytest.fixture
def disk(host: Host, steady: wire.EngineTask, fake_panel: FakePanel) -> Iterator[SmallDisk]:
    made = SmallDisk(host)
    host.configure(fake_panel, report_s=0.3)
    made.start_agent()
    yield made
    made.writable()
    made.free()
    host.clean()
    host.agents.clear()
    host.dir = made.folder
    made.close()


def is_whole(host: Host, panel: FakePanel, job_id: str) -> bool:
    stored = panel.logs.get(job_id)
    return stored is not None and bytes(stored.data) == (host.job_folder(job_id) / "log").read_bytes()


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_takes_nothing(
    host: Host, fake_panel: FakePanel, steady: wire.EngineTask, disk: SmallDisk, how: str
) -> None:
    stays, goes = fake_panel.order(steady), fake_panel.order(steady)
    for job_id in (stays, goes):
        fake_panel.wait(lambda job_id=job_id: job_id in fake_panel.statuses and fake_panel.statuses[job_id].listening)
    pids = marked(stays)
    if how == "full":
        disk.fill()
    else:
        disk.read_only()
    fake_panel.stop(goes, grace_s=1.0)
    assert fake_panel.wait_state(goes, "ended").stop_asked, "a stop needs no disk"
    assert not marked(goes)
    comes = fake_panel.order(steady)
    refused = fake_panel.wait_state(comes, "refused")
    assert refused.refusal is not None and refused.refusal.code == "spawn_failed"
    assert fake_panel.statuses[stays].state == "running" and marked(stays) == pids
    fake_panel.drop(comes)
    disk.writable()
    disk.free()
    later = fake_panel.order(steady)
    fake_panel.wait_state(later, "running")
    fake_panel.forget = {goes}
    until(lambda: not host.job_folder(goes).exists(), why="what the panel has is dropped")
    host.kill_agent()
    disk.start_agent()
    count = len(fake_panel.reports)
    fake_panel.wait(lambda: len(fake_panel.reports) > count + 1)
    assert marked(stays) == pids and len(marked(later)) == 1 and not marked(goes) and not marked(comes)
    fake_panel.stop(stays)
    fake_panel.wait_state(stays, "ended")
    until(lambda: is_whole(host, fake_panel, stays), why="its log is whole")


def test_an_engine_that_ends_on_a_full_disk_keeps_its_exit_code(
    host: Host, fake_panel: FakePanel, disk: SmallDisk
) -> None:
    executable = host.engine("time.sleep(1.0); sys.exit(7)", "brief.py")
    host.kill_agent()
    host.configure(fake_panel, report_s=0.3)
    disk.start_agent()
    job_id = fake_panel.order(host.task(executable))
    fake_panel.wait_state(job_id, "running")
    disk.fill()
    assert fake_panel.wait_state(job_id, "ended").exit_code == 7
    host.kill_agent()
    disk.free()
    fake_panel.statuses.clear()
    disk.start_agent()
    assert fake_panel.wait_state(job_id, "ended").exit_code == 7, "also after the agent forgot"


def test_an_agent_cannot_begin_on_such_a_disk_and_says_so(
    host: Host, fake_panel: FakePanel, steady: wire.EngineTask, disk: SmallDisk
) -> None:
    job_id = fake_panel.order(steady)
    fake_panel.wait_state(job_id, "running")
    pids = marked(job_id)
    host.kill_agent()
    disk.read_only()
    done = disk.run(*disk.agent()[5:])
    assert done.returncode == 4 and "Traceback" not in done.stderr and "Read-only file system" in done.stderr
    disk.writable()
    disk.fill()
    disk.start_agent()  # a full disk is no hindrance: nothing new has to be written
    fake_panel.statuses.clear()
    assert fake_panel.wait_state(job_id, "running").pid in pids
    disk.free()


SLOW = """
import os, runpy, sys, time
true = os.fsync
os.fsync = lambda handle: (time.sleep({pause}), true(handle))[1]
runpy.run_module("panel.fleet.agent", run_name="__main__", alter_sys=True)
"""


def test_a_slow_disk_makes_things_late_and_nothing_else(
    host: Host, fake_panel: FakePanel, steady: wire.EngineTask
) -> None:
    """Each fsync takes a second, as on a disk that others keep busy."""
    script = host.folder / "slow.py"
    script.write_text(SLOW.format(pause=1.0))
    host.configure(fake_panel, report_s=0.3)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (host.folder / "agent.log").open("ab") as log:
        agent = subprocess.Popen([sys.executable, str(script), "--dir", str(host.dir)], stderr=log, env=env)
    host.agents.append(agent)
    ids = [str(uuid.uuid4()) for _ in range(3)]
    for job_id in ids:
        fake_panel.order(steady, id=job_id)
    for job_id in ids:
        fake_panel.wait_state(job_id, "running")
    began = time.monotonic()
    fake_panel.stop(ids[0], grace_s=1.0)
    fake_panel.wait_state(ids[0], "ended")
    assert time.monotonic() - began < 10
    assert [len(marked(job_id)) for job_id in ids] == [0, 1, 1]
    for job_id in ids[1:]:
        fake_panel.stop(job_id)
    for job_id in ids:
        fake_panel.wait_state(job_id, "ended")
        until(lambda job_id=job_id: is_whole(host, fake_panel, job_id), why="its log is whole")
