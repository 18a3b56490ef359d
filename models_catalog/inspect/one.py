"""The model at one path: a Hugging Face folder (also a snapshot of the cache), a GGUF file, or a config.json. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config
from models_catalog.inspect.found import Found
from models_catalog.inspect.gguf import MAGIC
from models_catalog.inspect.gguf_facts import beside, inspect_gguf
from models_catalog.inspect.gguf_split import GgufSet, group_gguf
from models_catalog.inspect.hf import inspect_hf
from models_catalog.inspect.hf_cache import CACHE_FOLDER
from models_catalog.inspect.listing import Listing, list_folder, local_file
from models_catalog.inspect.reading import Fence, Unusable, open_regular, read_json_object
from models_catalog.inspect.scan import plain, scan_roots


def facts_at(path: Path) -> ModelFacts:
    """Raises Unusable (no_model, many_models, or what is wrong with the file) or OSError."""
    if path.suffix == ".json":
        return facts_of_config(read_json_object(os.path.realpath(path)))
    if not path.is_dir():
        return _file(path).facts
    listing = _listing(path)
    if (found := inspect_hf(listing, name=path.name)) is not None:
        return found.facts
    groups = group_gguf(listing.named(end=".gguf"))
    if not groups:
        raise Unusable("no_model", path=str(path))
    if len(groups) > 1:
        raise Unusable("many_models", path=str(path), files=[group.parts[0].name for group in groups][:20])
    return inspect_gguf(groups[0], beside(listing), fallback_name=path.name).facts


def look_at(path: Path) -> Iterator[dict[str, Any]]:
    """All models at or below a path, as a scan yields them but with all facts; a folder ends with an item for itself.

    Raises Unusable (no_model, or what is wrong with a configuration) or OSError.
    """
    if path.is_dir():
        real = os.path.realpath(path)
        for item in scan_roots([Path(real)], allowed=_cache_of(Path(real))):
            whole = item["facts"] and ModelFacts.from_dict(item["facts"]).to_dict()
            yield {**item, "facts": whole}
        return
    found = Found(facts_at(path), path.resolve().parent.name) if path.suffix == ".json" else _file(path)
    record = plain(found)
    wanted = {"name": record["name"], "facts": found.facts.to_dict(), "problems": record["problems"]}
    shape = {"path": str(path), "root": "", "format": found.facts.format, "size_bytes": record["size"]}
    yield {**shape, "files": found.facts.file_count, **wanted}


def _file(path: Path) -> Found:
    """A GGUF file with the other parts of it; a weight file stands for its folder. Whatever its ending, for blobs."""
    listing = _listing(path.parent)
    for group in group_gguf(listing.named(end=".gguf")):
        if any(part.name == path.name for part in group.parts):
            return inspect_gguf(group, beside(listing), fallback_name=path.parent.name)
    real = os.path.realpath(path)
    with open_regular(real) as file:
        magic = file.read(len(MAGIC))
    if magic == MAGIC or path.suffix.lower() == ".gguf":
        file_ = local_file(path.name, real, os.stat(real))  # noqa: PTH116
        return inspect_gguf(GgufSet(path.stem, (file_,)), beside(listing), fallback_name=path.parent.name)
    found = inspect_hf(listing, name=path.resolve().parent.name)
    if found is None or not listing.has(path.name):
        raise Unusable("no_model", path=str(path))
    return found


def _listing(folder: Path) -> Listing:
    """What lies in a folder; the snapshots of a cache link to files beside them."""
    real = Path(os.path.realpath(folder))
    with os.scandir(real) as entries:
        return list_folder(str(real), list(entries), Fence(str(place) for place in [real, *_cache_of(real)]))


def _cache_of(real: Path) -> list[Path]:
    """The folder of the Hugging Face cache that a path lies in."""
    return [above for above in real.parents if above.name.startswith(CACHE_FOLDER)][:1]
