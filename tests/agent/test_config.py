"""The agent's settings: private, strict, and safe towards the panel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent import config


def write(folder: Path, settings: Any, mode: int = 0o600, token: str = "secret-token", token_mode: int = 0o600) -> None:
    for name, text, bits in (("agent.json", settings, mode), ("token", token, token_mode)):
        path = folder / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        path.chmod(bits)


GOOD = {"panel": "http://127.0.0.1:8000", "model_roots": ["~/models"], "runtimes": ["/opt/vllm/bin/vllm"]}


def test_settings(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    found = config.load(tmp_path, {"BERTH_ENGINE_CACHE": "/engines"})
    assert found.token == "secret-token" and "secret-token" not in repr(found)
    assert found.work_url == "http://127.0.0.1:8000/agent/v1/"
    assert found.model_roots == [Path.home() / "models"] and found.engine_cache == Path("/engines")


def test_the_usual_folders(tmp_path: Path) -> None:
    assert config.default_roots({"HOME": "/h"}) == [Path("/h/.cache/huggingface/hub"), Path("/h/models")]
    assert config.default_roots({"HOME": "/h", "HF_HOME": "/hf"})[0] == Path("/hf/hub")
    write(tmp_path, {"panel": "https://panel.example"})
    assert config.load(tmp_path, {"HOME": "/h"}).model_roots[1] == Path("/h/models")


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "[]",
        "{",
        {**GOOD, "panle": 1},
        {**GOOD, "model_roots": "/x"},
        {**GOOD, "runtimes": [1]},
        {**GOOD, "panel": "ftp://x"},
        {**GOOD, "panel": "http://10.0.0.1:8000"},
        {**GOOD, "panel": "http://evil"},
        {**GOOD, "max_jobs": 0},
        {**GOOD, "remote_code": "no"},
        {"model_roots": []},
    ],
)
def test_wrong_settings_are_one_sentence(tmp_path: Path, settings: Any) -> None:
    write(tmp_path, settings)
    with pytest.raises(config.ConfigError) as caught:
        config.load(tmp_path, {})
    assert "\n" not in str(caught.value) and "secret-token" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "token_mode", "token"),
    [(0o622, 0o600, "t"), (0o600, 0o644, "t"), (0o600, 0o600, ""), (0o600, 0o600, "a b"), (0o600, 0o600, "ü")],
)
def test_files_others_could_use_are_refused(tmp_path: Path, mode: int, token_mode: int, token: str) -> None:
    write(tmp_path, GOOD, mode, token, token_mode)
    with pytest.raises(config.ConfigError):
        config.load(tmp_path, {})


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError):
        config.load(tmp_path, {})
    write(tmp_path, GOOD)
    (tmp_path / "token").unlink()
    with pytest.raises(config.ConfigError):
        config.load(tmp_path, {})
    assert config.load(tmp_path, {}, with_panel=False).token == ""


def test_folders_that_are_added_later_count_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "token").chmod(0o600)
    write(tmp_path, {"panel": "http://127.0.0.1:1", "engine_cache": "/engines"})
    found = config.load(tmp_path, {"HOME": "/h"})
    assert Path("/engines/models") in found.model_roots
    write(tmp_path, {"panel": "http://127.0.0.1:1", "engine_cache": "/engines", "added_roots": ["/data/models"]})
    assert found.current_roots()[-1] == Path("/data/models")
    (tmp_path / "agent.json").write_text("{broken")
    assert found.current_roots() == found.model_roots
