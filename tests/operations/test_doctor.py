"""Every finding of the doctor, by really breaking it: what it says, its code, and the next step."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.operations.disks import small_disk
from tests.panel.running import ROOT, Panel
from tests.waiting import free_port, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def findings(panel: Panel, *within: str, **env: str) -> dict[str, dict[str, Any]]:
    """By name, as programs read them. `within` is a command that runs the doctor in another world."""
    argv = [*within, sys.executable, "manage.py", "doctor", "--json"]
    done = subprocess.run(argv, cwd=ROOT, env={**panel.env, **env}, capture_output=True, text=True, timeout=90)
    assert done.returncode in (0, 1), done.stderr
    found = {row["name"]: row for row in json.loads(done.stdout)}
    assert done.returncode == int(any(row["verdict"] == "bad" for row in found.values()))
    for row in found.values():
        assert (row["verdict"] == "bad") == bool(row["code"]), row
        assert row["verdict"] != "bad" or row["hint"], f"no next step: {row}"
    return found


def bad(panel: Panel, *within: str, **env: str) -> dict[str, str]:
    """What is wrong: name → code."""
    return {name: row["code"] for name, row in findings(panel, *within, **env).items() if row["verdict"] == "bad"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    """One panel that runs, mended again by each test; short times, so that silence is soon noticed."""
    one = Panel(tmp_path_factory.mktemp("doctor") / "data", free_port())
    one.env |= {"BERTH_HOST_LOST_S": "4", "BERTH_TICK_S": "0.3"}
    one.up()
    config = one.data / "agent" / "agent.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "report_s": 1}))
    one.part("panel.fleet.agent --dir").kill()  # it reads its settings at its start; `up` starts it again
    well(one)
    yield one
    one.end()


def well(panel: Panel) -> None:
    until(lambda: not bad(panel), timeout=40, why=f"all is well: {findings(panel)}")


@pytest.fixture
def still(tmp_path: Path) -> Panel:
    """A panel that does not run."""
    return Panel(tmp_path / "data", free_port())


# --- this machine -----------------------------------------------------------------------------------------------------
def test_before_the_first_start_nothing_is_wrong(still: Panel) -> None:
    found = findings(still)
    assert not [row for row in found.values() if row["verdict"] == "bad"]
    assert "`make up` starts it" in found["web"]["text"]
    said = still.manage("doctor").stdout
    assert "– web: not running" in said and "✓ permissions" in said


def test_permissions_of_a_secret(up: Panel) -> None:
    key = up.data / "secret.key"
    key.chmod(0o644)
    row = findings(up)["permissions"]
    assert row["code"] == "open_files" and "secret.key" in row["text"] and f"chmod 600 {key}" in row["hint"]
    (up.data / "agent").chmod(0o777)
    row = findings(up)["permissions"]
    command = row["hint"].split("Run: ")[1].split(". Who")[0]
    assert subprocess.run(["sh", "-c", command], check=True).returncode == 0
    assert not bad(up), "its own command mends it"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_files_of_another_user(up: Panel) -> None:
    token = up.data / "agent" / "token"
    os.chown(token, 65534, 65534)
    try:
        row = findings(up)["permissions"]
        assert row["code"] == "foreign_files" and "agent/token" in row["text"] and "chown -R" in row["hint"]
    finally:
        os.chown(token, 0, 0)


def test_a_folder_that_cannot_be_written(still: Panel) -> None:
    still.data.write_text("a file where the folder should be")
    done = still.manage("doctor")
    assert done.returncode == 1 and "BERTH_DATA" in done.stderr, "without its folder there is no panel to look at"


def test_a_taken_port(still: Panel) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", still.port))
        other.listen()
        row = findings(still)["web"]
    assert row["code"] == "port_taken" and str(os.getpid()) in row["text"] and "BERTH_BIND=" in row["hint"]


def test_a_low_disk(still: Panel) -> None:
    with small_disk(still.data, "300m"):
        row = findings(still)["data folder"]
    assert row["code"] == "disk_full" and "MiB are free" in row["text"] and "Make room" in row["hint"]


# --- parts --------------------------------------------------------------------------------------------------------------
@contextmanager
def asleep(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("queue", ["loop", "probe"])
def test_a_worker_that_hangs(up: Panel, queue: str) -> None:
    with asleep(up.part(f"-Q {queue}")):
        row = findings(up)["workers"]
    assert row["code"] == "worker_away" and f": {queue}." in row["text"]
    assert f"worker-{queue}.log" in row["hint"]
    well(up)


def test_a_web_process_that_hangs(up: Panel) -> None:
    with asleep(up.part("panel.web")):
        row = findings(up)["web"]
    assert row["code"] == "web_away" and "web.log" in row["hint"]
    well(up)


def test_an_agent_that_hangs(up: Panel) -> None:
    with asleep(up.part("panel.fleet.agent --dir")):
        until(lambda: bad(up).get("agent") == "agent_silent", timeout=40, why="its silence is found")
        assert "agent.log" in findings(up)["agent"]["hint"]
    well(up)


def query(panel: Panel, text: str) -> None:
    import psycopg

    from panel.core.services_urls import socket_folder

    with psycopg.connect(host=str(socket_folder(panel.data)), user="berth", dbname="berth", autocommit=True) as link:
        link.execute(text)  # type: ignore[call-overload]


def test_a_broker_that_takes_nothing(up: Panel) -> None:
    import redis

    from panel.core.services_urls import redis_urls

    client = redis.Redis.from_url(redis_urls("", up.data)[0])
    client.config_set("maxmemory", "1")
    try:
        row = findings(up)["message server"]
        assert row["code"] == "broker_refuses" and "REDIS_URL" in row["hint"]
    finally:
        client.config_set("maxmemory", "0")
        client.close()
    well(up)


def test_a_broker_that_is_away(up: Panel) -> None:
    with asleep(up.part("valkey-server")):
        found = findings(up)
    assert found["message server"]["code"] == "broker_away"
    assert found["workers"]["verdict"] == "idle", "one cause, one finding"
    well(up)


def test_unapplied_migrations(up: Panel) -> None:
    newest = sorted(path.stem for path in (ROOT / "deployments/migrations").glob("0*.py"))[-1]
    query(up, f"DELETE FROM django_migrations WHERE app = 'deployments' AND name = '{newest}'")
    try:
        found = findings(up)
        assert found["database"]["code"] == "migrations_wait" and "manage.py migrate" in found["database"]["hint"]
        assert found["agent"]["verdict"] == "idle", "rows of another version are not read"
    finally:
        query(up, f"INSERT INTO django_migrations (app, name, applied) VALUES ('deployments', '{newest}', now())")
    well(up)


def test_a_database_that_is_away(up: Panel) -> None:
    found = findings(up, DATABASE_URL="postgresql://nobody@127.0.0.1:1/berth")
    assert found["database"]["code"] == "database_away" and "DATABASE_URL" in found["database"]["hint"]
    assert found["agent"]["verdict"] == found["clock"]["verdict"] == "idle"


def test_a_loop_that_gets_nothing_done(up: Panel) -> None:
    query(up, "INSERT INTO deployments_deployment (created_at, updated_at, wake, name, desired, state, state_since, reason,"
              " restart_asked, restart_done, detail_asked, attempts, created_by, wanted_by, deadline_at)"
              " VALUES (now(), now(), 0, 'forgotten', 'stopped', 'stopping', now(), '{}', 0, 0, 0, 0, '', '',"
              " now() - interval '5 minutes')")  # fmt: skip
    try:
        row = findings(up)["loop"]
        assert row["code"] == "loop_behind" and "forgotten" in row["text"] and "worker-loop.log" in row["hint"]
    finally:
        query(up, "DELETE FROM deployments_deployment WHERE name = 'forgotten'")


def test_another_clock_than_the_databases(up: Panel, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntrue = time.time\ntime.time = lambda: true() - 3600\n")
    row = findings(up, PYTHONPATH=str(tmp_path))["clock"]
    assert row["code"] == "clock_skew" and "-3600 s" in row["text"] and "timedatectl" in row["hint"]


# --- agents -------------------------------------------------------------------------------------------------------------
@contextmanager
def agent_with(up: Panel, program: str) -> Iterator[None]:
    """The local agent replaced for a while by the same one in another world."""
    (up.data.parent / "agent.py").write_text(program)
    part = up.part("panel.fleet.agent --dir")
    part.send_signal(signal.SIGSTOP)  # `up` would start one that ended again
    with suppress(FileNotFoundError):
        (up.data / "agent" / "lock").unlink()  # the sleeping one keeps the lock of a file that is gone
    argv = [sys.executable, str(up.data.parent / "agent.py"), "--dir", str(up.data / "agent")]
    other = subprocess.Popen(argv, cwd=ROOT, env={**up.env, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        other.kill()
        other.wait()
        part.kill()


CHANGED = """
import runpy, sys
{change}
runpy.run_module("panel.fleet.agent", run_name="__main__", alter_sys=True)
"""


def test_an_agent_of_another_version(up: Panel) -> None:
    change = "from panel.fleet.agent import version\nversion.VERSION = '0.0.9'"
    with agent_with(up, CHANGED.format(change=change)):
        until(lambda: bad(up).get("agent versions") == "agent_version", timeout=40, why="another version is found")
        row = findings(up)["agent versions"]
        assert "0.0.9" in row["text"] and "berth-agent --update" in row["hint"]
    well(up)


def test_an_agent_of_another_wire(up: Panel) -> None:
    with agent_with(up, CHANGED.format(change="from panel.fleet import wire\nwire.WIRE_VERSION = 99")):
        until(lambda: bad(up).get("agent versions") == "agent_wire", timeout=40, why="another wire is found")
        assert "berth-agent --update" in findings(up)["agent versions"]["hint"]
    well(up)


def test_a_host_with_a_wrong_clock(up: Panel) -> None:
    change = "import time\ntrue = time.time\ntime.time = lambda: true() + 3600"
    with agent_with(up, CHANGED.format(change=change)):
        until(lambda: bad(up).get("hosts' clocks") == "host_clock", timeout=40, why="an hour is found")
        row = findings(up)["hosts' clocks"]
        assert "+1\xa0h" in row["text"] and "timedatectl" in row["hint"]
    well(up)


def test_a_host_that_does_not_call(up: Panel) -> None:
    query(up, "INSERT INTO fleet_host (created_at, updated_at, name, is_local, token_hash, work_rev, agent_version,"
              " agent_instance, clock_skew_s, boot_id, link_trouble, facts, ram_total_mib, ram_reserved_mib, model_roots,"
              " runtime_executables, runtime_folders, schedulable, door, last_seen_at, lost_at) VALUES (now(), now(),"
              " 'harbour', false, 'x', 1, '', '', 0, '', '{}', '{}', 0, 0, '[]', '[]', '[]', true, '{}',"
              " now() - interval '3 hours', now() - interval '3 hours')")  # fmt: skip
    try:
        row = findings(up)["hosts"]
        assert row["code"] == "hosts_silent" and "harbour (3\xa0h" in row["text"] and "systemctl status" in row["hint"]
    finally:
        query(up, "DELETE FROM fleet_host WHERE name = 'harbour'")
