"""Scanning folders: what is found, what a broken disk does to it, and that nothing outside the roots is read."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models_catalog.facts import ModelFacts
from models_catalog.inspect import scan
from models_catalog.inspect.scan import scan_roots
from panel.fleet.wire import ScannedModel
from tests.models_catalog.builders import gguf_bytes, hf_cache, hf_folder


def whole(item: ScannedModel) -> ScannedModel:
    """With all facts, those too that are not known."""
    return item.model_copy(update={"facts": ModelFacts.from_dict(item.facts).to_dict()})


def models(*roots: Path, **bounds: int) -> list[ScannedModel]:
    return [whole(item) for item in everything(*roots, **bounds) if item.format != "folder"]


def everything(*roots: Path, **bounds: int) -> list[ScannedModel]:
    return [ScannedModel.model_validate(item) for item in scan_roots(list(roots), **bounds)]


def codes(item: ScannedModel) -> list[str]:
    return [problem.code for problem in item.problems]


def test_finds_folders_and_files_and_reports_each_root(tmp_path: Path) -> None:
    hf_folder(tmp_path / "SmolLM2")
    hf_folder(tmp_path / "Qwen" / "Qwen3-8B")
    (tmp_path / "loose-Q4_0.gguf").write_bytes(gguf_bytes())
    (tmp_path / "notes.txt").write_text("no model")
    items = everything(tmp_path)
    assert [(i.format, i.name, Path(i.path).relative_to(tmp_path).as_posix()) for i in items] == [
        ("gguf", "loose", "loose-Q4_0.gguf"),
        ("hf", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("hf", "SmolLM2", "SmolLM2"),
        ("folder", tmp_path.name, "."),
    ]
    assert items[-1].files == 3
    assert all(not item.problems for item in items)


def test_the_hugging_face_cache(tmp_path: Path) -> None:
    snapshot = hf_cache(tmp_path / "huggingface" / "hub", "HuggingFaceTB/SmolLM2")
    shutil.rmtree(tmp_path / "huggingface" / "hub" / ".made")
    (tmp_path / "huggingface" / "xet" / "m").mkdir(parents=True)
    hf_folder(tmp_path / "huggingface" / "xet" / "m")
    for root in (tmp_path, tmp_path / "huggingface", tmp_path / "huggingface" / "hub"):
        found = models(root)
        assert [(item.name, item.path) for item in found] == [("HuggingFaceTB/SmolLM2", str(snapshot))]
        assert codes(found[0]) == []
        assert (found[0].facts["revision"], found[0].facts["refs"]) == ("a" * 40, ["main"])


def test_the_cache_below_a_home_folder(tmp_path: Path) -> None:
    hf_cache(tmp_path / ".cache" / "huggingface" / "hub", "org/m")
    hf_folder(tmp_path / ".hidden" / "m")
    assert [item.name for item in models(tmp_path)] == ["org/m"]


def test_a_broken_off_download_in_the_cache(tmp_path: Path) -> None:
    snapshot = hf_cache(tmp_path, "org/m", incomplete=2)
    assert codes(models(tmp_path)[0]) == ["leftover_parts"]  # everything is there
    (snapshot / "model.safetensors").unlink()
    found = models(tmp_path)[0]
    assert codes(found) == ["incomplete_download", "missing_weights"]
    assert found.problems[0].params == {"files": 2}


def test_a_download_without_a_snapshot_is_seen(tmp_path: Path) -> None:
    snapshot = hf_cache(tmp_path, "org/m", incomplete=1)
    shutil.rmtree(snapshot.parent)
    found = models(tmp_path)
    assert [(item.name, codes(item)) for item in found] == [("org/m", ["incomplete_download"])]


def test_a_snapshot_whose_blob_was_deleted(tmp_path: Path) -> None:
    snapshot = hf_cache(tmp_path, "org/m")
    (snapshot / "model.safetensors").resolve().unlink()
    assert codes(models(tmp_path)[0]) == ["broken_link", "missing_weights"]


def test_split_gguf_is_one_model_and_a_missing_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "big-00001-of-00003.gguf").write_bytes(gguf_bytes())
    (tmp_path / "big-00003-of-00003.gguf").write_bytes(gguf_bytes({}))
    found = models(tmp_path)
    assert [item.path for item in found] == [str(tmp_path / "big-00001-of-00003.gguf")]
    assert found[0].problems[0].code == "missing_parts"
    assert found[0].problems[0].params == {"files": ["big-00002-of-00003.gguf"]}
    (tmp_path / "big-00002-of-00003.gguf").write_bytes(gguf_bytes({}))
    whole = models(tmp_path)[0]
    assert codes(whole) == []
    assert whole.facts["parameters"] == 3 * (64 * 4 + 64 * 64)
    assert whole.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "zero_bytes"),
        (gguf_bytes()[:-100], "truncated"),
        (gguf_bytes()[:60], "truncated"),
        (b"<html>404</html>" * 4, "not_gguf"),
        (gguf_bytes({"general.architecture": "clip"}), "projector_only"),
        (gguf_bytes({"general.architecture": "llama", "general.type": "adapter"}), "adapter_only"),
    ],
)
def test_unusable_gguf_files_are_listed_with_the_reason(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    assert code in codes(models(tmp_path)[0])


def test_a_gguf_says_whether_config_and_tokenizer_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf_bytes())
    assert models(tmp_path)[0].facts["config_beside"] is False
    (tmp_path / "config.json").write_text('{"theme": 1}')
    (tmp_path / "tokenizer.json").write_text("{}")
    assert models(tmp_path)[0].facts["config_beside"] is True


def test_links_never_lead_outside_the_roots(tmp_path: Path) -> None:
    secret, root = tmp_path / "secret", tmp_path / "root"
    hf_folder(secret / "m")
    (secret / "x.gguf").write_bytes(gguf_bytes())
    root.mkdir()
    (root / "folder").symlink_to(secret)
    (root / "x.gguf").symlink_to(secret / "x.gguf")
    hf_folder(root / "mine", model__safetensors=None)
    (root / "mine" / "model.safetensors").symlink_to(secret / "m" / "model.safetensors")
    found = models(root)
    assert [item.name for item in found] == ["mine"]
    assert codes(found[0]) == ["link_outside", "missing_weights"]
    # With both folders allowed the same links are fine.
    assert {codes(item)[0] if item.problems else "" for item in models(root, secret)} == {""}


def test_link_cycles_end(tmp_path: Path) -> None:
    hf_folder(tmp_path / "a" / "m")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    assert len(models(tmp_path)) == 1


def test_a_model_reached_twice_is_listed_once(tmp_path: Path) -> None:
    hf_folder(tmp_path / "a" / "m")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert len(models(tmp_path, tmp_path / "a")) == 1


def test_missing_and_odd_roots_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    items = everything(tmp_path / "gone", tmp_path / "file")
    assert [codes(item) for item in items] == [["root_missing"], ["not_a_folder"]]


@pytest.mark.skipif(os.geteuid() != 0 and not hasattr(os, "setresuid"), reason="needs file permissions")
def test_a_folder_without_permission_is_a_problem_and_the_rest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_folder(tmp_path / "good")
    locked = tmp_path / "locked"
    locked.mkdir()
    real = os.scandir

    def guarded(path: Any) -> Any:  # root reads everything, so the refusal is made here
        if str(path) == str(locked):
            raise PermissionError(13, "denied")
        return real(path)

    monkeypatch.setattr(scan.os, "scandir", guarded)
    items = everything(tmp_path)
    assert [item.name for item in items[:-1]] == ["good"]
    assert [(p.code, p.params) for p in items[-1].problems] == [("no_permission", {"folder": str(locked)})]


def test_a_folder_that_vanishes_during_the_scan(tmp_path: Path) -> None:
    hf_folder(tmp_path / "a")
    hf_folder(tmp_path / "b")
    running: Iterator[dict[str, Any]] = scan_roots([tmp_path])
    assert next(running)["name"] == "a"
    shutil.rmtree(tmp_path / "b")
    rest = list(running)
    assert [item["format"] for item in rest] == ["folder"]
    assert rest[0]["problems"][0]["code"] == "vanished"


def test_bounds_on_entries_and_depth(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"f{number}").write_text("")
    assert codes(everything(tmp_path, max_entries=10)[-1]) == ["too_many_entries"]
    hf_folder(tmp_path / "1" / "2" / "3" / "m")
    items = everything(tmp_path, max_depth=2)
    assert len(items) == 1
    assert codes(items[0]) == ["too_deep"]


def test_names_of_all_kinds(tmp_path: Path) -> None:
    for name in ("千问-三", "<script>alert(1)</script>", "a; rm -rf ~ && echo $(id)", "..hidden-not"):
        hf_folder(tmp_path / "r" / name.replace("/", "∕"))
    broken = os.fsencode(tmp_path) + b"/r/bad-\xff.gguf"
    with open(broken, "wb") as file:  # noqa: PTH123  (a name that is no text)
        file.write(gguf_bytes())
    found = {item.name: item for item in models(tmp_path / "r")}
    assert {"千问-三", "<script>alert(1)<∕script>", "a; rm -rf ~ && echo $(id)"} <= set(found)
    odd = found["bad-\ufffd"]
    assert codes(odd)[0] == "unreadable_name"


def test_a_pipeline_of_image_parts_is_not_taken_for_models(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "model_index.json").write_text("{}")
    hf_folder(tmp_path / "pipe" / "text_encoder")
    assert models(tmp_path) == []


def test_a_file_named_model_takes_its_name_from_inside(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_bytes())
    assert models(tmp_path)[0].name == "Tiny Llama"
