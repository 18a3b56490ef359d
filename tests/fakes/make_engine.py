"""Put a fake engine and small models on disk, as the agent and the catalog would find real ones."""

from __future__ import annotations

import json
import shlex
import struct
import sys
from pathlib import Path

HERE = Path(__file__).parent
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


# What the package builds before an engine is begun: it refuses one thing, in vLLM's words.
CONFIG = """
class EngineArgs:
    @classmethod
    def from_cli_args(cls, cli):
        made = cls()
        made.cli = cli
        return made

    def create_engine_config(self):
        if str(self.cli.max_model_len).isdecimal() and int(self.cli.max_model_len) >= 900_000:
            raise ValueError(
                "User-specified max_model_len (%s) is greater than the derived max_model_len "
                "(max_position_embeddings=2048 or model_max_length=None in model's config.json)." % self.cli.max_model_len
            )
        return self


class AsyncEngineArgs(EngineArgs):
    pass
"""


def make_fake_engine(folder: Path, *, version: str = "0.32.0+cpu", device: str = "cpu", **fake: object) -> Path:
    """Install `vllm` and the `python` that it runs with into a folder, as a virtual environment's bin; the executable.

    That python finds a small `vllm` package with the real engine's parser, so that whoever asks the runtime for its
    version, device and flags gets the real answers. `fake` are defaults for every run of this engine (keys of
    engine.Fake or `mode`); a model's fake.json goes over them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    site = _package(folder / "fake-site", version, device)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(site))} exec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8"
    )
    defaults = json.dumps(json.dumps({"version": version, **fake}))
    executable = folder / "vllm"
    executable.write_text(
        f"#!{python}\nimport os, runpy\nos.environ.setdefault('FAKE_ENGINE_DEFAULTS', {defaults})\n"
        f"runpy.run_path({json.dumps(str(HERE / 'engine.py'))}, run_name='__main__')\n",
        encoding="utf-8",
    )
    for file in (python, executable):
        file.chmod(0o755)
    return executable


def _package(site: Path, version: str, device: str) -> Path:
    """A `vllm` package that knows its version, its platform and its parser, and nothing else."""
    parser = (
        f"import sys\nsys.path.insert(0, {json.dumps(str(HERE))})\nfrom engine import serve_parser\n\n\n"
        "def make_arg_parser(parser):\n    return serve_parser(parser)\n"
    )
    platform = (
        f"class {device.capitalize()}Platform:\n    device_type = {device!r}\n\n"
        f"    def get_device_name(self):\n        return {device!r}\n\n\ncurrent_platform = {device.capitalize()}Platform()\n"
    )
    files = {
        "vllm/__init__.py": f"__version__ = {version!r}\n",
        "vllm/platforms/__init__.py": platform,
        "vllm/utils/__init__.py": "",
        "vllm/engine/__init__.py": "",
        "vllm/engine/arg_utils.py": CONFIG,
        "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/openai/__init__.py": "",
        "vllm/entrypoints/openai/cli_args.py": parser,
        f"vllm-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
    }
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return site


def make_fake_model(folder: Path, **fake: object) -> Path:
    """Write a minimal Hugging Face folder (a Llama of 160 parameters, in bfloat16); returns the folder.

    `fake` becomes its fake.json, e.g. make_fake_model(path, mode="ignores_term").
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 16, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
    })  # fmt: skip
    _write(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    template = "" if fake.get("mode") == "no_template" else CHAT_TEMPLATE
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    _write(folder / "tokenizer_config.json", tokenizer | ({"chat_template": template} if template else {}))
    words = ["<unk>", "<s>", "</s>", *"abcdefghijklm"]
    _write(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"},
    })  # fmt: skip
    write_safetensors(folder / "model.safetensors", {
        "model.embed_tokens.weight": (16, 8), "model.norm.weight": (8,), "model.layers.0.input_layernorm.weight": (8,),
        "model.layers.0.post_attention_layernorm.weight": (8,), "model.layers.0.self_attn.q_proj.weight": (8, 8),
        "model.layers.0.self_attn.k_proj.weight": (4, 8), "model.layers.0.self_attn.v_proj.weight": (4, 8),
        "model.layers.0.self_attn.o_proj.weight": (8, 8), "model.layers.0.mlp.gate_proj.weight": (16, 8),
        "model.layers.0.mlp.up_proj.weight": (16, 8), "model.layers.0.mlp.down_proj.weight": (8, 16),
    })  # fmt: skip
    if fake:
        _write(folder / "fake.json", fake)
    return folder


def make_fake_gguf(path: Path, **fake: object) -> Path:
    """Write a small valid GGUF (version 3, one tensor) with the metadata of a Llama; returns the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values: list[tuple[str, int, bytes]] = [
        ("general.architecture", 8, _string("llama")),
        ("general.name", 8, _string(path.stem)),
        ("general.file_type", 4, struct.pack("<I", 1)),
        ("llama.context_length", 4, struct.pack("<I", 2048)),
        ("llama.embedding_length", 4, struct.pack("<I", 8)),
        ("llama.block_count", 4, struct.pack("<I", 1)),
        ("llama.feed_forward_length", 4, struct.pack("<I", 16)),
        ("llama.attention.head_count", 4, struct.pack("<I", 2)),
        ("llama.attention.head_count_kv", 4, struct.pack("<I", 1)),
        ("tokenizer.ggml.model", 8, _string("llama")),
        ("tokenizer.chat_template", 8, _string("{% for m in messages %}{{ m.content }}{% endfor %}")),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values))
    head += b"".join(_string(name) + struct.pack("<I", kind) + value for name, kind, value in values)
    head += _string("token_embd.weight") + struct.pack("<IQQIQ", 2, 8, 16, 1, 0)  # two dimensions, F16, offset 0
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(8 * 16 * 2))
    if fake:
        _write(path.with_name(path.name + ".fake.json"), fake)
    return path


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A valid safetensors file of zeros in BF16."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
