"""Which files of a Hugging Face folder are its weights, and which of them are not there. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from models_catalog.facts import Problem
from models_catalog.inspect.listing import Listing, LocalFile
from models_catalog.inspect.reading import Unusable, clean, open_regular

MAX_INDEX = 256 << 20  # bytes read of an index; the largest real ones have about 30 MiB
MAX_SHARDS = 10_000
CHUNK = 1 << 20
SHARD = re.compile(r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<end>\.(?:safetensors|bin))$")
# An index is "weight_map": {"tensor": "file", …}; only the distinct files matter, so it is scanned, not built.
_FILE = re.compile(rb':\s*"([^"\\\x00-\x1f]{1,255}\.(?:safetensors|bin))"')
_OVERLAP = 600
NOT_WEIGHTS = ("adapter_model", "optimizer", "training_args", "scheduler", "rng_state")
KINDS = (("model", ".safetensors"), ("pytorch_model", ".bin"))


@dataclass
class Weights:
    """The weight files that are there, the names of those that are not, and what is wrong."""

    files: list[LocalFile] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def select_weights(listing: Listing) -> Weights:
    """Safetensors first, pickled .bin files only without them; an index decides which shards belong."""
    for stem, end in KINDS:
        index = listing.files.get(f"{stem}{end}.index.json")
        files = [file for file in listing.named(end=end) if not file.name.startswith(NOT_WEIGHTS)]
        if index is not None:
            return _by_index(index, listing)
        if files:
            return _by_pattern(files, f"{stem}{end}")
    return Weights(problems=[Problem(code="missing_weights")])


def _by_index(index: LocalFile, listing: Listing) -> Weights:
    try:
        names = shard_names(index)
    except Unusable as exc:
        return Weights(problems=[exc.problem])
    except OSError:
        return Weights(problems=[Problem(code="cannot_read", params={"file": clean(index.name)})])
    result = Weights()
    for name in names:
        if name in listing.files:
            result.files.append(listing.files[name])
        else:
            result.missing.append(clean(name))
    return _with_missing(result, len(names))


def _by_pattern(files: list[LocalFile], whole_name: str) -> Weights:
    """Without an index: one file of the usual name, else the numbered parts, else everything there is."""
    for file in files:
        if file.name == whole_name:
            return Weights(files=[file])
    matches = [(file, m) for file in files if (m := SHARD.match(file.name))]
    if not matches:
        return Weights(files=files)
    stem, count, end = matches[0][1]["stem"], int(matches[0][1]["count"]), matches[0][1]["end"]
    parts = {int(m["no"]): file for file, m in matches if m["stem"] == stem and int(m["count"]) == count}
    result = Weights(files=list(parts.values()))
    if 1 <= count <= MAX_SHARDS:
        result.missing = [f"{clean(stem)}-{n:05d}-of-{count:05d}{end}" for n in range(1, count + 1) if n not in parts]
    return _with_missing(result, count)


def _with_missing(result: Weights, total: int) -> Weights:
    if result.missing:
        params = {"files": result.missing[:20], "count": len(result.missing), "total": total}
        result.problems.append(Problem(code="missing_parts", params=params))
    return result


def shard_names(index: LocalFile) -> list[str]:
    """The distinct files an index names, sorted. Raises Unusable (bad_index, zero_bytes, lfs_pointer) or OSError."""
    if index.size == 0:
        raise Unusable("zero_bytes", file=clean(index.name))
    names: set[bytes] = set()
    tail, total = b"", 0
    with open_regular(index.real) as file:
        while chunk := file.read(CHUNK):
            total += len(chunk)
            tail = tail[-_OVERLAP:] + chunk
            names.update(match[1] for match in _FILE.finditer(tail))
            if total > MAX_INDEX or len(names) > MAX_SHARDS:
                raise Unusable("header_too_large", file=clean(index.name), limit=MAX_INDEX)
    if tail.startswith(b"version https://git-lfs"):
        raise Unusable("lfs_pointer", file=clean(index.name))
    decoded = sorted(name.decode("utf-8", "replace") for name in names)
    outside = [name for name in decoded if "/" in name or name.startswith(".")]
    if not decoded or outside or not tail.rstrip().endswith(b"}"):
        raise Unusable("bad_index", file=clean(index.name))
    return decoded
