"""A model folder made to hurt: the scan ends in a finding, soon, in little memory, and renders or runs nothing."""

import json
import os
import resource
import time
from pathlib import Path

import pytest

from models_catalog.inspect.scan import scan_roots as scan
from panel.fleet.agent.files import split_roots

DEEP = "[" * 200_000
NESTED = '{"a":' * 100_000 + "1" + "}" * 100_000
JSON_FILES = ["config.json", "tokenizer_config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
              "quantize_config.json", "adapter_config.json", "modules.json", "chat_template.json", "params.json"]  # fmt: skip
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 16)
    return folder


def looked(root: Path) -> list[dict[str, object]]:
    """What the scan says, which must come within seconds and without hundreds of MiB."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = [dict(item) for item in scan([str(root)])]
    assert time.monotonic() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10  # KiB
    assert len(json.dumps(found)) < 4 << 20
    return found


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
    "text",
    [DEEP, NESTED, '{"a": ' + "9" * 100_000 + "}", "\ufeff{}", '{"a": NaN}', '"' + "x" * 5_000_000 + '"', "[" + "{}," * 500_000 + "{}]",
     '{"architectures": {"a": 1}, "num_hidden_layers": "x", "hidden_size": -1, "vocab_size": 1e999}', "null", "\0" * 1000],
    ids=["deep", "nested", "digits", "bom", "nan", "long", "many", "kinds", "null", "nuls"],
)  # fmt: skip
def test_json_of_every_file(tmp_path: Path, name: str, text: str) -> None:
    (model(tmp_path / "m") / name).write_text(text)
    looked(tmp_path)


def test_sparse_giants_and_lengths_that_lie(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    for name in ("model.safetensors", "x.gguf", "tokenizer.json", "config.json", "chat_template.jinja"):
        with (folder / name).open("wb") as file:
            file.truncate(1 << 40)
    (folder / "y.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    (folder / "z.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16)
    looked(tmp_path)


def test_templates_and_pickles_are_not_run(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    mark = tmp_path / "ran"
    evil = (
        "{{ cycler.__init__.__globals__.os.system('touch " + str(mark) + "') }}{% for x in range(10**9) %}x{% endfor %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": evil}))
    (folder / "chat_template.jinja").write_text(evil)
    (folder / "modeling_evil.py").write_text(f"open({str(mark)!r}, 'w')")
    (folder / "pytorch_model.bin").write_bytes(f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode())
    (folder / "config.json").write_text(json.dumps({**CONFIG, "auto_map": {"AutoModel": "modeling_evil.Model"}}))
    found = looked(tmp_path)
    assert not mark.exists()
    assert any("modeling_evil" in json.dumps(item) for item in found), "that it brings code of its own is told"


def test_names_are_only_text(tmp_path: Path) -> None:
    for name in (
        "<script>alert(1)</script>",
        "\x1b[2J",
        "a\nb",
        "=cmd|x",
        "\u202egnp",
        "%00",
        "..%2f..",
        "-rf",
        "$(id)",
        "'; --",
    ):
        model(tmp_path / "models" / name)
    (tmp_path / "models" / os.fsdecode(b"\xff\xfe")).mkdir()
    text = json.dumps(looked(tmp_path / "models"), ensure_ascii=False)
    assert "\x1b" not in text and "\\n" not in text.replace("\\\\n", "")
    text.encode()  # no lone surrogates


@pytest.mark.parametrize("kind", ["folder", "file", "loop", "proc", "device", "pipe"])
def test_nothing_leads_out_of_a_root(tmp_path: Path, kind: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    model(outside / "secret-model")
    root.mkdir()
    target = {"folder": outside, "file": outside / "secret-model/config.json", "loop": root, "proc": Path("/proc/self/root"),
              "device": Path("/dev/zero"), "pipe": tmp_path / "pipe"}[kind]  # fmt: skip
    if kind == "pipe":
        os.mkfifo(target)
    folder = model(root / "m")
    (root / "out").symlink_to(target)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(target)
    assert "secret-model" not in json.dumps(looked(root)).replace(str(target), "")
    good, refused = split_roots(
        [str(root / "out"), f"{root}/../outside", "/", "relative", f"{root}/m/../../outside"], [root]
    )
    assert [path for path in good if not path.resolve().is_relative_to(root)] == []
    assert refused
