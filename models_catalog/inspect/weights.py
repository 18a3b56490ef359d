"""Which files of a Hugging Face folder are its weights, and which of them are not there. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from models_catalog.facts import Problem
from models_catalog.inspect.listing import Listing, LocalFile
from models_catalog.inspect.reading import LFS_MARK, Unusable, clean, open_regular

MAX_INDEX = 256 << 20  # bytes read of an index; the largest real ones have about 30 MiB
MAX_SHARDS = 10_000
CHUNK = 1 << 20
SHARD = re.compile(r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<end>\.(?:safetensors|bin))$")
# An index is "weight_map": {"tensor": "file", …}; only the distinct files matter, so it is scanned, not built.
_FILE = re.compile(rb':\s*"([^"\\\x00-\x1f]{1,255}\.(?:safetensors|bin))"')
_OVERLAP = 600
NOT_WEIGHTS = ("adapter_model", "optimizer", "training_args", "scheduler", "rng_state")
KINDS = (("model", ".safetensors"), ("pytorch_model", ".bin"))
# Cut for one tensor-parallel size: vLLM's own form, and the one of DeepSeek's converter.
RANKED = re.compile(r"^model-rank-(?P<rank>\d{1,5})-part-(?P<part>\d{1,5})\.safetensors$")
CUT = re.compile(r"^model(?P<rank>\d{1,5})-mp(?P<size>\d{1,5})\.safetensors$")
ZIP, ZIP_END, PICKLE = b"PK\x03\x04", b"PK\x05\x06", b"\x80"
ZIP_TAIL = 66 << 10  # a zip's end stands in its last bytes, before a note of at most 64 KiB


@dataclass
class Weights:
    """The weight files that are there, the names of those that are not, and what is wrong.

    `tensors` is how many the index expects in each file; `sharded_for` the tensor-parallel size they were cut for.
    """

    files: list[LocalFile] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    tensors: dict[str, int] = field(default_factory=dict)
    sharded_for: int | None = None


def select_weights(listing: Listing, kinds: Sequence[tuple[str, str]] = KINDS) -> Weights:
    """Safetensors first, pickled .bin files only without them; an index decides which shards belong."""
    cut = _cut(listing.named(end=".safetensors"))
    if cut is not None:
        return cut
    for stem, end in kinds:
        index = listing.files.get(f"{stem}{end}.index.json")
        files = [file for file in listing.named(end=end) if not file.name.startswith(NOT_WEIGHTS)]
        if index is not None:
            return _by_index(index, listing)
        if files:
            return _by_pattern(files, stem, end)
    return Weights(problems=[Problem(code="missing_weights")])


def _cut(files: list[LocalFile]) -> Weights | None:
    """Files of ranks, when no file of a whole model is there. Engines read them only at the very same size."""
    ranked = [(file, m) for file in files if (m := RANKED.match(file.name))]
    cut = [(file, m) for file in files if (m := CUT.match(file.name))]
    if not (ranked or cut) or any(file.name.startswith(("model.", "model-0", "consolidated")) for file in files):
        return None
    ranks = {int(m["rank"]) for _, m in ranked or cut}
    size = max(ranks) + 1 if ranked else max(int(m["size"]) for _, m in cut)
    result = Weights(files=[file for file, _ in ranked or cut], sharded_for=size)
    if size <= MAX_SHARDS:
        form = "model-rank-{}-part-0.safetensors" if ranked else f"model{{}}-mp{size}.safetensors"
        result.missing = [form.format(rank) for rank in range(size) if rank not in ranks]
    result.problems.append(Problem(code="presharded", params={"n": size}))
    return _with_missing(result, size)


def _by_index(index: LocalFile, listing: Listing) -> Weights:
    try:
        names = shard_names(index)  # with the number of tensors in each
    except Unusable as exc:
        return Weights(problems=[exc.problem])
    except OSError:
        return Weights(problems=[Problem(code="cannot_read", params={"file": clean(index.name)})])
    result = Weights(tensors=names)
    for name in names:
        if name in listing.files:
            result.files.append(listing.files[name])
        else:
            result.missing.append(clean(name))
    return _with_missing(result, len(names))


def _by_pattern(files: list[LocalFile], usual: str, end: str) -> Weights:
    """Without an index: one file of the usual name, else the numbered parts, else everything there is."""
    for file in files:
        if file.name == usual + end:
            return Weights(files=[file])
    matches = [(file, m) for file in files if (m := SHARD.match(file.name))]
    if not matches:
        return Weights(files=files)
    matches.sort(key=lambda pair: pair[1]["stem"] != usual)  # the usual name first, where there are two sets
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


def shard_names(index: LocalFile) -> dict[str, int]:
    """The files an index names, sorted, and how many tensors each holds. Raises Unusable (bad_index, zero_bytes,
    lfs_pointer) or OSError."""
    if index.size == 0:
        raise Unusable("zero_bytes", file=clean(index.name))
    names: Counter[bytes] = Counter()
    tail, total = b"", 0
    with open_regular(index.real) as file:
        while chunk := file.read(CHUNK):
            total += len(chunk)
            known = len(tail := tail[-_OVERLAP:])
            tail += chunk
            # What ends in the overlap was counted before.
            names.update(match[1] for match in _FILE.finditer(tail) if match.end() > known)
            if total > MAX_INDEX or len(names) > MAX_SHARDS:
                raise Unusable("header_too_large", file=clean(index.name), limit=MAX_INDEX)
    if tail.startswith(LFS_MARK):
        raise Unusable("lfs_pointer", file=clean(index.name))
    decoded = {name.decode("utf-8", "replace"): count for name, count in sorted(names.items())}
    outside = [name for name in decoded if "/" in name or name.startswith(".")]
    if not decoded or outside or not tail.rstrip().endswith(b"}"):
        raise Unusable("bad_index", file=clean(index.name))
    return decoded


def pickled_damage(file: LocalFile) -> str:
    """The code of what the two ends of a pickled weight file show; "" when it looks whole. It is never loaded."""
    if file.size == 0:
        return "zero_bytes"
    with open_regular(file.real) as stream:
        start = stream.read(len(LFS_MARK))
        if start == LFS_MARK:
            return "lfs_pointer"
        if start.startswith(PICKLE):  # of before PyTorch 1.6, which tells no end
            return ""
        if not start.startswith(ZIP):
            return "bad_header"
        stream.seek(max(0, file.size - ZIP_TAIL))
        return "" if ZIP_END in stream.read(ZIP_TAIL) else "truncated"
