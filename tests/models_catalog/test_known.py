"""What did not change is not opened again, and what did is: the memory of a scan."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models_catalog.inspect import known
from models_catalog.inspect.known import Known
from models_catalog.inspect.scan import scan_roots
from tests.models_catalog.builders import gguf_bytes, hf_cache, hf_folder, safetensors_bytes
from tests.models_catalog.stores import TINY, ollama
from tests.models_catalog.zoo.gguf_models import EYES, MMPROJ


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of these tests are young; what that means is tested by itself."""
    monkeypatch.setattr(known, "SETTLE_NS", -(10**18))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    hf_folder(root / "hf")
    (root / "a-Q4_0.gguf").write_bytes(gguf_bytes())
    (root / "bad.gguf").write_bytes(b"no model")
    hf_cache(root, "org/m")
    ollama(root / "ollama", "m", TINY)
    return root


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the weight files whose headers were read."""
    from models_catalog.inspect import gguf_facts, hf

    found: list[str] = []
    for module, name in ((gguf_facts, "read_gguf"), (hf, "read_safetensors")):
        real = getattr(module, name)

        def spy(path: str, real: Any = real) -> Any:
            found.append(Path(path).name)
            return real(path)

        monkeypatch.setattr(module, name, spy)
    yield found


def scan(root: Path, memory: Path) -> list[dict[str, Any]]:
    return list(scan_roots([root], known=memory))


def test_the_file_that_sees_is_opened_once_too(tmp_path: Path, opened: list[str]) -> None:
    root, memory = tmp_path / "root", tmp_path / "memory"
    root.mkdir()
    (root / "m.gguf").write_bytes(gguf_bytes())
    (root / "mmproj-F16.gguf").write_bytes(gguf_bytes(MMPROJ, EYES))
    first = scan(root, memory)
    assert first[0]["facts"]["projector"] == "mmproj-F16.gguf"
    opened.clear()
    assert scan(root, memory) == first
    assert opened == []
    (root / "mmproj-F16.gguf").unlink()
    assert "projector" not in scan(root, memory)[0]["facts"]


def test_a_second_scan_says_the_same_and_opens_nothing(place: Path, tmp_path: Path, opened: list[str]) -> None:
    memory = tmp_path / "memory"
    first = scan(place, memory)
    assert len(first) == 6
    assert first == list(scan_roots([place]))
    opened.clear()
    assert scan(place, memory) == first
    assert opened == []
    assert memory.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kept_time", [False, True])
def test_only_what_changed_is_opened(place: Path, tmp_path: Path, opened: list[str], kept_time: bool) -> None:
    memory = tmp_path / "memory"
    scan(place, memory)
    opened.clear()
    file = place / "a-Q4_0.gguf"
    before = file.stat()
    file.write_bytes(gguf_bytes({"general.architecture": "qwen2"}))
    if kept_time:  # as a tool that copies times does
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = {item["path"]: item for item in scan(place, memory)}
    assert opened == ["a-Q4_0.gguf"]
    assert found[str(file)]["facts"]["architectures"] == ["qwen2"]


def test_a_change_in_the_folder_of_a_model_counts(place: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"

    def facts() -> dict[str, Any]:
        return next(item["facts"] for item in scan(place, memory) if item["path"] == str(place / "hf"))

    assert facts()["templates"] == ["default"]
    (place / "hf" / "additional_chat_templates").mkdir()
    assert facts()["templates"] == ["default"]
    (place / "hf" / "additional_chat_templates" / "rag.jinja").write_text("x")
    assert facts()["templates"] == ["default", "rag"]
    (place / "hf" / "model.safetensors").write_bytes(safetensors_bytes({"a": ("BF16", [7])}))
    assert facts()["parameters"] == 7
    (place / "a-Q4_0.gguf").rename(place / "hf" / "a-Q4_0.gguf")
    beside = {item["path"]: item["facts"] for item in scan(place, memory)}[str(place / "hf" / "a-Q4_0.gguf")]
    assert beside["config_beside"] is True


def test_what_is_gone_is_forgotten_and_a_broken_off_scan_forgets_nothing(place: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    scan(place, memory)

    def names() -> set[str]:
        database = sqlite3.connect(memory)
        try:
            return {row[0] for row in database.execute("SELECT name FROM found")}
        finally:
            database.close()

    before = names()
    running = scan_roots([place], known=memory)
    next(running)
    running.close()
    assert names() == before
    (place / "a-Q4_0.gguf").unlink()
    scan(place, memory)
    assert before - names() == {str(place / "a-Q4_0.gguf")}


def test_files_that_changed_just_now_are_not_trusted(
    place: Path, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "SETTLE_NS", 3600 * 10**9)
    memory = tmp_path / "memory"
    scan(place, memory)
    opened.clear()
    scan(place, memory)
    assert opened


def test_other_code_asks_anew(place: Path, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    scan(place, memory)
    opened.clear()
    monkeypatch.setattr(known, "_code_mark", lambda: "abcd")
    scan(place, memory)
    assert opened


@pytest.mark.parametrize("damage", ["text", "folder", "records"])
def test_a_broken_memory_costs_nothing_but_time(place: Path, tmp_path: Path, damage: str) -> None:
    memory = tmp_path / "memory"
    first = scan(place, memory)
    if damage == "text":
        memory.write_bytes(b"no database at all" * 100)
    elif damage == "folder":
        memory.unlink()
        memory.mkdir()
    else:
        database = sqlite3.connect(memory)
        database.execute("UPDATE found SET record = '[broken'")
        database.commit()
        database.close()
    assert scan(place, memory) == first
    assert scan(place, memory) == first


def test_two_scans_at_once_both_end(place: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    first = scan(place, memory)
    with Known(memory) as other:
        other.keep("x", "y", {"name": "x"}, 0)
        other._write()
        assert scan(place, memory) == first
