"""`manage.py up`, `down` and `doctor` as people run them: real processes in a folder of their own."""

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from panel import lock
from tests.panel.running import Panel
from tests.waiting import free_port

HERE = Path(__file__).parent
pytestmark = pytest.mark.integration


@pytest.fixture
def panel(tmp_path: Path) -> Iterator[Panel]:
    one = Panel(tmp_path / "data", free_port())
    yield one
    one.end()


def only_what_make_up_installs() -> dict[str, str]:
    """Environment in which the modules of other distributions (tests, tools) are absent."""
    wanted = {entry.name for entry in lock.read(lock.LOCK.read_text("utf-8")) if entry.groups - {"dev"}}
    absent = [
        module
        for module, names in metadata.packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", name).lower() in wanted for name in names)
    ]
    assert "pytest" in absent
    return {"PYTHONPATH": str(HERE / "as_installed"), "BERTH_TEST_ABSENT": ",".join(absent)}


def sockets(process: psutil.Process) -> set[str]:
    """The open sockets of a process, by the kernel's numbers."""
    links = []
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(str(entry.readlink()))
    return {link for link in links if link.startswith("socket:")}


def test_one_command_brings_everything_and_term_takes_it_away(panel: Panel) -> None:
    panel.env |= only_what_make_up_installs()
    panel.up()
    assert f"http://localhost:{panel.port}" in panel.said()
    link = re.search(r"Create the first admin.*?http://localhost:\d+(/\S+)", panel.said())
    assert link, panel.said()
    assert panel.get(link[1]) == 200
    assert panel.get("/healthz") == 200
    for word in ("panel.web", "-Q loop", "-Q probe", "panel.fleet.agent --dir", "valkey-server", "postgres -D"):
        panel.part(word)
    assert not [
        listening
        for child in panel.tree()
        for listening in child.net_connections("tcp")
        if listening.status == psutil.CONN_LISTEN and listening.laddr.ip not in ("127.0.0.1", "::1")
    ]
    doctor = panel.manage("doctor")
    panel.until(lambda: "✗" not in panel.manage("doctor").stdout, 30)  # the agent's first report takes a moment
    assert "PostgreSQL" in doctor.stdout
    children = panel.tree()
    assert " ended (" not in panel.said()
    own = sockets(psutil.Process(panel.process.pid))
    for word in ("panel.web", "-Q loop", "-Q probe"):  # a connection that a copy closes is closed for `up`, too
        assert not own & sockets(panel.part(word))
    panel.process.send_signal(signal.SIGTERM)
    assert panel.process.wait(30) == 0, panel.said()
    assert "Stopped." in panel.said()
    assert not [child for child in children if child.is_running()]


def test_a_dead_part_is_started_again_with_a_sentence(panel: Panel) -> None:
    panel.up()
    web = panel.part("panel.web")
    web.kill()
    panel.until(lambda: "web ended (signal SIGKILL)" in panel.said())

    def back() -> bool:
        with contextlib.suppress(OSError):
            return panel.get("/healthz") == 200
        return False

    panel.until(back)
    assert panel.part("panel.web").pid != web.pid


def test_killed_it_leaves_nothing_behind_and_starts_again(panel: Panel) -> None:
    panel.up()
    children = panel.tree()
    panel.process.kill()
    panel.process.wait()
    panel.until(lambda: not [child for child in children if child.is_running()])
    panel.out.unlink()
    panel.up()
    assert panel.get("/healthz") == 200


def test_a_second_up_names_the_first(panel: Panel) -> None:
    panel.up()
    second = panel.manage("up")
    assert second.returncode == 1
    assert f"process {panel.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def test_down_stops_it(panel: Panel) -> None:
    panel.up()
    down = panel.manage("down", timeout=120)
    assert down.returncode == 0, down.stderr
    assert panel.process.wait(10) == 0
    assert "Berth does not run" in panel.manage("down").stdout


def test_a_database_from_the_future(panel: Panel) -> None:
    """Both `up` and `migrate` by hand say so and touch nothing."""
    from panel.embedded import Embedded

    panel.up().end()
    with Embedded(panel.data) as servers:
        import psycopg

        with psycopg.connect(servers.postgres.url()) as connection:
            connection.execute(
                "INSERT INTO django_migrations (app, name, applied) VALUES ('fleet', '0999_later', now())"
            )
        by_hand = panel.manage("migrate")
    for answer in (by_hand, panel.manage("up")):
        assert answer.returncode == 1
        assert "newer Berth" in answer.stderr
        assert "fleet.0999_later" in answer.stderr
        assert "Traceback" not in answer.stderr


def test_a_database_of_something_else(panel: Panel) -> None:
    from panel.embedded import Embedded

    with Embedded(panel.data) as servers:
        import psycopg

        with psycopg.connect(servers.postgres.url()) as connection:
            connection.execute("CREATE TABLE fleet_host (surprise int)")
    answer = panel.manage("up")
    assert answer.returncode == 1
    assert "not in a state that Berth knows" in answer.stderr
    assert "Traceback" not in answer.stderr


NOWHERE = "127.0.0.1:1"  # nothing listens on port 1


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"BERTH_BIND": "host.example:80"}, "BERTH_BIND='host.example:80' is not an address and a port"),
        ({"BERTH_BIND": "192.0.2.1:8080"}, "This machine has no address 192.0.2.1:8080"),
        ({"DATABASE_URL": "sqlite:///x"}, "PostgreSQL only"),
        ({"DATABASE_URL": f"postgresql://u@{NOWHERE}/x"}, "The database does not answer: "),
        ({"REDIS_URL": f"redis://{NOWHERE}"}, "The message server (Valkey or Redis) does not answer: "),
        ({"BERTH_TICK_S": "soon"}, "BERTH_TICK_S='soon' is not a number"),
    ],
)
def test_what_cannot_work_is_one_sentence(panel: Panel, env: dict[str, str], sentence: str) -> None:
    for command in ("up", "doctor"):
        answer = panel.manage(command, **env)
        assert answer.returncode == 1
        assert sentence in answer.stdout + answer.stderr
        assert "Traceback" not in answer.stderr


def test_a_taken_port_names_who_has_it(panel: Panel) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", panel.port))
        taken.listen()
        for command in ("up", "doctor"):
            answer = panel.manage(command)
            said = answer.stdout + answer.stderr
            assert answer.returncode == 1
            assert f"127.0.0.1:{panel.port} is taken" in said
            assert f"BERTH_BIND=127.0.0.1:{panel.port + 1}" in said
            assert f"process {os.getpid()}" in said


def test_an_unusable_folder(panel: Panel) -> None:
    panel.data.write_text("a file")
    for command in ("up", "doctor", "migrate"):
        answer = panel.manage(command)
        assert answer.returncode == 1
        assert "BERTH_DATA" in answer.stderr
        assert "Traceback" not in answer.stderr
