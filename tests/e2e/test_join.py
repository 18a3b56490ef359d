"""A second machine joins by the one pasted command, over a certificate that nobody vouches for; all of it real.

The script runs under sh with a home of its own and without systemd; engines are small scripts.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.test import Client, override_settings

from tests.e2e.joined import Front, Machine, code_of, machine
from tests.e2e.stack import Stack, running
from tests.servers import Servers
from tests.waiting import until

SLEEP = "print('up', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    return Front(tmp_path_factory.mktemp("front"))


@pytest.fixture(scope="module")
def stack(
    servers: Servers,
    django_test_environment: None,
    django_db_blocker: Any,
    tmp_path_factory: pytest.TempPathFactory,
    front: Front,
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("join")
    with django_db_blocker.unblock(), running(servers, folder, env=front.env) as berth:
        from panel.accounts.models import User

        User.objects.create_user(username="ada", password="harbour lights at nine", role="admin")
        front.start(berth)
        berth.start("worker")
        with override_settings(BERTH_PUBLIC_URL=front.url):
            yield berth


@pytest.fixture
def box(stack: Stack, tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "box") as made:
        yield made


def made_code(name: str, **more: str) -> Any:
    """The page after an admin asked for a code: its context."""
    from panel.accounts.models import User

    client = Client()
    client.force_login(User.objects.get(username="ada"))
    answer = client.post("/hosts/new", {"host_name": name, **more})
    assert answer.status_code == 200, answer.content.decode()
    return answer.context


def host(name: str) -> Any:
    from panel.fleet.models import Host

    return Host.objects.get(name=name)


def reported(name: str) -> Any:
    """The host, once its agent has reported since it joined."""

    def look() -> Any:
        row = host(name)
        return row if row.facts_at and row.last_seen_at and not row.lost_at else None

    return until(look, why=f"{name} reports")


def joined(box: Machine, name: str) -> Any:
    done = box.paste(made_code(name)["command"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Joined as {name}." in done.stdout
    box.configure(report_s=0.3)
    return reported(name)


def engine(box: Machine, row: Any) -> Any:
    """A running engine on that machine, as its job."""
    from panel.fleet import services, wire

    model = box.home / "models/small"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text("{}")
    path = box.home / "engine.py"
    path.write_text(f"#!{sys.executable} -IS\nimport time\n{SLEEP}\n")
    path.chmod(0o755)
    box.configure(model_roots=[str(box.home / "models")], runtimes=[str(path)])
    assert box.script().returncode == 0  # the settings are read at the start
    argv = [str(path), "serve", str(model), "--host", "127.0.0.1", "--port", wire.PORT_PLACE]
    job = services.order_job(host=row, task=wire.EngineTask(argv=argv, model_path=str(model)), grace_s=2.0)
    return wait_state(job, "running")


def wait_state(job: Any, *states: str) -> Any:
    def look() -> Any:
        job.refresh_from_db()
        return job if job.state in states else None

    return until(look, why=f"the job is one of {states}")


def pid_of(job: Any) -> int:
    return int(job.status["pid"])


def test_one_command_makes_a_host_and_the_page_says_so(stack: Stack, box: Machine, front: Front) -> None:
    context = made_code("gpu-1")
    assert context["trust"] == "pinned" and "--pin sha256:" in context["command"]
    page = f"/hosts/codes/{context['row'].pk}/?part=wait"
    admin = Client(headers={"HX-Request": "true"})
    from panel.accounts.models import User

    admin.force_login(User.objects.get(username="ada"))
    assert "Waiting for the machine" in admin.get(page).content.decode()
    done = box.paste(context["command"])
    assert done.returncode == 0, done.stdout + done.stderr
    row = reported("gpu-1")
    answer = admin.get(page)
    assert answer.status_code == 286 and "gpu-1 has joined" in answer.content.decode()
    config = box.config()
    assert (config["panel"], config["host_id"]) == (front.url, row.pk)
    assert config["panel_pin"].startswith("sha256:")
    for path, mode in (("agent", 0o700), ("agent/token", 0o600), ("agent/agent.json", 0o600)):
        assert stat.S_IMODE((box.dir / path).stat().st_mode) == mode, path
    assert code_of(context["command"]) not in "".join(
        p.read_text(errors="replace") for p in box.dir.rglob("*") if p.is_file() and "versions" not in p.parts
    )


def test_the_command_twice_is_an_update_and_engines_go_on(stack: Stack, box: Machine) -> None:
    row = joined(box, "gpu-2")
    job = engine(box, row)
    (before,) = box.agents()
    code = made_code("gpu-2x")  # a code that was used up elsewhere
    with machine(box.home.parent / "other") as other:
        assert other.paste(code["command"]).returncode == 0
    done = box.paste(code["command"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "had joined before" in done.stdout
    (after,) = box.agents()
    assert after != before and psutil.pid_exists(pid_of(job))
    seen = host("gpu-2").last_seen_at
    until(lambda: host("gpu-2").last_seen_at > seen, why="the new agent is let in at once")
    job.refresh_from_db()
    assert (job.state, job.status["pid"]) == ("running", pid_of(job))
    assert host("gpu-2").link_trouble == {}


def test_a_used_code_and_a_wrong_fingerprint_leave_nothing_running(stack: Stack, box: Machine) -> None:
    context = made_code("gpu-3")
    wrong = context["command"].replace("--pin sha256:", "--pin sha256:" + "0" * 64 + " --pin sha256:")
    wrong = wrong[: wrong.rindex(" --pin")]
    done = box.paste(wrong)
    assert done.returncode == 1 and "pinned" in done.stderr, done.stderr
    assert not box.agents() and not (box.dir / "agent/token").exists()
    assert box.paste(context["command"]).returncode == 0, "the code was not used up"
    with machine(box.home.parent / "late") as late:
        done = late.paste(context["command"])
        assert done.returncode == 1 and "not valid" in done.stderr and "/hosts/new" in done.stderr
        assert not late.agents()


def test_a_script_that_was_changed_on_its_way_does_not_run(stack: Stack, box: Machine) -> None:
    command = made_code("gpu-4")["command"]
    at = command.index("echo '") + 6
    done = box.paste(command[:at] + ("0" if command[at] != "0" else "1") + command[at + 1 :])
    assert done.returncode != 0 and "FAILED" in done.stdout
    assert not (box.dir / "agent").exists()


def test_remove_ends_engines_tells_the_panel_and_leaves_nothing(stack: Stack, box: Machine) -> None:
    row = joined(box, "gpu-5")
    job = engine(box, row)
    pid = pid_of(job)
    refused = box.script("--remove")
    assert refused.returncode == 1 and "--keep-engines" in refused.stderr and psutil.pid_exists(pid)
    done = box.script("--remove", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not psutil.pid_exists(pid) and not box.dir.exists()
    until(lambda: not box.processes(), why="nothing of it is left, the door neither")
    job.refresh_from_db()
    row = host("gpu-5")
    assert (job.state, row.link_trouble["code"]) == ("ended", "link.left")
    assert row.lost_at is not None


def test_remove_can_leave_engines_alone(stack: Stack, box: Machine) -> None:
    job = engine(box, joined(box, "gpu-6"))
    done = box.script("--remove", "--keep-engines")
    assert done.returncode == 0, done.stdout + done.stderr
    process = psutil.Process(pid_of(job))
    assert process.is_running() and not box.dir.exists()
    shim = process.ppid()
    until(lambda: set(box.processes()) == {process.pid, shim}, why="only the engine and its shim are left")


def old_version(box: Machine) -> None:
    """As if the agent had been installed by an older panel, which spoke another wire."""
    (now,) = (box.dir / "versions").iterdir()
    old = now.with_name("0.0.1-000000000000")
    now.rename(old)
    version, contract = old / "panel/fleet/agent/version.py", old / "panel/fleet/wire.py"
    version.write_text(version.read_text().replace('VERSION = "', 'VERSION = "0.0.1+'))
    contract.write_text(contract.read_text().replace("WIRE_VERSION = 1", "WIRE_VERSION = 0"))
    command = box.dir / "berth-agent"
    command.write_text(command.read_text().replace(str(now), str(old)))


def test_an_older_agent_says_so_keeps_its_engines_and_updates_itself(stack: Stack, box: Machine) -> None:
    job = engine(box, joined(box, "gpu-7"))
    pid = pid_of(job)
    old_version(box)
    for agent in box.agents():
        psutil.Process(agent).kill()
    box.sh("-c", f"nohup setsid {box.dir}/berth-agent >>{box.dir}/agent.log 2>&1 &")
    until(lambda: host("gpu-7").link_trouble.get("code") == "link.version", why="the panel refuses the older wire")
    until(lambda: "berth-agent --update" in (box.dir / "agent.log").read_text(), why="the agent says what to run")
    assert psutil.pid_exists(pid)
    done = box.sh(str(box.dir / "berth-agent"), "--update")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = host("gpu-7").last_seen_at
    until(lambda: host("gpu-7").last_seen_at > seen, why="the new agent reports")
    job.refresh_from_db()
    assert job.state == "running" and psutil.pid_exists(pid)
    assert [path.name for path in (box.dir / "versions").iterdir()] != ["0.0.1-000000000000"]


def test_a_copied_machine_starts_nothing_until_it_joins_for_itself(stack: Stack, box: Machine, tmp_path: Path) -> None:
    job = engine(box, joined(box, "gpu-8"))
    with machine(tmp_path / "copy") as copy:
        shutil.copytree(box.dir, copy.dir, symlinks=True, ignore=shutil.ignore_patterns("agent.log"))
        command = copy.dir / "berth-agent"
        command.write_text(command.read_text().replace(str(box.dir), str(copy.dir)))
        start = copy.sh("-c", f"nohup setsid {command} >>{copy.dir}/agent.log 2>&1 &")
        assert start.returncode == 0
        until(lambda: "link.twin" in (copy.dir / "agent.log").read_text(), why="the copy is refused")
        assert host("gpu-8").link_trouble["code"] == "link.twin"
        job.refresh_from_db()
        assert job.state == "running" and psutil.pid_exists(pid_of(job))
        done = copy.paste(made_code("gpu-9")["command"])
        assert done.returncode == 0, done.stdout + done.stderr
        reported("gpu-9")
        assert copy.config()["host_id"] == host("gpu-9").pk
    job.refresh_from_db()
    assert job.state == "running" and psutil.pid_exists(pid_of(job)), "the copy did not touch the original's engine"


def test_a_host_is_joined_again_under_its_name(stack: Stack, box: Machine, tmp_path: Path) -> None:
    row = joined(box, "gpu-10")
    with machine(tmp_path / "heir") as heir:
        done = heir.paste(made_code("gpu-10", again="on")["command"])
        assert done.returncode == 0, done.stdout + done.stderr
        until(lambda: "link.token" in (box.dir / "agent.log").read_text(), why="the older key has ended")
        assert heir.config()["host_id"] == row.pk
        seen = host("gpu-10").last_seen_at
        until(lambda: host("gpu-10").last_seen_at > seen, why="the heir reports")


def test_only_one_script_at_a_time(stack: Stack, box: Machine) -> None:
    joined(box, "gpu-11")
    with (box.dir / ".berth-agent").open("a") as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        done = box.script("--update")
        assert done.returncode == 1 and "runs already" in done.stderr
    done = box.script("--update")
    assert done.returncode == 0 and done.stdout.rstrip().endswith(f"--remove --dir {box.dir}"), done.stdout
    assert subprocess.run(["sh", str(box.dir / "berth-join.sh"), "--help"], capture_output=True).returncode == 0


def other_user(box: Machine) -> str:
    """A user without rights, and a Python that it can run with the tests' packages; skips where there is none."""
    from panel.fleet.joining import agent_bundle

    box.home.chmod(0o755)
    box.prepare(agent_bundle.requirements())
    (python,) = (box.dir / "venvs").glob("*/bin/python")
    packages = ":".join(path for path in sys.path if path.endswith("-packages"))
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{packages}"\nexec /usr/bin/python3 "$@"\n')
    for folder in (*python.parents,):
        if folder.is_relative_to(box.home):
            folder.chmod(0o755)
    python.chmod(0o755)
    if os.getuid() != 0:
        pytest.skip("only root can run the agent as another user")
    asked = ["su", "-s", "/bin/sh", "-c", f"{python} -c 'import httpx, psutil, pydantic, uvicorn'", "nobody"]
    if subprocess.run(asked, capture_output=True, timeout=60).returncode != 0:
        pytest.skip("no Python here that another user could run with these packages")
    return "nobody"


@pytest.fixture
def shared(stack: Stack) -> Iterator[Machine]:
    """A machine whose folder others may enter, as /var/lib is."""
    with tempfile.TemporaryDirectory(prefix="berth-box-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with machine(Path(folder) / "box") as made:
            yield made


def test_an_agent_of_another_user_leads_root_nowhere(stack: Stack, shared: Machine) -> None:
    user = other_user(shared)
    done = shared.paste(made_code("gpu-12")["command"], "--user", user)
    assert done.returncode == 0, done.stdout + done.stderr
    row = reported("gpu-12")
    assert [psutil.Process(pid).username() for pid in shared.agents()] == [user]
    assert "--user" not in shared.script("--update").stdout
    assert f"runs as {user}" in shared.script("--update").stderr
    # What an engine that went bad could leave for root in its user's folder.
    mine = shared.home / "mine"
    mine.write_text("root's")
    mine.chmod(0o600)
    for name in ("token.new", "agent.json.new", "panel-ca.pem"):
        (shared.dir / "agent" / name).symlink_to(mine)
    again = shared.paste(made_code("gpu-12", again="on")["command"])
    assert mine.read_text() == "root's" and mine.owner() == "root", again.stdout + again.stderr
    assert [psutil.Process(pid).username() for pid in shared.agents()] == [user], "the older agent goes on"
    for name in ("token.new", "agent.json.new", "panel-ca.pem"):
        (shared.dir / "agent" / name).unlink()
    done = shared.paste(made_code("gpu-12", again="on")["command"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert shared.config()["host_id"] == row.pk
    done = shared.script("--remove", "--yes")
    assert done.returncode == 0 and not shared.dir.exists() and not shared.agents(), done.stdout + done.stderr
    assert host("gpu-12").link_trouble["code"] == "link.left"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_lost_connection_while_it_updates_leaves_an_agent_that_runs(
    stack: Stack, box: Machine, number: signal.Signals
) -> None:
    joined(box, f"gpu-13-{number}")
    command = made_code(f"gpu-14-{number}")["command"]
    (python,) = (box.dir / "venvs").glob("*/bin/python")
    waiting = box.home / "waiting"
    slow = f'case "$*" in *--join*) touch {waiting}; exec sleep 1.5 ;; esac'
    python.write_text(f'#!/bin/sh\n{slow}\nexec {sys.executable} "$@"\n')
    script = ["sh", str(box.dir / "berth-join.sh"), code_of(command), "--dir", f"{box.dir}/", "--no-service"]
    # A terminal ends its programs by HUP; one that these tests were started from with nohup would pass on a deaf ear.
    heard = ["env", "--default-signal=HUP,TERM", *script]
    with (box.home / "out").open("w") as out:
        asked = subprocess.Popen(heard, cwd=box.home, env=box.env, stdout=out, stderr=out)
    until(waiting.exists, why="it is at the panel")
    assert not box.agents()
    asked.send_signal(number)
    assert asked.wait(30) == 128 + number
    assert len(box.agents()) == 1, (box.home / "out").read_text()


def test_one_folder_is_one_folder_however_it_is_written(stack: Stack, box: Machine) -> None:
    joined(box, "gpu-15")
    (before,) = box.agents()
    for written in (f"{box.dir}/", f"{box.home}//./berth", "berth/"):
        done = box.sh(str(box.dir / "berth-join.sh"), "--dir", written, "--no-service")
        assert done.returncode == 0, done.stdout + done.stderr
        (after,) = box.agents()
        assert after != before, written
        before = after
    odd = box.home / "it's here"
    odd.mkdir()
    for folder, words in ((odd, "berth"), (box.home, "berth/../berth")):
        done = subprocess.run(
            ["sh", str(box.dir / "berth-join.sh"), "--dir", words, "--no-service"],
            cwd=folder,
            env=box.env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1 and "the folder's name" in done.stderr, done.stderr
