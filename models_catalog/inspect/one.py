"""The model at one path: a Hugging Face folder (also a snapshot of the cache), a GGUF file, or a config.json. Pure."""

from __future__ import annotations

import os
from pathlib import Path

from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config
from models_catalog.inspect.gguf_facts import beside, inspect_gguf
from models_catalog.inspect.gguf_split import group_gguf
from models_catalog.inspect.hf import inspect_hf
from models_catalog.inspect.hf_cache import CACHE_FOLDER
from models_catalog.inspect.listing import Listing, list_folder
from models_catalog.inspect.reading import Fence, Unusable, read_json_object


def facts_at(path: Path) -> ModelFacts:
    """Raises Unusable (no_model, many_models, or what is wrong with the file) or OSError."""
    if path.suffix == ".json":
        return facts_of_config(read_json_object(os.path.realpath(path)))
    folder = path if path.is_dir() else path.parent
    listing = _listing(folder)
    if path.is_dir() and (found := inspect_hf(listing, name=path.name)) is not None:
        return found.facts
    groups = group_gguf(listing.named(end=".gguf"))
    if not path.is_dir():
        groups = [group for group in groups if any(part.name == path.name for part in group.parts)]
    if not groups:
        raise Unusable("no_model", path=str(path))
    if len(groups) > 1:
        raise Unusable("many_models", path=str(path), files=[group.parts[0].name for group in groups][:20])
    return inspect_gguf(groups[0], beside(listing), fallback_name=path.name).facts


def _listing(folder: Path) -> Listing:
    """What lies in a folder; the snapshots of a cache link to files beside them."""
    real = Path(os.path.realpath(folder))
    cache = next((above for above in real.parents if above.name.startswith(CACHE_FOLDER)), None)
    with os.scandir(real) as entries:
        return list_folder(str(real), list(entries), Fence([str(cache or real)]))
