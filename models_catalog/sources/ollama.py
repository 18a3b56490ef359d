"""Ollama's store: manifests that name blobs by their SHA-256. Pure; nothing but small JSON and headers is read.

`manifests/<registry>/<namespace>/<model>/<tag>` lists layers: the weights (a GGUF file without that ending), the chat
template in Ollama's own language, parameters, a licence, a projector. Several tags may name the same weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models_catalog.facts import ModelFacts, Problem
from models_catalog.inspect.found import Found
from models_catalog.inspect.gguf import read_gguf
from models_catalog.inspect.gguf_facts import Beside, inspect_gguf, projector_inputs
from models_catalog.inspect.gguf_split import GgufSet
from models_catalog.inspect.hf_extras import generation_of
from models_catalog.inspect.listing import LocalFile, local_file
from models_catalog.inspect.reading import Fence, Unusable, clean, obj, read_bounded, read_json_object

DEFAULT_REGISTRY, DEFAULT_NAMESPACE = "registry.ollama.ai", "library"
LAYER = "application/vnd.ollama.image."
MAX_MANIFEST = 1 << 20
MAX_TEMPLATE = 32 << 10
MAX_MANIFESTS = 10_000
MAX_LAYERS = 2000
SHORT = 300  # of a licence's text, only its head is looked at


@dataclass
class OllamaModel:
    """What one or several tags name. `files` are the blobs of it that are there, by their names."""

    path: str  # of the weights' blob
    names: list[str]
    layers: dict[str, list[dict[str, Any]]]
    config: dict[str, Any]
    files: dict[str, LocalFile] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def sign(self) -> str:
        """Changes whenever what is known of it could."""
        stamps = sorted((file.name, file.size, file.stamp) for file in self.files.values())
        return repr((sorted(self.names), self.layers, self.config, stamps, self.problems))

    def blobs(self, kind: str) -> list[str]:
        return [_blob(layer) for layer in self.layers.get(kind, [])]

    def text(self, kind: str, limit: int) -> str:
        """The text of the first layer of a kind; "" when there is none or it is too long."""
        for name in self.blobs(kind)[:1]:
            try:
                return read_bounded(self.files[name].real, limit).decode("utf-8", "replace").replace("\0", "")
            except (KeyError, OSError, Unusable):
                return ""
        return ""


def is_store(folders: list[str]) -> bool:
    """Whether a folder with these sub-folders is such a store."""
    return "manifests" in folders and "blobs" in folders


def models_of(store: str, fence: Fence) -> list[OllamaModel]:
    """The models of a store, by the path of their weights. A manifest that cannot be read names nothing."""
    found: dict[str, OllamaModel] = {}
    for path in _manifests(Path(store, "manifests")):
        try:
            manifest = read_json_object(os.path.realpath(path), limit=MAX_MANIFEST)
        except (Unusable, OSError):
            continue
        model = _model(store, path, manifest, fence)
        if model is None:
            continue
        if model.path in found:
            found[model.path].names += model.names
        else:
            found[model.path] = model
    return list(found.values())


def _manifests(folder: Path) -> Iterator[Path]:
    """Files four levels down, in order; links to folders are not followed."""
    count = 0
    for top, folders, files in os.walk(folder):
        folders.sort()
        if len(Path(top).relative_to(folder).parts) != 3:
            continue
        for name in sorted(files):
            count += 1
            if count > MAX_MANIFESTS:
                return
            yield Path(top, name)


def _model(store: str, path: Path, manifest: dict[str, Any], fence: Fence) -> OllamaModel | None:
    layers: dict[str, list[dict[str, Any]]] = {}
    told = manifest.get("layers")
    for layer in told[:MAX_LAYERS] if isinstance(told, list) else []:
        kind = str(obj(layer).get("mediaType", "")).removeprefix(LAYER).split(";")[0]
        if _blob(obj(layer)):
            layers.setdefault(kind, []).append({"digest": layer["digest"], "size": layer.get("size")})
    weights = layers.get("model") or layers.get("tensor")
    if not weights:
        return None  # a model of Ollama's cloud has no weights here
    blobs = f"{store.rstrip('/')}/blobs"
    model = OllamaModel(f"{blobs}/{_blob(weights[0])}", [_name(path)], layers, {})
    for layer in (layer for kind in layers.values() for layer in kind):
        _take(model, blobs, layer, fence)
    config = _blob(obj(manifest.get("config")))
    real = os.path.realpath(f"{blobs}/{config}")
    if config and fence.holds(real):
        try:
            model.config = read_json_object(real, limit=MAX_MANIFEST)
        except (Unusable, OSError):
            model.config = {}  # it only repeats what the weights say
    return model


def _take(model: OllamaModel, blobs: str, layer: dict[str, Any], fence: Fence) -> None:
    """Add the file of a layer, or what is wrong with it."""
    name = _blob(layer)
    real = os.path.realpath(f"{blobs}/{name}")
    size = layer["size"] if isinstance(layer.get("size"), int) else None
    if not fence.holds(real):
        model.problems.append(Problem(code="link_outside", params={"file": name}))
        return
    try:
        info = os.stat(real)  # noqa: PTH116
    except OSError:
        parts = os.path.exists(f"{blobs}/{name}-partial")  # noqa: PTH110
        code, params = ("incomplete_download", {"files": 1}) if parts else ("missing_parts", {"files": [name]})
        model.problems.append(Problem(code=code, params=params))
        return
    model.files[name] = local_file(name, real, info)
    if size is not None and info.st_size != size:
        code = "truncated" if info.st_size < size else "trailing_bytes"
        model.problems.append(Problem(code=code, params={"file": name, "size": info.st_size, "expected": size}))


def inspect_ollama(model: OllamaModel) -> Found:
    """Facts of the weights, with the template and defaults that stand beside them."""
    name = clean(model.names[0])
    parts = tuple(model.files[blob] for blob in model.blobs("model") if blob in model.files)
    if not parts:
        return _without_weights(model, name)
    found = inspect_gguf(GgufSet(stem=name, parts=parts), _projector(model), fallback_name=name)
    template = model.text("template", MAX_TEMPLATE)
    update: dict[str, Any] = {"origin": name, "licence": _licence(model) or found.facts.licence}
    if template.strip():
        update |= {"template_text": template, "template_source": "ollama", "chat_template": True}
        update["templates"] = found.facts.templates or ["default"]
        found.problems = [problem for problem in found.problems if problem.code != "no_chat_template"]
    found.facts = found.facts.model_copy(update=update | _defaults(model))
    known = {(problem.code, problem.params.get("file")) for problem in found.problems}
    found.problems += [p for p in model.problems if (p.code, p.params.get("file")) not in known]
    found.name, found.own = name, list(model.files.values())
    return found


def _without_weights(model: OllamaModel, name: str) -> Found:
    """Weights that are gone or on their way, or kept in a form of Ollama's own."""
    problems = model.problems or [Problem(code="ollama_form")]
    if "tensor" in model.layers:
        problems = [Problem(code="ollama_form"), *model.problems]
    facts = ModelFacts(format="gguf", origin=name, missing=[str(n) for n in model.blobs("model")])
    return Found(facts, name, problems, list(model.files.values()))


def _projector(model: OllamaModel) -> Beside:
    for blob in model.blobs("projector"):
        try:
            return Beside(projector=blob, inputs=tuple(projector_inputs(read_gguf(model.files[blob].real))))
        except (KeyError, OSError, Unusable):
            continue  # its absence is a problem already
    return Beside()


def _defaults(model: OllamaModel) -> dict[str, Any]:
    for blob in model.blobs("params"):
        try:
            told = read_json_object(model.files[blob].real, limit=MAX_MANIFEST)
        except (KeyError, OSError, Unusable):
            continue
        renamed = {{"repeat_penalty": "repetition_penalty"}.get(key, key): value for key, value in told.items()}
        return {"generation": generation_of(renamed)}
    return {}


def _licence(model: OllamaModel) -> str:
    """The first line of the licence's text that says something."""
    lines = model.text("license", MAX_MANIFEST)[:SHORT].splitlines()
    return clean(next((line for line in lines if line.strip()), ""), 60)


def _blob(layer: dict[str, Any]) -> str:
    """The file name of a layer; "" for a digest that is none."""
    algorithm, _, value = str(layer.get("digest", "")).replace("-", ":").partition(":")
    good = algorithm == "sha256" and len(value) == 64 and all(c in "0123456789abcdef" for c in value)
    return f"sha256-{value}" if good else ""


def _name(path: Path) -> str:
    """What people type: llama3.2:3b, someone/model:tag, hf.co/org/model:tag."""
    registry, namespace, model, tag = path.parts[-4:]
    if registry == DEFAULT_REGISTRY:
        return f"{model}:{tag}" if namespace == DEFAULT_NAMESPACE else f"{namespace}/{model}:{tag}"
    return f"{registry}/{namespace}/{model}:{tag}"
