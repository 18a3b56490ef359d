"""Hugging Face folders: whole ones, and each way in which one can be broken."""

import hashlib
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
from tests.models_catalog.builders import LLAMA, hf_folder, safetensors_bytes

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


def both(path: Path, **files: bytes | str | None) -> tuple[ModelFacts, list[tuple[str, dict[str, Any]]]]:
    found = look(hf_folder(path, **files))
    assert found is not None
    return found.facts, [(problem.code, problem.params) for problem in found.problems]


@pytest.mark.parametrize(
    ("files", "templates", "source"),
    [
        (
            {
                "tokenizer_config__json": '{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}'
            },
            ["default", "tool_use"],
            "tokenizer_config.json",
        ),
        (
            {"chat_template__json": '{"chat_template": {"default": "d", "rag": "r", "empty": " "}}'},
            ["default", "rag"],
            "chat_template.json",
        ),
        ({"tokenizer_config__json": "{}", "tekken__json": "{}"}, ["default"], "tekken.json"),
    ],
)
def test_several_named_templates(tmp_path: Path, files: dict[str, Any], templates: list[str], source: str) -> None:
    facts, problems = both(tmp_path / "m", **files)
    assert (facts.templates, facts.template_source, problems) == (templates, source, [])


def test_templates_in_the_folder_for_further_ones(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "additional_chat_templates"
    folder.mkdir(parents=True)
    (folder / "tool_use.jinja").write_text("x")
    (folder / "notes.txt").write_text("x")
    facts, _ = both(tmp_path / "m", chat_template__jinja="{{ x }}")
    assert facts.templates == ["default", "tool_use"]
    facts, _ = both(tmp_path / "m", chat_template__jinja="", tokenizer_config__json="{}")
    assert (facts.templates, facts.template_source) == (["tool_use"], "additional_chat_templates/tool_use.jinja")


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("tokenizer.json", '{"model": {"type": "Unigram", "vocab": []}}', "unigram"),
        (
            "tokenizer.json",
            '{"added_tokens": [' + '"x",' * 200_000 + '"x"], "model": {"type": "WordPiece"}}',
            "wordpiece",
        ),
        ("tokenizer.json", '{"model": {"dropout": null, "unk_token": null, "vocab": {}}}', "bpe"),
        ("tokenizer.json", '{"something": "else"}', ""),
        ("tokenizer.model", "sentencepiece", "sentencepiece"),
        ("tekken.json", "{}", "tekken"),
        ("qwen.tiktoken", "IQ== 0", "tiktoken"),
        ("vocab.txt", "[PAD]", "wordpiece"),
    ],
)
def test_kinds_of_tokenizers(tmp_path: Path, name: str, content: str, kind: str) -> None:
    facts, problems = both(tmp_path / "m", **{"tokenizer__json": None, name.replace(".", "__"): content})
    assert (facts.tokenizer, facts.tokenizer_kind, problems) == (name, kind, [])


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "lfs_pointer"),
        ("", "zero_bytes"),
        ('{"model": {"type": "BPE", "vocab": {"a": 1', "bad_tokenizer"),
    ],
)
def test_damaged_tokenizers_are_named(tmp_path: Path, content: str, code: str) -> None:
    assert both(tmp_path / "m", tokenizer__json=content)[1] == [(code, {"file": "tokenizer.json"})]


def test_a_shard_of_another_download_is_named(tmp_path: Path) -> None:
    """Its header is in order and it is whole, but it lacks tensors that the index expects."""
    index = {
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            **dict.fromkeys("bcd", "model-00002-of-00002.safetensors"),
        }
    }
    shard = safetensors_bytes({"x": ("BF16", [4])})
    files: dict[str, Any] = {"model__safetensors": None, "model__safetensors__index__json": json.dumps(index)}
    files |= {"model-00001-of-00002__safetensors": shard, "model-00002-of-00002__safetensors": shard}
    facts, problems = both(tmp_path / "m", **files)
    wrong = {"file": "model-00002-of-00002.safetensors", "tensors": 1, "expected": 3}
    assert problems == [("wrong_shard", wrong)]
    assert facts.parameters is None


@pytest.mark.parametrize(("cut", "code"), [(-1, "truncated"), (None, "trailing_bytes")])
def test_a_shard_of_the_wrong_size_is_named(tmp_path: Path, cut: int | None, code: str) -> None:
    shard = safetensors_bytes()
    bad = shard[:cut] if cut else shard + b"more"
    files = {"model__safetensors": None, "model__safetensors__index__json": INDEX}
    files |= {"model-00001-of-00002__safetensors": shard, "model-00002-of-00002__safetensors": bad}
    (only,) = both(tmp_path / "m", **files)[1]
    assert only == (code, {"file": "model-00002-of-00002.safetensors", "size": len(bad), "expected": len(shard)})


def test_an_index_counts_each_tensor_once_whatever_its_length(tmp_path: Path) -> None:
    names = {f"layer.{n}": f"model-{n % 3 + 1:05d}-of-00003.safetensors" for n in range(60_000)}
    (tmp_path / "i").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": names}, indent=2))
    from models_catalog.inspect.listing import LocalFile
    from models_catalog.inspect.weights import shard_names

    found = shard_names(LocalFile("i", str(tmp_path / "i"), 1))
    assert found == {f"model-{n:05d}-of-00003.safetensors": 20_000 for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("names", "missing", "size"),
    [
        (["model-rank-0-part-0", "model-rank-1-part-0", "model-rank-1-part-1"], [], 2),
        (["model-rank-0-part-0", "model-rank-2-part-0"], ["model-rank-1-part-0.safetensors"], 3),
        (["model0-mp4", "model1-mp4", "model3-mp4"], ["model2-mp4.safetensors"], 4),
    ],
)
def test_files_cut_for_so_many_gpus(tmp_path: Path, names: list[str], missing: list[str], size: int) -> None:
    files = {f"{name}__safetensors": safetensors_bytes() for name in names}
    facts, problems = both(tmp_path / "m", model__safetensors=None, **files)
    assert (facts.sharded_for, facts.missing, facts.parameters) == (size, missing, None)
    assert problems[0] == ("presharded", {"n": size})
    assert ("missing_parts" in [code for code, _ in problems]) == bool(missing)


def test_code_that_is_elsewhere_or_lacking_is_told(tmp_path: Path) -> None:
    config = {
        "auto_map": {
            "AutoModel": "org/repo--modeling.M",
            "AutoConfig": "configuration_x.C",
            "AutoTokenizer": ["t.T", None],
        }
    }
    facts, problems = both(tmp_path / "m", config__json=json.dumps(LLAMA | config), t__py="x = 1")
    assert (facts.code_elsewhere, facts.code_files) == (["org/repo"], ["t.py"])
    assert ("code_missing", {"files": ["configuration_x.py"]}) in problems
    assert ("code_elsewhere", {"files": ["org/repo"]}) in problems
    code = next(file for file in facts.files if file.kind == "code")
    assert code.sha256 == hashlib.sha256(b"x = 1").hexdigest()


def test_a_download_by_another_tool(tmp_path: Path) -> None:
    done = both(tmp_path / "done", **{"old.safetensors__part": b"x"})[1]
    assert [code for code, _ in done] == ["leftover_parts"]
    # aria2 makes the file as long as the whole one from the start; only its own file beside it tells.
    half = both(tmp_path / "half", **{"model__safetensors__aria2": b"x"})[1]
    assert [code for code, _ in half] == ["incomplete_download"]
    gone = both(tmp_path / "gone", model__safetensors=None, **{"model.safetensors__crdownload": b"x"})[1]
    assert [code for code, _ in gone] == ["incomplete_download", "missing_weights"]


def test_an_adapter_beside_its_models_configuration(tmp_path: Path) -> None:
    told = json.dumps({"base_model_name_or_path": "org/base", "r": 8, "target_modules": "all-linear", "use_dora": True})
    files = {"model__safetensors": None, "adapter_config__json": told}
    facts, problems = both(tmp_path / "m", **files, adapter_model__safetensors=safetensors_bytes()[:-1])
    assert facts.adapter is not None
    assert (facts.adapter.kind, facts.adapter.rank, facts.adapter.targets) == ("dora", 8, ["all-linear"])
    assert [code for code, _ in problems] == ["adapter_only", "truncated"]
    # With the whole weights it is the model itself, into which the adapter was merged.
    assert both(tmp_path / "merged", adapter_config__json=told)[0].adapter is None


def test_licence_and_defaults(tmp_path: Path) -> None:
    readme = "---\nlicense: other\nlicense_name: 'gemma terms'\n---\nlicense: not this"
    facts, _ = both(tmp_path / "m", README__md=readme, generation_config__json='{"top_k": 20, "temperature": "hot"}')
    assert (facts.licence, facts.generation) == ("gemma terms", {"top_k": 20.0})
