"""Hugging Face folders: whole ones, and each way in which one can be broken."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from models_catalog.facts import ModelFacts
from models_catalog.inspect.found import Found
from models_catalog.inspect.hf import inspect_hf
from models_catalog.inspect.listing import list_folder
from models_catalog.inspect.reading import Fence
from tests.models_catalog.builders import hf_folder, safetensors_bytes

PICKLED = b"PK\x03\x04" + b"\0" * 100 + b"PK\x05\x06" + b"\0" * 18  # the two ends of a zip file
INDEX = json.dumps(
    {
        "metadata": {"total_size": 1},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
)


def look(path: Path) -> Found | None:
    with os.scandir(path) as entries:
        return inspect_hf(list_folder(str(path), list(entries), Fence([str(path)])), name="m")


def codes(path: Path) -> list[str]:
    found = look(path)
    assert found is not None
    return [problem.code for problem in found.problems]


def test_a_whole_folder(tmp_path: Path) -> None:
    found = look(hf_folder(tmp_path / "m", config={"torch_dtype": "bfloat16"}))
    assert found is not None
    assert found.problems == []
    facts = found.facts
    assert facts.parameters == 32 * 16 + 16
    assert (facts.architecture, facts.dtype, facts.label) == ("LlamaForCausalLM", "bfloat16", "bfloat16")
    assert (facts.tokenizer, facts.template_source, facts.tasks) == (
        "tokenizer.json",
        "tokenizer_config.json",
        ["generate"],
    )
    assert found.size_bytes == sum(file.stat().st_size for file in (tmp_path / "m").iterdir())
    assert ModelFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"model__safetensors": None}, ["missing_weights"]),
        ({"model__safetensors": b""}, ["zero_bytes"]),
        ({"model__safetensors": safetensors_bytes()[:-1]}, ["truncated"]),
        ({"model__safetensors": "version https://git-lfs.github.com/spec/v1\n"}, ["lfs_pointer"]),
        ({"tokenizer__json": None}, ["missing_tokenizer"]),
        ({"tokenizer_config__json": "{}"}, ["no_chat_template"]),
        ({"tokenizer_config__json": "[" * 200_000}, ["bad_config", "no_chat_template"]),
        ({"config__json": ""}, ["zero_bytes", "unknown_task"]),
        ({"config__json": "not json"}, ["bad_config", "unknown_task"]),
        ({"config__json": "{}"}, ["bad_config", "unknown_task"]),
        ({"config__json": None}, ["bad_config"]),
        ({"model__safetensors": None, "pytorch_model__bin": PICKLED}, []),
        ({"model__safetensors": None, "pytorch_model__bin": b"\x80\x02old pickle"}, []),
        ({"model__safetensors": None, "pytorch_model__bin": PICKLED[:-30]}, ["truncated"]),
        ({"model__safetensors": None, "pytorch_model__bin": b"<html>404</html>"}, ["bad_header"]),
        (
            {"model__safetensors": None, "pytorch_model__bin": b"version https://git-lfs.github.com/spec/v1\n"},
            ["lfs_pointer"],
        ),
        ({"model__safetensors": None, "pytorch_model__bin": b""}, ["zero_bytes"]),
        ({"model__safetensors__index__json": INDEX}, ["missing_parts"]),
        ({"model__safetensors__index__json": '{"weight_map": {"a": "../../etc/x.safetensors"}}'}, ["bad_index"]),
        ({"model__safetensors__index__json": INDEX[:-3]}, ["bad_index"]),
        ({"model__safetensors__index__json": ""}, ["zero_bytes"]),
        ({"model__safetensors": None, "model-00002-of-00003__safetensors": safetensors_bytes()}, ["missing_parts"]),
    ],
)
def test_broken_folders(tmp_path: Path, files: dict[str, Any], expected: list[str]) -> None:
    assert codes(hf_folder(tmp_path / "m", **files)) == expected


def test_missing_shards_are_named(tmp_path: Path) -> None:
    folder = hf_folder(
        tmp_path / "m",
        model__safetensors=None,
        **{"model__safetensors__index__json": INDEX, "model-00001-of-00002__safetensors": safetensors_bytes()},
    )
    found = look(folder)
    assert found is not None
    assert found.facts.missing == ["model-00002-of-00002.safetensors"]
    assert found.problems[0].params == {"files": ["model-00002-of-00002.safetensors"], "count": 1, "total": 2}
    assert found.facts.parameters is None  # half a sum would be a wrong number


def test_custom_code_is_named_and_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    code = f"import pathlib; pathlib.Path({str(trap)!r}).touch()"
    config = {"auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}}
    found = look(hf_folder(tmp_path / "m", config=config, modeling_x__py=code))
    assert found is not None
    assert found.facts.needs_remote_code
    assert found.facts.code_files == ["modeling_x.py"]
    assert [problem.code for problem in found.problems] == ["needs_remote_code"]
    assert not trap.exists()


def test_a_claimed_quantisation_that_the_tensors_lack(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert codes(hf_folder(tmp_path / "bad", config=config)) == ["quantisation_not_in_weights"]
    packed = safetensors_bytes({"l.qweight": ("I32", [8, 16]), "l.scales": ("F16", [16])})
    assert codes(hf_folder(tmp_path / "good", config=config, model__safetensors=packed)) == []


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"chat_template__jinja": "{{ x }}"}, "chat_template.jinja"),
        ({"chat_template__json": '{"chat_template": "{{ x }}"}'}, "chat_template.json"),
        ({"chat_template__json": "broken"}, "tokenizer_config.json"),
        ({"chat_template__jinja": ""}, "tokenizer_config.json"),
        (
            {"tokenizer_config__json": '{"chat_template": [{"name": "default", "template": "x"}]}'},
            "tokenizer_config.json",
        ),
        ({"tokenizer_config__json": '{"chat_template": []}'}, ""),
    ],
)
def test_homes_of_the_chat_template(tmp_path: Path, files: dict[str, Any], source: str) -> None:
    found = look(hf_folder(tmp_path / "m", **files))
    assert found is not None
    assert found.facts.template_source == source


def test_an_adapter_is_no_model_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes())
    found = look(folder)
    assert found is not None
    assert [(p.code, p.params) for p in found.problems] == [("adapter_only", {"base": "org/base"})]


def test_other_programs_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"theme": "dark"}')
    assert look(tmp_path) is None


def test_equal_folders_have_equal_fingerprints_whatever_their_readme(tmp_path: Path) -> None:
    one, two = hf_folder(tmp_path / "one"), hf_folder(tmp_path / "two", **{"README__md": "hi"})
    three = hf_folder(tmp_path / "three", model__safetensors=safetensors_bytes({"a": ("BF16", [264])}))
    prints = [found.facts.fingerprint for path in (one, two, three) if (found := look(path))]
    assert prints[0] == prints[1] != prints[2]
