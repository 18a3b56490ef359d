"""From GGUF headers to ModelFacts: one file, or the parts of a split one. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models_catalog.facts import Adapter, FileFact, Input, ModelFacts, Problem, Purpose, Quantisation, TaskKind
from models_catalog.inspect.chat_template import template_text
from models_catalog.inspect.fingerprint import fingerprint
from models_catalog.inspect.found import Found
from models_catalog.inspect.gguf import GgufHeader, read_gguf
from models_catalog.inspect.gguf_geometry import gguf_geometry, largest, latent, layer_count, per_layer, rope_of
from models_catalog.inspect.gguf_split import GgufSet, split_problems
from models_catalog.inspect.gguf_types import FILE_TYPES, PLAIN_TYPES, bits_of
from models_catalog.inspect.listing import Listing, LocalFile
from models_catalog.inspect.reading import Unusable, clean, real, whole

# The form at the end of a file's name: SmolLM2-135M-Instruct.Q4_1, model-IQ4_XS, gemma-f16.
FORM = re.compile(r"[-._]((?:UD-)?(?:I?Q\d[A-Z0-9_]*|TQ\d_0|BF16|F16|F32|FP16|MXFP4(?:_MOE)?|NVFP4))$", re.IGNORECASE)
EMBEDDERS = frozenset({
    "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "t5encoder",
    "gemma-embedding", "eurobert",
})  # fmt: skip
# Architectures that paint, film or read another language: not asked for texts here.
NOT_TEXT: dict[str, Purpose] = {
    "t5": "translate",
    **dict.fromkeys(
        ("flux", "sd1", "sdxl", "sd3", "aura", "wan", "ltxv", "hunyuan_video", "qwen_image", "lumina2"), ""
    ),
}
POOLING_RANK = 4
DECOYS = frozenset({"model", "ggml-model", "gguf", "weights"})  # file names that name nothing
SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
TEMPLATE = "tokenizer.chat_template"
# tokenizer.ggml.model → how it cuts words
TOKENIZERS = {
    "llama": "sentencepiece",
    "gpt2": "bpe",
    "bert": "wordpiece",
    "t5": "unigram",
    "gemma4": "bpe",
    "plamo2": "unigram",
    "rwkv": "trie",
}


@dataclass(frozen=True)
class Beside:
    """What lies in a GGUF file's folder and belongs to it: the means to serve it with vLLM, a file that sees for it."""

    config: bool = False
    projector: str = ""
    inputs: tuple[Input, ...] = ()


def projectors(listing: Listing) -> list[LocalFile]:
    """Files that see or hear for others, by the name that they are always given."""
    return [file for file in listing.named(end=".gguf") if "mmproj" in file.name.lower()]


def beside(listing: Listing) -> Beside:
    """Looked up once a folder. The projector is the only one, or the first by name; its header says what it is for."""
    config = listing.has("config.json") and bool(listing.tokenizer_file())
    for file in projectors(listing):
        try:
            header = read_gguf(file.real)
        except (Unusable, OSError):
            continue  # listed by itself, with what is wrong with it
        if kind_of(header) == "projector":
            return Beside(config, clean(file.name), tuple(projector_inputs(header)))
    return Beside(config)


def inspect_gguf(group: GgufSet, around: Beside, *, fallback_name: str) -> Found:
    """Facts of one GGUF model. Never raises for what the files hold; `fallback_name` serves files called "model"."""
    problems: list[Problem] = []
    read = [(part, header) for part in group.parts if (header := _header(part, problems)) is not None]
    problems = split_problems(group, read) + problems
    headers = [header for _, header in read]
    facts = _facts(group, headers, around)
    problems += _kind_problems(facts, headers)
    return Found(facts=facts, name=_name(group.stem, headers, fallback_name), problems=problems, own=list(group.parts))


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
    if header.big_endian != (sys.byteorder == "big"):
        problems.append(Problem(code="byte_order", params={"file": name}))
    if header.expected_size is None:
        problems.append(Problem(code="unknown_tensor_type", params={"file": name}))
    elif header.expected_size > part.size:
        expected = whole(header.expected_size) or 0
        problems.append(Problem(code="truncated", params={"file": name, "size": part.size, "expected": expected}))
    return header


def _facts(group: GgufSet, headers: Sequence[GgufHeader], around: Beside) -> ModelFacts:
    first = headers[0] if headers else None
    files = [FileFact(name=clean(part.name), size=part.size, kind="weights") for part in group.parts]
    common = {
        "format": "gguf",
        "files": files,
        "file_count": len(group.parts),
        "missing": [clean(name) for name in group.missing[:200]],
        "config_beside": around.config,
        "fingerprint": fingerprint(group.parts),
        "label": _form_in_name(group.stem),
    }
    if first is None:
        return ModelFacts.model_validate(common)
    arch = clean(first.text("general.architecture"), 60)
    shape = {"geometry": gguf_geometry(first, tied=not any(header.has_output for header in headers))}
    parts = {
        **common,
        **shape,
        **_dimensions(first, arch, around),
        **_attention(first, arch),
        **_weights(group, headers),
    }
    return ModelFacts.model_validate({**parts, **_words(first), **_use(first, arch, around)})


def _dimensions(header: GgufHeader, arch: str, around: Beside) -> dict[str, object]:
    def number(name: str) -> int | None:
        return largest(header.values.get(f"{arch}.{name}"))

    vocab = header.lists.get("tokenizer.ggml.tokens") or (
        header.embedding_shape[1] if len(header.embedding_shape) == 2 else number("vocab_size")
    )
    context, rope = number("context_length"), rope_of(header, arch)
    settled = not around.config and not (rope is not None and rope.scaling)
    return {
        "architectures": [arch] if arch else [],
        "model_type": arch,
        "layers": layer_count(header, arch) or None,
        "hidden_size": number("embedding_length"),
        "vocab_size": whole(vocab),
        "context_length": context,
        "context_source": f"{arch}.context_length" if context else "",
        "context_named": context if settled else None,
        "rope": rope,
        "sliding_window": number("attention.sliding_window"),
        "experts": number("expert_count"),
        "experts_used": number("expert_used_count"),
    }


def _attention(header: GgufHeader, arch: str) -> dict[str, object]:
    """Heads and their widths. Latent attention tells the widths before compression beside those of its cache."""

    def number(name: str) -> int | None:
        return largest(header.values.get(f"{arch}.attention.{name}"))

    width, heads = largest(header.values.get(f"{arch}.embedding_length")), number("head_count")
    by_layer = per_layer(header, arch, "attention.head_count_kv")
    even = width // heads if width and heads else None
    compressed = latent(header, arch)
    key = compressed.nope + compressed.rope if compressed else number("key_length") or even
    value = compressed.value if compressed else number("value_length") or even
    return {
        "heads": heads,
        "kv_heads": number("head_count_kv") or heads,
        "heads_by_layer": by_layer if len(set(by_layer)) > 1 else [],
        "head_dim": key,
        "key_length": key,
        "value_length": value,
    }


def _use(header: GgufHeader, arch: str, around: Beside) -> dict[str, object]:
    """What it is for, and what it takes in."""
    kind = kind_of(header)
    purpose = _purpose(arch, header) if kind == "model" else ""
    tasks: dict[str, list[TaskKind]] = {"generate": ["generate"], "embed": ["embed"], "rerank": ["score"]}
    inputs: list[Input] = ["text"] if purpose else projector_inputs(header) if kind == "projector" else []
    projector = around.projector if purpose == "generate" else ""
    return {
        "purpose": purpose,
        "tasks": tasks.get(purpose, []),
        "inputs": [*inputs, *around.inputs] if projector else inputs,
        "projector": projector,
        "adapter": _adapter(header) if kind == "adapter" else None,
        "licence": clean(header.text("general.license"), 60),
        "origin": clean(header.text("general.source.repo_url") or header.text("general.repo_url")),
    }


def _purpose(arch: str, header: GgufHeader) -> Purpose:
    pooling = header.values.get(f"{arch}.pooling_type")
    if not arch or arch in NOT_TEXT:
        return NOT_TEXT.get(arch, "")
    if pooling == POOLING_RANK:
        return "rerank"
    return "embed" if arch in EMBEDDERS or whole(pooling) else "generate"


def _adapter(header: GgufHeader) -> Adapter:
    return Adapter(
        kind=clean(header.text("adapter.type"), 20) or "lora",
        base=clean(header.text("general.base_model.0.repo_url") or header.text("general.base_model.0.name")),
        rank=whole(header.lora_rank),
        alpha=real(header.values.get("adapter.lora.alpha")),
    )


def kind_of(header: GgufHeader) -> str:
    """model, adapter, projector or imatrix."""
    told = header.text("general.type")
    if told == "adapter" or header.text("adapter.type"):
        return "adapter"
    if told == "mmproj" or header.text("general.architecture") == "clip":
        return "projector"
    return "imatrix" if told == "imatrix" else "model"


def projector_inputs(header: GgufHeader) -> list[Input]:
    """What a projector lets a model take in; old ones only see, and do not say so."""
    heard, seen = (header.values.get(f"clip.has_{part}_encoder") is True for part in ("audio", "vision"))
    found: list[Input] = ["image"] if seen or not heard else []
    return [*found, "audio"] if heard else found


def _weights(group: GgufSet, headers: Sequence[GgufHeader]) -> dict[str, object]:
    by_type: dict[str, int] = {}
    for header in headers:
        for name, count in header.type_bytes.items():
            by_type[name] = by_type.get(name, 0) + count
    by_type = {name: count for name, count in by_type.items() if whole(count, low=0) is not None}
    file_type = headers[0].values.get("general.file_type")
    label = FILE_TYPES.get(file_type, "") if isinstance(file_type, int) else ""
    label = label or _form_in_name(group.stem) or max(by_type, key=lambda name: by_type[name], default="")
    plain = label in PLAIN_TYPES
    complete = not group.missing and len(headers) == len(group.parts)  # half a sum would be a wrong number
    return {
        "parameters": whole(sum(header.parameters for header in headers)) if complete else None,
        "weight_bytes": whole(sum(by_type.values())) if complete else None,
        "dtype": label,
        "dtype_bytes": by_type,
        "label": label,
        "quantisation": None if plain or not label else Quantisation(method="gguf", bits=bits_of(label), label=label),
    }


def _words(header: GgufHeader) -> dict[str, Any]:
    """Tokenizer and templates. A model may bring several: the one without a name and named ones."""
    has_words = "tokenizer.ggml.tokens" in header.lists
    kind = (clean(header.text("tokenizer.ggml.model"), 40) or "gguf") if has_words else ""
    keys = {key for key in {*header.values, *header.lists} if header.values.get(key) != ""}
    named = sorted(clean(key[len(TEMPLATE) + 1 :], 40) for key in keys if key.startswith(TEMPLATE + "."))
    templates = [*(["default"] if TEMPLATE in keys else []), *(name for name in named if name)][:20]
    place = (TEMPLATE if TEMPLATE in keys else f"{TEMPLATE}.{templates[0]}") if templates else ""
    return {
        "tokenizer": kind,
        "tokenizer_kind": TOKENIZERS.get(kind, kind),
        "chat_template": bool(templates),
        "template_source": place,
        "templates": templates,
        "template_text": template_text(header.text(place)) if place else "",
        "generation": {
            name: number for key, name in SAMPLING.items() if (number := real(header.values.get(key))) is not None
        },
    }


def _kind_problems(facts: ModelFacts, headers: Sequence[GgufHeader]) -> list[Problem]:
    if not headers:
        return []
    kind = kind_of(headers[0])
    if kind != "model":
        base = facts.adapter.base if facts.adapter else ""
        return [Problem(code=f"{kind}_only", params={"base": base} if kind == "adapter" else {})]
    problems = []
    if not any(header.tensors for header in headers):
        problems.append(Problem(code="missing_weights"))
    if not facts.tokenizer:
        problems.append(Problem(code="missing_tokenizer"))
    if facts.tasks == ["generate"] and not facts.chat_template:
        problems.append(Problem(code="no_chat_template"))
    if not facts.tasks:
        problems.append(Problem(code="unknown_task", params={"architecture": facts.architecture}))
    return problems


def _form_in_name(stem: str) -> str:
    match = FORM.search(stem)
    return match[1].upper() if match else ""


def _name(stem: str, headers: Sequence[GgufHeader], fallback: str) -> str:
    base = clean(FORM.sub("", stem))
    if base.lower() in DECOYS or not base:
        told = clean(headers[0].text("general.name")) if headers else ""
        base = told or clean(fallback) or clean(stem)
    return base or "model"
