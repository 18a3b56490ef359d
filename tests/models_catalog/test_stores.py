"""Where other programs keep models: the Hugging Face cache, Ollama's store, LM Studio's folders. Bytes count once."""

import json
import os
import shutil
from pathlib import Path

import pytest

from models_catalog.facts import ModelFacts
from models_catalog.inspect.scan import scan_roots
from models_catalog.sources import local
from panel.fleet.wire import ScannedModel
from tests.models_catalog.builders import gguf_bytes, hf_cache, hf_folder
from tests.models_catalog.stores import TINY, WEIGHTS, blob, ollama
from tests.models_catalog.zoo.gguf_models import EYES, MMPROJ


def everything(*roots: Path) -> list[ScannedModel]:
    return [ScannedModel.model_validate(item) for item in scan_roots(list(roots))]


def whole(item: ScannedModel) -> ScannedModel:
    """With all facts, those too that are not known."""
    return item.model_copy(update={"facts": ModelFacts.from_dict(item.facts).to_dict()})


def models(*roots: Path) -> list[ScannedModel]:
    return [whole(item) for item in everything(*roots) if item.format != "folder"]


def codes(item: ScannedModel) -> list[str]:
    return [problem.code for problem in item.problems]


def test_a_model_of_ollama_keeps_its_name_and_template(tmp_path: Path) -> None:
    ollama(tmp_path, "llama3.2:3b", TINY)
    (found,) = models(tmp_path)
    assert (found.name, found.format, codes(found)) == ("llama3.2:3b", "gguf", [])
    assert Path(found.path).read_bytes() == WEIGHTS
    facts = found.facts
    assert (facts["source"], facts["origin"], facts["refs"]) == ("ollama", "llama3.2:3b", ["llama3.2:3b"])
    assert (facts["template_source"], facts["template_text"]) == ("ollama", "{{ .Prompt }}")
    assert facts["generation"] == {"temperature": 0.7, "repetition_penalty": 1.1}
    assert (facts["licence"], facts["architectures"], facts["parameters"]) == ("Apache License", ["llama"], 4352)
    assert found.size_bytes == sum(len(content) for content in TINY.values())


@pytest.mark.parametrize(
    ("registry", "name", "shown"),
    [
        ("registry.ollama.ai/library", "qwen3:8b", "qwen3:8b"),
        ("registry.ollama.ai/someone", "mine:latest", "someone/mine:latest"),
        ("hf.co/bartowski", "Qwen-GGUF:Q4_K_M", "hf.co/bartowski/Qwen-GGUF:Q4_K_M"),
    ],
)
def test_names_are_what_people_type(tmp_path: Path, registry: str, name: str, shown: str) -> None:
    ollama(tmp_path, name, TINY, registry=registry)
    assert [item.name for item in models(tmp_path)] == [shown]


def test_two_tags_of_one_model_are_one_entry(tmp_path: Path) -> None:
    ollama(tmp_path, "llama3.2:3b", TINY)
    ollama(tmp_path, "llama3.2:latest", TINY)
    (found,) = models(tmp_path)
    assert found.facts["refs"] == ["llama3.2:3b", "llama3.2:latest"]


def test_a_template_in_the_file_is_enough(tmp_path: Path) -> None:
    ollama(tmp_path, "bare", {"model": WEIGHTS})
    (found,) = models(tmp_path)
    assert (found.name, found.facts["template_source"]) == ("bare:latest", "tokenizer.chat_template")


def test_a_projector_of_ollama(tmp_path: Path) -> None:
    ollama(tmp_path, "gemma3:4b", TINY | {"projector": gguf_bytes(MMPROJ, EYES)})
    (found,) = models(tmp_path)
    assert found.facts["projector"].startswith("sha256-")
    assert found.facts["inputs"] == ["text", "image"]


def test_what_can_be_wrong_with_a_store(tmp_path: Path) -> None:
    gone, half, odd, cut = (tmp_path / name for name in ("gone", "half", "odd", "cut"))
    for store in (gone, half):
        name = json.loads(ollama(store, "m", TINY).read_text())["layers"][0]["digest"].replace(":", "-")
        (store / "blobs" / name).unlink()
    (half / "blobs" / f"{name}-partial").write_bytes(b"part")
    ollama(odd, "m", {"tensor": b"x" * 100})
    manifest = ollama(cut, "m", TINY)
    layer = json.loads(manifest.read_text())["layers"][0]
    (cut / "blobs" / layer["digest"].replace(":", "-")).write_bytes(WEIGHTS[:-32])
    assert codes(models(gone)[0]) == ["missing_parts"]
    assert codes(models(half)[0]) == ["incomplete_download"]
    assert codes(models(odd)[0]) == ["ollama_form"]
    assert codes(models(cut)[0]) == ["truncated"]


def test_what_is_no_model_in_a_store_is_left_out(tmp_path: Path) -> None:
    ollama(tmp_path, "cloud", {})  # its weights are at Ollama
    folder = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "bad"
    folder.mkdir(parents=True)
    (folder / "text").write_text("no JSON")
    (folder / "list").write_text("[]")
    (folder / "digest").write_text(
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../../x"}]}'
    )
    blob(tmp_path, gguf_bytes())  # of a model that was removed
    assert models(tmp_path) == []


def test_a_store_is_found_below_a_home_and_never_leads_outside(tmp_path: Path) -> None:
    store = tmp_path / "home" / ".ollama" / "models"
    manifest = ollama(store, "m", TINY)
    (tmp_path / "home" / ".ollama" / "id_ed25519.gguf").write_bytes(WEIGHTS)  # not looked at
    assert [item.name for item in models(tmp_path / "home")] == ["m:latest"]
    name = json.loads(manifest.read_text())["layers"][0]["digest"].replace(":", "-")
    shutil.move(store / "blobs" / name, tmp_path / "outside")
    (store / "blobs" / name).symlink_to(tmp_path / "outside")
    assert codes(models(tmp_path / "home")[0]) == ["link_outside"]


def test_lm_studio_tells_publisher_and_repository(tmp_path: Path) -> None:
    folder = tmp_path / ".lmstudio" / "models" / "bartowski" / "Qwen3-8B-GGUF"
    folder.mkdir(parents=True)
    (folder / "Qwen3-8B-Q4_K_M.gguf").write_bytes(WEIGHTS)
    (folder / "mmproj-F16.gguf").write_bytes(gguf_bytes(MMPROJ, EYES))
    for root in (tmp_path, tmp_path / ".lmstudio" / "models"):
        found = {item.name: item for item in models(root)}
        assert set(found) == {"Qwen3-8B", "mmproj"}
        facts = found["Qwen3-8B"].facts
        assert (facts["source"], facts["origin"]) == ("lmstudio", "bartowski/Qwen3-8B-GGUF")
        assert (facts["projector"], facts["inputs"]) == ("mmproj-F16.gguf", ["text", "image"])


def test_revisions_in_the_cache_share_their_files(tmp_path: Path) -> None:
    first = hf_cache(tmp_path, "org/m", "a" * 40)
    second = hf_cache(tmp_path, "org/m", "b" * 40, ref="new")
    shutil.rmtree(tmp_path / ".made")
    items = everything(tmp_path)
    own = {item.path: item.facts.get("own_bytes") for item in items}
    whole = items[0].size_bytes
    assert (own[str(first)], own[str(second)]) == (whole, 0)
    assert items[-1].size_bytes == whole  # of the folder: what it takes on the disk
    assert {item.facts["source"] for item in items[:-1]} == {"hf-cache"}
    assert {item.facts["origin"] for item in items[:-1]} == {"org/m"}
    assert sorted(ref for item in items[:-1] for ref in item.facts["refs"]) == ["main", "new"]


def test_links_of_both_kinds_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m-Q4_0.gguf").write_bytes(WEIGHTS)
    (tmp_path / "b").mkdir()
    os.link(tmp_path / "a" / "m-Q4_0.gguf", tmp_path / "b" / "hard.gguf")
    (tmp_path / "b" / "soft.gguf").symlink_to(tmp_path / "a" / "m-Q4_0.gguf")
    folder = hf_folder(tmp_path / "hf", model__safetensors=None, **{"model-00001-of-00002__safetensors": WEIGHTS})
    os.link(folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors")
    items = everything(tmp_path)
    assert [item.facts["own_bytes"] for item in items[:3]] == [len(WEIGHTS), 0, 0]
    # Two names of one file in one model, and what the folder takes in all.
    names = [file for file in folder.iterdir() if file.name != "model-00002-of-00002.safetensors"]
    assert items[3].size_bytes == sum(file.stat().st_size for file in names)
    assert items[-1].size_bytes == len(WEIGHTS) + items[3].size_bytes


def test_the_same_file_below_two_roots_counts_once(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "m.gguf").write_bytes(WEIGHTS)
    os.link(tmp_path / "one" / "m.gguf", tmp_path / "two" / "m.gguf")
    folders = [item for item in everything(tmp_path / "one", tmp_path / "two") if item.format == "folder"]
    assert [item.size_bytes for item in folders] == [len(WEIGHTS), 0]


@pytest.mark.parametrize(
    ("env", "cache"),
    [
        ({}, "{home}/.cache/huggingface/hub"),
        ({"HF_HOME": "/hf"}, "/hf/hub"),
        ({"HF_HOME": "/hf", "HF_HUB_CACHE": "/hub"}, "/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/huggingface/hub"),
    ],
)
def test_where_the_cache_is(tmp_path: Path, env: dict[str, str], cache: str) -> None:
    found = local.huggingface_cache({"HOME": str(tmp_path), **env})
    assert str(found) == cache.format(home=tmp_path)


def test_the_usual_folders_are_those_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "OLLAMA_SERVICE", tmp_path / "service")
    env = {"HOME": str(tmp_path)}
    first = [tmp_path / ".cache/huggingface/hub", tmp_path / "models"]
    assert local.usual_folders(env) == first
    for name in (".ollama/models", "service", ".lmstudio/models", "big/lm", "ol"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(tmp_path / "big/lm")}))
    more = [tmp_path / name for name in (".ollama/models", "service", "big/lm", ".lmstudio/models")]
    assert local.usual_folders(env) == first + more
    told = local.usual_folders({**env, "OLLAMA_MODELS": str(tmp_path / "ol")})
    assert told == [*first, tmp_path / "ol", *more[2:]]
    (tmp_path / ".lmstudio" / "settings.json").write_text("[1]")
    assert local.lmstudio_folders(env) == [tmp_path / ".lmstudio/models"]
