"""A backup gives back what was there, proven table by table and log by log; what cannot be restored changes nothing."""

import gzip
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from panel import backup_proof
from panel.fleet import logstore
from tests.e2e.stack import ROOT, Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.operations.disks import small_disk
from tests.servers import Servers
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# What the restore itself writes: its act, and revisions that jump ahead of what hosts have seen.
ITS_OWN = {"audit_event", "fleet_host"}


@pytest.fixture(scope="module")
def stack(
    servers: Servers, django_test_environment: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A Berth with a ready, a talking and a failed deployment; logs with parts in the folder."""
    with django_db_blocker.unblock(), running(servers, tmp_path_factory.mktemp("backup")) as berth:
        make_fake_engine(berth.engines)
        make_fake_model(berth.models / "good", phase_s=0.02)
        make_fake_model(berth.models / "floods", phase_s=0.02, flood_mib=3)
        make_fake_model(berth.models / "broken", mode="traceback")
        berth.start_all()
        berth.scan()
        berth.deploy("broken", "broken", restart={"policy": "never"})
        berth.wait_for(berth.deploy("good", "good"), "ready")
        yield berth


def manage(env: dict[str, str], *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "manage.py", *args]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180, check=False, **more)


def made(stack: Stack, target: Path) -> Path:
    done = manage(stack.env, "backup", str(target))
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.split(": ")[0])


@contextmanager
def elsewhere(stack: Stack, servers: Servers, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a new machine: an empty database, an empty data folder."""
    name = f"elsewhere_{os.getpid()}_{folder.name[-20:]}".replace("-", "_").lower()
    from panel.core.database import own_connection

    with own_connection(dbname="postgres") as admin:
        admin.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload]
    try:
        yield {**stack.env, "DATABASE_URL": servers.url_of(name), "BERTH_DATA": str(folder / "new")}
    finally:
        with own_connection(dbname="postgres") as admin:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[call-overload]


def sums_of(url: str) -> backup_proof.Tables:
    import psycopg

    with psycopg.connect(url) as connection:
        return backup_proof.sums_in(connection)


def logs_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def quiet(stack: Stack) -> None:
    """Nobody writes any more."""
    for name in ("agent", "worker", "web"):
        if name in stack.procs and stack.procs[name].poll() is None:
            stack.kill(name)


def test_restored_while_a_deployment_starts_and_its_log_grows(stack: Stack, servers: Servers, tmp_path: Path) -> None:
    """The restore compares every table with the snapshot that the backup was made of, and says so by ending well."""
    row = stack.deploy("floods", "floods")
    stack.wait_for(row, "starting")
    file = made(stack, tmp_path)
    with elsewhere(stack, servers, tmp_path) as env:
        done = manage(env, "restore", str(file))
        assert done.returncode == 0, done.stderr
        import psycopg

        with psycopg.connect(env["DATABASE_URL"]) as connection:
            size, segments = connection.execute(
                "SELECT size, segments FROM fleet_joblog JOIN deployments_run USING (job_id)"
                " JOIN deployments_deployment d ON d.run_id = deployments_run.id WHERE d.name = 'floods'"
            ).fetchone() or (0, [])
        assert size > 0
        for start, end, name in segments:
            assert (tmp_path / "new" / "logs" / name).stat().st_size == end - start
    stack.wait_for(row, "ready", timeout=60)


def test_a_restored_panel_is_equal_table_by_table(stack: Stack, servers: Servers, tmp_path: Path) -> None:
    from panel.core.crypto import unseal
    from panel.fleet.models import Host, Job

    quiet(stack)
    before = sums_of(stack.env["DATABASE_URL"])
    filled = {name for name, (rows, _sum) in before.items() if rows}
    assert {"deployments_run", "fleet_job", "fleet_joblog", "audit_event", "fleet_reservation"} <= filled
    logs = logs_of(stack.data / "logs")
    assert logs
    revision = Host.objects.get(is_local=True).work_rev
    file = made(stack, tmp_path)
    with elsewhere(stack, servers, tmp_path) as env:
        done = manage(env, "restore", str(file))
        assert done.returncode == 0, done.stderr
        after = sums_of(env["DATABASE_URL"])
        assert backup_proof.differing(before, after) == sorted(ITS_OWN)
        assert after["audit_event"][0] == before["audit_event"][0] + 1, "its own act alone"
        assert logs_of(tmp_path / "new" / "logs") == logs
        import psycopg

        with psycopg.connect(env["DATABASE_URL"]) as connection:
            host = connection.execute("SELECT work_rev, token_hash, name FROM fleet_host WHERE is_local").fetchone()
            sealed = connection.execute("SELECT secrets FROM fleet_job WHERE secrets IS NOT NULL").fetchall()
        assert host is not None and host[0] == revision + 1_000_000
        assert sealed and all("VLLM_API_KEY" in unseal(secret) for (secret,) in sealed)
        # once more from the restored one: nothing gets lost on the way
        again = manage(env, "backup", str(tmp_path / "again.tar.gz"))
        assert again.returncode == 0, again.stderr
    assert sum(len(part.data) for job in Job.objects.filter(kind="engine") for part in logstore.read_all(job.pk))
    for name in ("web", "worker", "agent"):
        stack.start(name)
    until(stack.healthy, timeout=40, why="it goes on")


def test_one_that_is_only_looked_at_starts_nothing(stack: Stack, servers: Servers, tmp_path: Path) -> None:
    file = made(stack, tmp_path)
    with elsewhere(stack, servers, tmp_path) as env:
        done = manage(env, "restore", "--stopped", str(file))
        assert done.returncode == 0, done.stderr
        import psycopg

        with psycopg.connect(env["DATABASE_URL"]) as connection:
            wanted = connection.execute(
                "SELECT count(*) FROM deployments_deployment WHERE desired = 'running'"
            ).fetchone()
            told = connection.execute("SELECT count(*) FROM audit_event WHERE verb = 'deployment.stopped'").fetchone()
        assert wanted == (0,) and told is not None and told[0] >= 1


# --- what cannot be restored --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def good(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(stack, tmp_path_factory.mktemp("good"))


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def without_its_end(data: bytes) -> bytes:
    return data[:-8]


def one_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def one_bit_packed_again(data: bytes) -> bytes:
    """gzip's own sum is right: whoever changed it packed it again."""
    plain = bytearray(gzip.decompress(data))
    place = plain.index(b"deployment.created")
    plain[place] ^= 1
    return gzip.compress(bytes(plain), 1)


@pytest.mark.parametrize("harm", [cut, without_its_end, one_bit, one_bit_packed_again])
def test_a_file_that_was_cut_or_changed_is_refused(
    stack: Stack, servers: Servers, tmp_path: Path, good: Path, harm: Any
) -> None:
    file = tmp_path / "harmed.tar.gz"
    file.write_bytes(harm(good.read_bytes()))
    with elsewhere(stack, servers, tmp_path) as env:
        assert manage(env, "restore", str(good)).returncode == 0
        before, logs = sums_of(env["DATABASE_URL"]), logs_of(tmp_path / "new")
        done = manage(env, "restore", "--replace", str(file))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "was cut or changed" in done.stderr or "cannot be read" in done.stderr, done.stderr
        assert sums_of(env["DATABASE_URL"]) == before and logs_of(tmp_path / "new") == logs


def test_rows_that_came_in_otherwise_are_not_kept(stack: Stack, servers: Servers, tmp_path: Path, good: Path) -> None:
    """As if pg_restore had lost something without a word: the manifest knows better."""
    import hashlib
    import io
    import json

    file = tmp_path / "other.tar.gz"
    with tarfile.open(good) as old, tarfile.open(file, "w:gz", compresslevel=1) as new:
        sums: dict[str, str] = {}
        for entry in old.getmembers():
            content = old.extractfile(entry).read()  # type: ignore[union-attr]
            if entry.name == "manifest.json":
                manifest = json.loads(content)
                manifest["tables"]["deployments_run"][0] += 1
                content = json.dumps(manifest).encode()
            elif entry.name == backup_proof.SUMS:
                content = json.dumps(sums).encode()
            entry.size = len(content)
            sums[entry.name] = hashlib.sha256(content).hexdigest()
            new.addfile(entry, io.BytesIO(content))
    with elsewhere(stack, servers, tmp_path) as env:
        assert manage(env, "restore", str(good)).returncode == 0
        before = sums_of(env["DATABASE_URL"])
        done = manage(env, "restore", "--replace", str(file))
        assert done.returncode == 1 and "deployments_run" in done.stderr, done.stderr
        assert sums_of(env["DATABASE_URL"]) == before, "what was there is there again"


# --- a full disk --------------------------------------------------------------------------------------------------------
def test_a_backup_onto_a_full_disk_leaves_nothing_half(stack: Stack, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "200k") as disk:
        done = manage(stack.env, "backup", str(disk))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "No space left" in done.stderr, done.stderr
        assert list(disk.iterdir()) == []


def test_a_restore_onto_a_full_disk_changes_nothing(stack: Stack, servers: Servers, tmp_path: Path, good: Path) -> None:
    with elsewhere(stack, servers, tmp_path) as env, small_disk(tmp_path / "new", "200k") as disk:
        done = manage(env, "restore", str(good))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "needs at least" in done.stderr and "larger disk" in done.stderr, done.stderr
        assert sums_of(env["DATABASE_URL"]) == {}
        assert not (disk / "logs").exists() and not list(disk.glob(".restore-*"))
