"""The parts of a split GGUF file: which files belong together, and whether they really do. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from models_catalog.facts import Problem
from models_catalog.inspect.gguf import GgufHeader
from models_catalog.inspect.listing import LocalFile
from models_catalog.inspect.reading import clean, whole

SPLIT = re.compile(r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
MAX_PARTS = 999


@dataclass(frozen=True)
class GgufSet:
    """The files of one model: a single one, or all parts that are there. `missing` names the absent parts."""

    stem: str
    parts: tuple[LocalFile, ...]
    missing: tuple[str, ...] = ()
    count: int = 1


def group_gguf(files: list[LocalFile]) -> list[GgufSet]:
    """GGUF files of one folder as models: parts of a split file belong together."""
    sets: list[GgufSet] = []
    splits: dict[tuple[str, int], dict[int, LocalFile]] = {}
    for file in files:
        match = SPLIT.match(file.name)
        count = int(match["count"]) if match else 0
        if match and 1 <= int(match["no"]) <= count <= MAX_PARTS:
            splits.setdefault((match["stem"], count), {})[int(match["no"])] = file
        else:
            sets.append(GgufSet(stem=file.name[:-5], parts=(file,)))
    for (stem, count), parts in splits.items():
        absent = tuple(f"{stem}-{no:05d}-of-{count:05d}.gguf" for no in range(1, count + 1) if no not in parts)
        sets.append(GgufSet(stem=stem, parts=tuple(parts[no] for no in sorted(parts)), missing=absent, count=count))
    return sorted(sets, key=lambda one: one.stem)


def split_problems(group: GgufSet, headers: Sequence[tuple[LocalFile, GgufHeader]]) -> list[Problem]:
    """Parts that are missing, or whose headers say that they are other parts than their names do."""
    problems = []
    if group.missing:
        problems.append(Problem(code="missing_parts", params={"files": [clean(name) for name in group.missing[:20]]}))
    for part, header in headers:
        told = whole(header.values.get("split.count"), low=0)
        match = SPLIT.match(part.name)
        if told is None or told <= 1:
            continue
        if not match or told != group.count or whole(header.values.get("split.no"), low=0) != int(match["no"]) - 1:
            problems.append(Problem(code="split_mismatch", params={"file": clean(part.name), "count": told}))
    total = next((n for _, h in headers if (n := whole(h.values.get("split.tensors.count")))), None)
    found = sum(header.tensors for _, header in headers)
    if total and not problems and len(headers) == group.count and found != total:
        params = {"file": clean(group.parts[0].name), "tensors": found, "expected": total}
        problems.append(Problem(code="wrong_shard", params=params))
    return problems
