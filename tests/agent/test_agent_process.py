"""The agent as it really runs: a process of its own, a panel over HTTP, kill -9 at any point."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from panel.fleet import wire
from tests.agent.conftest import ROOT, Host, marked
from tests.fakes.panel import TOKEN, FakePanel
from tests.waiting import until

pytestmark = pytest.mark.slow

SLEEP = "print('up', flush=True); time.sleep(600)"


def agent_log(host: Host) -> str:
    return (host.folder / "agent.log").read_text()


def test_start_log_stop_forget(host: Host, fake_panel: FakePanel) -> None:
    executable = host.engine("for i in range(1000): print('line', i, flush=True)\n" + SLEEP)
    host.configure(fake_panel)
    host.start_agent()
    job_id = fake_panel.order(host.task(executable))
    running = fake_panel.wait_state(job_id, "running")
    assert running.pid == until(lambda: marked(job_id))[0]
    text = "".join(f"line {i}\n" for i in range(1000)) + "up\n"
    fake_panel.wait(lambda: fake_panel.log(job_id) == text.encode())
    facts = fake_panel.facts
    assert facts is not None and facts.model_roots == [str(host.models)] and facts.ram_total_mib > 0
    fake_panel.stop(job_id)
    ended = fake_panel.wait_state(job_id, "ended")
    assert ended.signal == signal.SIGTERM and ended.log_size == len(text) and not marked(job_id)
    fake_panel.forget.add(job_id)
    until(lambda: not host.job_folder(job_id).exists())
    assert fake_panel.reports[-1].rev == fake_panel.rev
    # The id is refused for good.
    fake_panel.set({job_id: {**fake_panel.orders[job_id], "desired": "run"}})
    fake_panel.forget.clear()
    status = fake_panel.wait_state(job_id, "refused")
    assert status.refusal is not None and status.refusal.code == "tombstone" and not marked(job_id)


@pytest.mark.parametrize("round_", range(4))
def test_killed_while_starting_ends_with_exactly_one_engine(host: Host, fake_panel: FakePanel, round_: int) -> None:
    executable = host.engine(SLEEP)
    host.configure(fake_panel)
    host.start_agent()
    ids: list[str] = []
    for _ in range(3):
        # It waits for work: the newest question was for the newest revision.
        fake_panel.wait(lambda: fake_panel.polled_revs[-1:] == [fake_panel.rev])
        ids.append(fake_panel.order(host.task(executable)))
        time.sleep(random.uniform(0.0, 0.06))  # anywhere between the order and the running engine
        host.kill_agent()
        host.start_agent()
    for job_id in ids:
        status = fake_panel.wait_state(job_id, "running")
        assert until(lambda job_id=job_id: marked(job_id)) == [status.pid]
        fake_panel.wait(lambda job_id=job_id: fake_panel.log(job_id) == b"up\n")
    for job_id in ids:
        fake_panel.stop(job_id)
    for job_id in ids:
        assert fake_panel.wait_state(job_id, "ended").signal == signal.SIGTERM


def test_killed_while_stopping_finishes_the_stop(host: Host, fake_panel: FakePanel) -> None:
    executable = host.engine("signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)")
    host.configure(fake_panel)
    host.start_agent()
    job_id = fake_panel.order(host.task(executable))
    fake_panel.wait(lambda: fake_panel.log(job_id))
    fake_panel.stop(job_id, grace_s=1.0)
    fake_panel.wait_state(job_id, "stopping")
    host.kill_agent()
    host.start_agent()
    ended = fake_panel.wait_state(job_id, "ended")
    assert ended.killed and ended.stop_asked and ended.signal == signal.SIGKILL and not marked(job_id)


def test_engines_live_on_when_the_agent_ends_and_logs_wait(host: Host, fake_panel: FakePanel) -> None:
    code = "print('one', flush=True)\nwhile not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.01)\n"
    executable = host.engine(code + "print('two', flush=True); sys.exit(4)")
    host.configure(fake_panel)
    agent = host.start_agent()
    job_id = fake_panel.order(host.task(executable))
    fake_panel.wait(lambda: fake_panel.log(job_id) == b"one\n")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(5) == 0
    assert len(until(lambda: marked(job_id))) == 1
    (host.model / "go").write_text("")
    until(lambda: not marked(job_id))
    host.start_agent()
    assert fake_panel.wait_state(job_id, "ended").exit_code == 4
    fake_panel.wait(lambda: fake_panel.log(job_id) == b"one\ntwo\n")


def test_a_panel_that_is_away_stops_nothing(host: Host, fake_panel: FakePanel) -> None:
    executable = host.engine(SLEEP)
    host.configure(fake_panel)
    host.start_agent()
    job_id = fake_panel.order(host.task(executable))
    pid = fake_panel.wait_state(job_id, "running").pid
    fake_panel.fault = lambda path: 502
    count = len(fake_panel.reports)
    fake_panel.set(fake_panel.orders)
    time.sleep(0.5)
    assert until(lambda: marked(job_id)) == [pid]
    fake_panel.fault = lambda path: None
    fake_panel.wait(lambda: len(fake_panel.reports) > count)
    fake_panel.stop(job_id)
    fake_panel.wait_state(job_id, "ended")


def test_work_that_cannot_be_read_stops_nothing(host: Host, fake_panel: FakePanel) -> None:
    executable = host.engine(SLEEP)
    host.configure(fake_panel)
    host.start_agent()
    job_id = fake_panel.order(host.task(executable))
    pid = fake_panel.wait_state(job_id, "running").pid
    for raw in (b"", b"<html>", b'{"rev": 99, "jobs": 3}', b'{"rev": 99, "jobs": [{"id": "../x"}]}'):
        fake_panel.raw_work = raw
        with fake_panel.changed:
            fake_panel.changed.notify_all()
        fake_panel.wait(lambda: fake_panel.raw_work is None)
    bad = str(uuid.uuid4())
    # An order that cannot be read is refused, and does not count as absent.
    fake_panel.set({job_id: {**fake_panel.orders[job_id], "task": {"kind": "engine"}}, bad: {"id": bad}})
    status = fake_panel.wait_state(bad, "refused")
    assert status.refusal is not None and status.refusal.code == "kind_unknown"
    assert until(lambda: marked(job_id)) == [pid] and fake_panel.statuses[job_id].state == "running"


def test_a_restored_panel_is_told_to_go_ahead(host: Host, fake_panel: FakePanel) -> None:
    executable = host.engine(SLEEP)
    fake_panel.rev = 50
    host.configure(fake_panel)
    host.start_agent()
    job_id = fake_panel.order(host.task(executable))
    fake_panel.wait_state(job_id, "running")
    host.kill_agent()
    with fake_panel.changed:
        fake_panel.rev = 3  # an older database, which has never heard of the job
        fake_panel.orders = {}
    host.start_agent()
    fake_panel.wait(lambda: max(fake_panel.polled_revs) >= 51 and fake_panel.rev > 51)
    fake_panel.wait_state(job_id, "ended")


def test_scans_and_discoveries_answer(host: Host, fake_panel: FakePanel) -> None:
    (host.models / "broken.gguf").write_bytes(b"")
    host.configure(fake_panel)
    host.start_agent()
    scan = fake_panel.order(wire.ScanTask(roots=[str(host.models)]))
    fake_panel.wait(lambda: scan in fake_panel.results)
    result = fake_panel.results[scan]
    assert result.refusal is None
    assert str(host.models / "broken.gguf") in [item["path"] for item in result.items]
    assert fake_panel.wait_state(scan, "ended").exit_code == 0
    stopped = str(uuid.uuid4())
    fake_panel.order(wire.ScanTask(), id=stopped, desired="stop")
    assert fake_panel.wait_state(stopped, "ended").stop_asked


def test_stop_all_needs_no_panel_and_waits_for_the_agent(host: Host, fake_panel: FakePanel) -> None:
    executable = host.engine(SLEEP)
    deaf = host.engine(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)", "deaf"
    )
    host.configure(fake_panel)
    agent = host.start_agent()
    ids = [fake_panel.order(host.task(executable)), fake_panel.order(host.task(deaf))]
    for job_id in ids:
        fake_panel.wait(lambda job_id=job_id: fake_panel.log(job_id))
    second = subprocess.run(host.command(), cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert second.returncode == 3 and "already runs" in second.stderr
    agent.terminate()
    done = subprocess.run(host.command("--stop-all", "--grace", "0.3"), cwd=ROOT, timeout=30)
    assert done.returncode == 0 and not any(marked(job_id) for job_id in ids)
    host.start_agent()
    for job_id in ids:
        ended = fake_panel.wait_state(job_id, "ended")
        assert ended.stop_asked


def test_join(host: Host, fake_panel: FakePanel) -> None:
    fake_panel.join_code = "one-time"
    folder = host.folder / "new"
    command = [sys.executable, "-m", "panel.fleet.agent", "--dir", str(folder), "--join", fake_panel.url]
    refused = subprocess.run([*command, "--code", "wrong"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2 and "refused the code" in refused.stderr and "Traceback" not in refused.stderr
    assert not (folder / "token").exists()
    env = {**os.environ, "BERTH_JOIN_CODE": "one-time"}  # not in the process list
    assert subprocess.run(command, cwd=ROOT, env=env).returncode == 0
    assert json.loads((folder / "agent.json").read_text())["panel"] == fake_panel.url
    assert (folder / "token").read_text().strip() == TOKEN
    assert all((folder / name).stat().st_mode & 0o777 == 0o600 for name in ("agent.json", "token"))


def test_wrong_settings_are_one_sentence(host: Host) -> None:
    done = subprocess.run(host.command(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and "agent.json" in done.stderr


def test_an_idle_agent_is_light(host: Host, fake_panel: FakePanel) -> None:
    host.configure(fake_panel, report_s=10.0)
    agent = host.start_agent()
    fake_panel.wait(lambda: fake_panel.polled_revs and fake_panel.reports)
    time.sleep(0.5)
    ticks = _cpu(agent.pid)
    time.sleep(1.5)
    assert _cpu(agent.pid) - ticks <= 5  # hundredths of a second
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{agent.pid}/smaps_rollup").read_text(), re.M)
    assert found is not None and int(found[1]) <= 40 * 1024


def _cpu(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
