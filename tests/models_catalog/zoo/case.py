"""One model of the zoo: how its files are made, and every fact that must be read from them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.models_catalog.builders import safetensors_layout, sparse
from tests.models_catalog.zoo.tensors import Tensors

TEMPLATE = {"chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}
BPE = json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}})
# What most folders have in common: 5 files, a tokenizer with a template, plain weights in bfloat16.
HF: dict[str, Any] = {
    "format": "hf",
    "label": "bfloat16",
    "dtype": "bfloat16",
    "tasks": ["generate"],
    "purpose": "generate",
    "inputs": ["text"],
    "tokenizer": "tokenizer.json",
    "tokenizer_kind": "bpe",
    "chat_template": True,
    "template_source": "tokenizer_config.json",
    "templates": ["default"],
    "context_source": "config.json: max_position_embeddings",
    "generation": {"temperature": 0.6, "top_p": 0.9},
    "file_count": 5,
}
Make = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """`facts` are all facts that differ from an empty ModelFacts; `shape` those of the geometry that are looked at."""

    name: str
    make: Make
    facts: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    shape: dict[str, Any] = field(default_factory=dict)


def folder(config: Mapping[str, Any], tensors: Tensors, *, shards: int = 1, **files: str | bytes | None) -> Make:
    """Writes a Hugging Face folder; `files` (with __ for a dot) replace, add or, as None, leave out single ones."""

    def make(path: Path) -> None:
        content: dict[str, str | bytes | None] = {
            "config.json": json.dumps(config),
            "tokenizer.json": BPE,
            "tokenizer_config.json": json.dumps(TEMPLATE),
            "generation_config.json": json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.9}),
        }
        content |= {name.replace("__", "."): value for name, value in files.items()}
        for name, value in content.items():
            if value is not None:
                (path / name).parent.mkdir(exist_ok=True)
                (path / name).write_bytes(value.encode() if isinstance(value, str) else value)
        write_shards(path, tensors, shards)

    return make


def write_shards(path: Path, tensors: Tensors, shards: int, stem: str = "model") -> None:
    """One file, or several with an index, each tensor in one of them."""
    names = list(tensors)
    if shards == 1:
        sparse(path / f"{stem}.safetensors", safetensors_layout(tensors))
        return
    weight_map = {}
    for number in range(shards):
        file = f"{stem}-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[number::shards]
        sparse(path / file, safetensors_layout({name: tensors[name] for name in mine}))
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (path / f"{stem}.safetensors.index.json").write_text(json.dumps(index))


def plain(parameters: int, dtype: str = "BF16") -> dict[str, Any]:
    """Facts of weights that are stored one by one."""
    return {"parameters": parameters, "dtype_bytes": {dtype: parameters * {"BF16": 2, "F16": 2, "F32": 4}[dtype]}}


def dims(layers: int, hidden: int, heads: int, kv: int, width: int, vocab: int, context: int) -> dict[str, Any]:
    return {
        "layers": layers,
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": kv,
        "head_dim": width,
        "key_length": width,
        "value_length": width,
        "vocab_size": vocab,
        "context_length": context,
        "context_named": context,
    }


def rope(
    base: float, scaling: str = "", factor: float | None = None, original: int | None = None
) -> dict[str, dict[str, Any]]:
    return {"rope": {"base": base, "scaling": scaling, "factor": factor, "original_context": original}}


def named(architecture: str, model_type: str) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type}
