"""Stores of other programs, written as they write them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.models_catalog.builders import gguf_bytes

LAYER = "application/vnd.ollama.image."


def blob(store: Path, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    (store / "blobs" / f"sha256-{digest}").write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def ollama(store: Path, name: str, layers: dict[str, bytes], *, registry: str = "registry.ollama.ai/library") -> Path:
    """A model of Ollama's: `name` is "model:tag", `layers` go by their kinds. Returns the manifest."""
    model, _, tag = name.partition(":")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            **blob(store, b'{"model_format": "gguf"}'),
        },
        "layers": [{"mediaType": LAYER + kind, **blob(store, content)} for kind, content in layers.items()],
    }
    path = store / "manifests" / registry / model / (tag or "latest")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))
    return path


WEIGHTS = gguf_bytes()
TINY: dict[str, bytes] = {
    "model": WEIGHTS,
    "template": b"{{ .Prompt }}",
    "params": b'{"temperature": 0.7, "stop": ["<|eot|>"], "repeat_penalty": 1.1}',
    "license": b"\n  Apache License\nVersion 2.0",
}
