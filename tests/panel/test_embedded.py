"""The embedded servers: private, recognised after a crash, and every refusal is one sentence."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from panel import embedded
from panel.embedded import Embedded, EmbeddedError

pytestmark = pytest.mark.integration


@pytest.fixture
def both(tmp_path: Path):
    started: list[Embedded] = []

    def make(data: Path | None = None, **kwargs) -> Embedded:
        item = Embedded(data or tmp_path / "data", durable=False, **kwargs)
        started.append(item)
        return item.start(60)

    yield make
    for item in started:
        item.stop()


def _processes(running: Embedded) -> list[psutil.Process]:
    roots = [server.process for server in running.servers]
    return [process for root in roots for process in (root, *root.children(recursive=True))]


def test_they_listen_on_private_sockets_and_on_no_port(both) -> None:
    running = both()
    assert stat.S_IMODE(running.sockets.stat().st_mode) == 0o700
    assert stat.S_IMODE((running.sockets / ".s.PGSQL.5432").stat().st_mode) == 0o700
    open_ports = []
    for process in _processes(running):
        with contextlib.suppress(psutil.NoSuchProcess):  # an autovacuum worker comes and goes
            open_ports += process.net_connections("inet")
    assert open_ports == []
    with psycopg.connect(running.postgres.url()) as connection:
        row = connection.execute(
            "SELECT rolname, rolsuper, current_setting('shared_buffers') FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
    assert row == ("berth", False, "48MB")


def test_what_is_written_is_there_after_a_restart(both) -> None:
    first = both()
    with psycopg.connect(first.postgres.url()) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    first.stop()
    assert not any(server.alive() for server in first.servers)
    with psycopg.connect(both().postgres.url()) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_one_owner_per_folder(both) -> None:
    both()
    with pytest.raises(EmbeddedError) as refused:
        both()
    assert refused.value.code == "embedded_running"
    assert str(os.getpid()) in refused.value.text


def test_servers_that_outlived_their_owner_are_taken_over(both) -> None:
    first = both()
    pids = [server.process.pid for server in first.servers]
    first.lock.release()  # what the kernel does when the owner dies
    second = both()
    assert [server.process.pid for server in second.servers] == pids
    second.stop()
    for server in first.servers:
        server.child.wait(10)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_they_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from panel.embedded import Embedded; "
        "e = Embedded(Path(sys.argv[1]), durable=False).start(60); "
        "print(*[s.process.pid for s in e.servers], flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in owner.stdout.readline().split()]
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, "a server outlived its owner"
        time.sleep(0.05)


def test_a_reused_pid_is_not_taken_for_our_server(both) -> None:
    first = both()
    first.stop()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        lines = [str(stranger.pid), str(first.postgres.folder), "1", "5432", str(first.sockets), "", ""]
        (first.postgres.folder / "postmaster.pid").write_text("\n".join(lines))
        second = both()
        assert second.postgres.process.pid != stranger.pid
        second.stop()
        assert stranger.poll() is None
        stranger.kill()


def test_a_long_data_path_gets_a_short_socket_folder(both, tmp_path: Path) -> None:
    data = tmp_path / ("long" * 30)
    running = both(data)
    assert len(str(running.sockets)) < 60
    assert (data / "run").readlink() == running.sockets
    with psycopg.connect(running.postgres.url()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    running.stop()
    running.sockets.rmdir()


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda data: data.write_text("a file"), "data_folder"),
        (lambda data: _fill(data / "postgres" / "PG_VERSION", "99"), "embedded_version"),
        (lambda data: _fill(data / "postgres" / "strange", "x"), "embedded_folder"),
    ],
    ids=["not a folder", "another version's database", "not a database"],
)
def test_an_impossible_folder_is_one_sentence(both, tmp_path: Path, prepare, code: str) -> None:
    prepare(tmp_path / "data")
    with pytest.raises(EmbeddedError) as refused:
        both()
    assert refused.value.code == code
    assert refused.value.hint_text
    assert str(tmp_path) in refused.value.text


def _fill(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_root_without_user_namespaces_is_told_what_to_do(both, monkeypatch) -> None:
    monkeypatch.setattr(embedded.os, "geteuid", lambda: 0)
    monkeypatch.setattr(embedded.shutil, "which", lambda _name: None)
    with pytest.raises(EmbeddedError) as refused:
        both().postgres.as_user()
    assert refused.value.code in ("embedded_as_root", "data_folder")


def test_a_server_that_dies_at_once_is_named_with_its_last_line(both, tmp_path: Path) -> None:
    first = both()
    first.stop()
    (first.postgres.folder / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(EmbeddedError) as refused:
        both()
    assert refused.value.code == "embedded_failed"
    assert "postgres" in refused.value.text
    assert "configuration" in refused.value.text
