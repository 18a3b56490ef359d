"""Tiny real models for a real engine: random weights, 1 MB, made in half a second; and ways to damage one.

They are those of panel.fleet.agent.tiny_model: a Llama of two layers with four heads, whose tokens are bytes, and which
knows 256 positions.
"""

from __future__ import annotations

import atexit
import json
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from panel.fleet.agent import tiny_model

WEIGHTS = "model.safetensors"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


@lru_cache
def _made() -> Path:
    """One model, of which the others are copies: random numbers take time."""
    folder = mkdtemp(prefix="tiny-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return tiny_model.make(Path(folder, "model"))


def model(folder: Path, **config: Any) -> Path:
    """A model in a new folder; `config` are other values of its config.json."""
    shutil.copytree(_made(), folder)
    if config:
        configure(folder, **config)
    return folder


def configure(folder: Path, **values: Any) -> None:
    """Other values in config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def sharded(folder: Path, **config: Any) -> Path:
    """The same with its weights in two files and their list."""
    model(folder, **config)
    (folder / WEIGHTS).unlink()
    shapes = tiny_model.tensors(json.loads((folder / "config.json").read_text())["vocab_size"])
    parts = [
        {name: shape for name, shape in shapes.items() if ("layers.1." in name) == second} for second in (False, True)
    ]
    for name, part in zip(SHARDS, parts, strict=True):
        tiny_model.write_weights(folder / name, part)
    places = {tensor: name for name, part in zip(SHARDS, parts, strict=True) for tensor in part}
    size = sum((folder / name).stat().st_size for name in SHARDS)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}))
    return folder


def cut(path: Path, share: float = 0.5) -> None:
    """Only the first part of a file is left, as of a download that was broken off."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
