"""`manage.py backup` and `restore`: what was there is there again, and hosts that went on meanwhile obey again."""

import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connections

from deployments import services
from deployments.models import Deployment
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet import logstore
from panel.fleet.models import Host
from tests.e2e import stack as stacks
from tests.e2e.stack import Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.panel.running import ROOT, Panel
from tests.servers import Servers
from tests.waiting import free_port, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def stack(servers: Servers, django_test_environment: None, django_db_blocker: Any, tmp_path: Path) -> Iterator[Stack]:
    with django_db_blocker.unblock(), running(servers, tmp_path) as berth:
        make_fake_engine(berth.engines)
        make_fake_model(berth.models / "good", phase_s=0.05)
        berth.start_all()
        berth.scan()
        yield berth


def manage(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "manage.py", *args]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180, check=False)


def done(env: dict[str, str], *args: str) -> str:
    answer = manage(env, *args)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def move_to(name: str) -> None:
    """This process's ORM works on another database of the same server from now on."""
    connections.close_all()
    stacks._close_pool()
    connections["default"].settings_dict["NAME"] = django_settings.DATABASES["default"]["NAME"] = name


@pytest.fixture
def empty_database(servers: Servers) -> Iterator[str]:
    name = f"restored_{os.getpid()}"
    stacks._admin(f'CREATE DATABASE "{name}"')
    yield name
    stacks._admin(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def test_a_new_panel_goes_on_where_the_backup_was(
    stack: Stack, servers: Servers, empty_database: str, tmp_path: Path
) -> None:
    User.objects.create_user("maria", password="correct horse battery", role="operator")
    kept = stack.wait_for(stack.deploy("kept", "good"), "ready")
    run, (process,) = kept.run, stack.job_processes(kept.run.job_id)
    log = b"".join(part.data for part in logstore.read_all(run.job_id))
    file = Path(done(stack.env, "backup", str(tmp_path)).split(": ")[0])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Event.objects.filter(verb="backup.made").exists()
    events = Event.objects.exclude(verb="backup.made").count()

    # what happens afterwards is not in the file, and the host sees more of it than the restored panel knows
    later = stack.wait_for(stack.deploy("later", "good"), "ready")
    for _n in range(3):
        Host.objects.filter(is_local=True).update(work_rev=stack.host().work_rev + 1)
    newest = stack.host().work_rev
    late_job = later.run.job_id
    for name in ("web", "worker"):
        stack.kill(name)

    before = str(connections["default"].settings_dict["NAME"])
    try:
        new = {**stack.env, "DATABASE_URL": servers.url_of(empty_database), "BERTH_DATA": str(tmp_path / "new")}
        with psycopg.connect(new["DATABASE_URL"]):  # as web and workers of a compose file would
            refused = manage(new, "restore", str(file))
            assert refused.returncode == 1 and "in use: 1 connections" in refused.stderr
        assert "Restored" in done(new, "restore", str(file))
        move_to(empty_database)
        assert Host.objects.get(is_local=True).work_rev > newest
        assert User.objects.get(username="maria").check_password("correct horse battery")
        assert Event.objects.count() == events + 1 and Event.objects.filter(verb="backup.restored").exists()
        stack.env, old_data = new, stack.data
        for name in ("web", "worker"):
            stack.start(name)
        until(stack.healthy, timeout=40, why="web answers")
        # the run that the backup knows is found again as it is; the one that it does not know ends
        until(lambda: not stack.job_processes(late_job), timeout=60, why="the unknown engine ends\n" + stack.logs())
        kept = Deployment.objects.get(name="kept")
        stack.wait_for(kept, "ready")
        assert kept.run.pk == run.pk and process.is_running()
        assert not Deployment.objects.filter(name="later").exists()
        with_logs = {**django_settings.STORAGES["logs"], "OPTIONS": {"location": tmp_path / "new" / "logs"}}
        from django.test import override_settings

        with override_settings(STORAGES={**django_settings.STORAGES, "logs": with_logs}):
            assert b"".join(part.data for part in logstore.read_all(run.job_id)).startswith(log)
        # and a new order reaches the host
        services.stop(kept, actor=None)
        stack.wait_for(kept, "stopped", timeout=40)
        assert not process.is_running() and old_data.exists()
    finally:
        move_to(before)


@pytest.fixture
def panel(tmp_path: Path) -> Iterator[Panel]:
    one = Panel(tmp_path / "data", free_port())
    yield one
    one.end()


def test_the_embedded_servers_of_a_new_machine_take_it_over(panel: Panel, tmp_path: Path) -> None:
    """One command each, while it runs and while it does not; the key comes along, so that secrets stay readable."""
    panel.up()
    said = subprocess.run(
        [sys.executable, "manage.py", "createadmin", "ada"],
        cwd=ROOT, env=panel.env, input="correct horse battery\n", text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    first = done(panel.env, "backup", str(tmp_path / "first.tar.gz"))
    assert "MiB" in first
    refused = manage(panel.env, "restore", str(tmp_path / "first.tar.gz"))
    assert refused.returncode == 1 and "Berth runs in" in refused.stderr
    panel.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]  # it runs
    panel.process.wait(60)  # type: ignore[union-attr]
    done(panel.env, "backup", str(tmp_path / "second.tar.gz"))
    with tarfile.open(tmp_path / "second.tar.gz") as archive:
        assert {"manifest.json", "secret.key", "database.dump"} <= set(archive.getnames())

    new = Panel(tmp_path / "new" / "data", panel.port)
    (tmp_path / "new").mkdir()
    done(new.env, "restore", str(tmp_path / "second.tar.gz"))
    assert (new.data / "secret.key").read_text() == (panel.data / "secret.key").read_text()
    try:
        new.up()
        assert "Create the first admin" not in new.said(), "the admin is there"
        new.until(lambda: "✗" not in manage(new.env, "doctor").stdout, 40)  # the agent of the new machine reports
    finally:
        new.end()
    # people's data is not overwritten by mistake
    again = manage(new.env, "restore", str(tmp_path / "first.tar.gz"))
    assert again.returncode == 1 and "1 accounts" in again.stderr and "--replace" in again.stderr
    done(new.env, "restore", "--replace", str(tmp_path / "first.tar.gz"))


def test_what_cannot_be_restored_is_one_sentence_and_changes_nothing(panel: Panel, tmp_path: Path) -> None:
    env = {**panel.env, "BERTH_LOCAL_AGENT": "0"}
    good = tmp_path / "good.tar.gz"
    panel.up().end()
    done(env, "backup", str(good))

    def changed(name: str, **values: Any) -> Path:
        path = tmp_path / name
        with tarfile.open(good) as old, tarfile.open(path, "w:gz") as new:
            for entry in old.getmembers():
                content = old.extractfile(entry)
                assert content is not None
                if entry.name == "manifest.json":
                    raw = json.dumps({**json.load(content), **values}).encode()
                    entry.size = len(raw)
                    import io

                    content = io.BytesIO(raw)
                elif entry.name == "database.dump" and values.get("broken"):
                    entry.size //= 2
                new.addfile(entry, content)
        return path

    other = tmp_path / "other.tar.gz"
    other.write_text("not a tar")
    cases = {
        str(other): "cannot be read",
        str(tmp_path / "absent.tar.gz"): "cannot be read",
        str(changed("format.tar.gz", format=99)): "no backup that this version",
        str(changed("newer.tar.gz", migrations=["fleet.0999_later"])): "fleet.0999_later",
        str(changed("half.tar.gz", broken=True)): "was cut or changed",
    }
    key = (panel.data / "secret.key").read_text()
    for path, sentence in cases.items():
        answer = manage(env, "restore", "--replace", path)
        assert answer.returncode == 1 and sentence in answer.stderr, (path, answer.stderr)
        assert "Traceback" not in answer.stderr
    foreign = manage({**env, "BERTH_SECRET_KEY": "x" * 60}, "restore", "--replace", str(good))
    assert foreign.returncode == 1 and "another secret key" in foreign.stderr
    assert (panel.data / "secret.key").read_text() == key
    panel.out.unlink()
    panel.up()  # the database that was there before is there still
    assert manage(env, "backup", str(good)).returncode == 1  # nothing is overwritten
