"""From GGUF headers to ModelFacts: one file, or the parts of a split one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from models_catalog.facts import FileFact, ModelFacts, Problem, Quantisation, TaskKind
from models_catalog.inspect.fingerprint import fingerprint
from models_catalog.inspect.found import Found
from models_catalog.inspect.gguf import GgufHeader, Value, read_gguf
from models_catalog.inspect.gguf_geometry import gguf_geometry
from models_catalog.inspect.gguf_types import FILE_TYPES, PLAIN_TYPES, bits_of
from models_catalog.inspect.listing import Listing, LocalFile
from models_catalog.inspect.reading import Unusable, clean, whole

SPLIT = re.compile(r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
# The form at the end of a file's name: SmolLM2-135M-Instruct.Q4_1, model-IQ4_XS, gemma-f16.
FORM = re.compile(r"[-._]((?:UD-)?(?:I?Q\d[A-Z0-9_]*|TQ\d_0|BF16|F16|F32|FP16|MXFP4|NVFP4))$", re.IGNORECASE)
MAX_PARTS = 999
EMBEDDERS = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "t5encoder"}
)
POOLING_RANK = 4
DECOYS = frozenset({"model", "ggml-model", "gguf", "weights"})  # file names that name nothing


@dataclass(frozen=True)
class GgufSet:
    """The files of one model: a single one, or all parts that are there. `missing` names the absent parts."""

    stem: str
    parts: tuple[LocalFile, ...]
    missing: tuple[str, ...] = ()


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
        sets.append(GgufSet(stem=stem, parts=tuple(parts[no] for no in sorted(parts)), missing=absent))
    return sorted(sets, key=lambda one: one.stem)


def inspect_gguf(group: GgufSet, listing: Listing, *, fallback_name: str) -> Found:
    """Facts of one GGUF model. Never raises for what the files hold; `fallback_name` serves files called "model"."""
    problems: list[Problem] = []
    headers: list[GgufHeader] = []
    if group.missing:
        problems.append(Problem(code="missing_parts", params={"files": list(group.missing[:20])}))
    for part in group.parts:
        header = _header(part, problems)
        if header is not None:
            headers.append(header)
    size = sum(part.size for part in group.parts)
    facts = _facts(group, headers, listing)
    problems += _kind_problems(facts, headers)
    return Found(facts=facts, name=_name(group.stem, headers, fallback_name), problems=problems, size_bytes=size)


def _header(part: LocalFile, problems: list[Problem]) -> GgufHeader | None:
    name = clean(part.name)
    try:
        header = read_gguf(part.real)
    except Unusable as exc:
        problems.append(Problem(code=exc.problem.code, params={"file": name, **exc.problem.params}))
        return None
    except OSError:
        problems.append(Problem(code="cannot_read", params={"file": name}))
        return None
    if header.expected_size is None:
        problems.append(Problem(code="unknown_tensor_type", params={"file": name}))
    elif header.expected_size > part.size:
        expected = whole(header.expected_size) or 0
        problems.append(Problem(code="truncated", params={"file": name, "size": part.size, "expected": expected}))
    return header


def _facts(group: GgufSet, headers: list[GgufHeader], listing: Listing) -> ModelFacts:
    first = headers[0] if headers else None
    beside = listing.has("config.json") and bool(listing.tokenizer_file())
    files = [FileFact(name=clean(part.name), size=part.size, kind="weights") for part in group.parts]
    common = {
        "format": "gguf",
        "files": files,
        "file_count": len(group.parts),
        "missing": list(group.missing[:200]),
        "config_beside": beside,
        "fingerprint": fingerprint(group.parts),
        "label": _form_in_name(group.stem),
    }
    if first is None:
        return ModelFacts.model_validate(common)
    shape = {"geometry": gguf_geometry(first, tied=not any(header.has_output for header in headers))}
    return ModelFacts.model_validate(
        {**common, **shape, **_dimensions(first), **_weights(group, headers), **_words(first)}
    )


def _dimensions(header: GgufHeader) -> dict[str, object]:
    arch = clean(header.text("general.architecture"), 60)

    def number(name: str) -> int | None:
        return _largest(header.values.get(f"{arch}.{name}"))

    heads, width = number("attention.head_count"), number("embedding_length")
    head_dim = number("attention.key_length") or (width // heads if width and heads else None)
    vocab = header.lists.get("tokenizer.ggml.tokens") or (
        header.embedding_shape[1] if len(header.embedding_shape) == 2 else number("vocab_size")
    )
    context = number("context_length")
    return {
        "architectures": [arch] if arch else [],
        "model_type": arch,
        "layers": number("block_count"),
        "hidden_size": width,
        "heads": heads,
        "kv_heads": number("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "vocab_size": whole(vocab),
        "context_length": context,
        "context_source": f"{arch}.context_length" if context else "",
        "sliding_window": number("attention.sliding_window"),
        "experts": number("expert_count"),
        "experts_used": number("expert_used_count"),
        "tasks": _tasks(arch, header),
    }


def _largest(value: Value | None) -> int | None:
    """A number, or the largest of a per-layer list."""
    if isinstance(value, tuple):
        return max((n for item in value if (n := whole(item))), default=None)
    return whole(value)


def _tasks(arch: str, header: GgufHeader) -> list[TaskKind]:
    if not arch or _kind(header) != "model":
        return []
    pooling = header.values.get(f"{arch}.pooling_type")
    if pooling == POOLING_RANK:
        return ["score"]
    if arch in EMBEDDERS or whole(pooling):
        return ["embed"]
    return ["generate"]


def _kind(header: GgufHeader) -> str:
    """model, adapter or projector."""
    if header.text("general.type") == "adapter" or header.text("adapter.type"):
        return "adapter"
    if header.text("general.type") == "mmproj" or header.text("general.architecture") == "clip":
        return "projector"
    return "model"


def _weights(group: GgufSet, headers: list[GgufHeader]) -> dict[str, object]:
    by_type: dict[str, int] = {}
    for header in headers:
        for name, count in header.type_bytes.items():
            by_type[name] = by_type.get(name, 0) + count
    by_type = {name: count for name, count in by_type.items() if whole(count, low=0) is not None}
    file_type = headers[0].values.get("general.file_type")
    label = FILE_TYPES.get(file_type, "") if isinstance(file_type, int) else ""
    label = label or _form_in_name(group.stem) or max(by_type, key=lambda name: by_type[name], default="")
    plain = label in PLAIN_TYPES
    return {
        "parameters": whole(sum(header.elements for header in headers)),
        "weight_bytes": whole(sum(by_type.values())),
        "dtype": label,
        "dtype_bytes": by_type,
        "label": label,
        "quantisation": None if plain or not label else Quantisation(method="gguf", bits=bits_of(label), label=label),
    }


def _words(header: GgufHeader) -> dict[str, object]:
    template = "tokenizer.chat_template"
    has_template = template in header.values or template in header.lists
    has_words = "tokenizer.ggml.tokens" in header.lists
    return {
        "tokenizer": (clean(header.text("tokenizer.ggml.model"), 40) or "gguf") if has_words else "",
        "chat_template": has_template,
        "template_source": template if has_template else "",
    }


def _kind_problems(facts: ModelFacts, headers: list[GgufHeader]) -> list[Problem]:
    if not headers:
        return []
    kind = _kind(headers[0])
    if kind != "model":
        return [Problem(code=f"{kind}_only")]
    problems = []
    if not any(header.tensors for header in headers):
        problems.append(Problem(code="missing_weights"))
    if not facts.tokenizer:
        problems.append(Problem(code="missing_tokenizer"))
    if facts.tasks == ["generate"] and not facts.chat_template:
        problems.append(Problem(code="no_chat_template"))
    return problems


def _form_in_name(stem: str) -> str:
    match = FORM.search(stem)
    return match[1].upper() if match else ""


def _name(stem: str, headers: list[GgufHeader], fallback: str) -> str:
    base = clean(FORM.sub("", stem))
    if base.lower() in DECOYS or not base:
        told = clean(headers[0].text("general.name")) if headers else ""
        base = told or clean(fallback) or clean(stem)
    return base or "model"
