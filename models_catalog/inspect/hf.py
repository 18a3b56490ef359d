"""Inspection of a Hugging Face folder: config.json, weights' headers, tokenizer, template. Pure; runs no model code."""

from __future__ import annotations

from typing import Any, Literal

from models_catalog.facts import FileFact, ModelFacts, Problem, Quantisation
from models_catalog.inspect import hf_config
from models_catalog.inspect.chat_template import template_source
from models_catalog.inspect.fingerprint import fingerprint
from models_catalog.inspect.found import Found
from models_catalog.inspect.hf_geometry import geometry
from models_catalog.inspect.hf_packing import packing
from models_catalog.inspect.listing import Listing, LocalFile
from models_catalog.inspect.reading import Unusable, clean, read_json_object
from models_catalog.inspect.safetensors import Weights, read_safetensors
from models_catalog.inspect.tokenizer import is_tokenizer_file, tokenizer_of
from models_catalog.inspect.weights import select_weights

MAX_FILES = 1000  # named in the facts; all are counted
MAX_CODE = 100
RELEVANT = (".safetensors", ".bin", ".json", ".model", ".jinja", ".txt", ".tiktoken", ".py")
FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8", "F64": "float64"}
ADAPTER, CONFIG = "adapter_config.json", "config.json"


def inspect_hf(listing: Listing, *, name: str) -> Found | None:
    """Facts of the model in a folder; None when it holds no Hugging Face model. Never raises for its content."""
    problems = [p for p in listing.problems if str(p.params.get("file", "")).endswith(RELEVANT)]
    if not listing.has(CONFIG):
        return _without_config(listing, name, problems)
    config = _json(listing, CONFIG, problems)
    told = bool(config.get("model_type") or config.get("architectures"))
    has_weights = bool(listing.named(end=".safetensors"))
    if not told and not has_weights:
        return None  # many programs have a config.json
    if not told and not any(problem.blocking for problem in problems):
        problems.append(Problem(code="bad_config", params={"file": CONFIG}))
    return _inspect(listing, config, name, problems)


def _without_config(listing: Listing, name: str, problems: list[Problem]) -> Found | None:
    if listing.has(ADAPTER):
        adapter = _json(listing, ADAPTER, problems)
        base = clean(adapter.get("base_model_name_or_path"))
        problems.insert(0, Problem(code="adapter_only", params={"base": base}))
    elif listing.has("model.safetensors.index.json") or (
        listing.named(end=".safetensors", start="model") and listing.tokenizer_file()
    ):
        problems.insert(0, Problem(code="bad_config", params={"file": CONFIG}))
    else:
        return None
    files = [*listing.named(end=".safetensors"), *listing.named(end=".json")]
    facts = ModelFacts(format="hf", label="LoRA" if listing.has(ADAPTER) else "", **_files(listing, files))
    return Found(facts=facts, name=name, problems=problems, size_bytes=sum(file.size for file in files))


def _inspect(listing: Listing, config: dict[str, Any], name: str, problems: list[Problem]) -> Found:
    tokenizer_config = _json(listing, "tokenizer_config.json", problems)
    extra = _json(listing, "hf_quant_config.json", problems) or _json(listing, "quantize_config.json", problems)
    quantisation = hf_config.quantisation(config, extra)
    selected = select_weights(listing)
    problems += selected.problems
    weights = _read_weights(selected.files, problems)
    tokenizer = tokenizer_of(listing, tokenizer_config)
    template = template_source(listing, tokenizer_config)
    tasks = hf_config.tasks(config, sentence_embedding=listing.has("modules.json"))
    dtype = hf_config.dtype(config) or _main_format(weights)
    complete = bool(weights and weights.tensors and not selected.missing)
    scheme, plain_parts = packing(config, extra)
    facts = ModelFacts(
        format="hf",
        label=quantisation.label if quantisation else dtype,
        architectures=hf_config.architectures(config),
        parameters=weights.parameters(quantisation.bits if quantisation else None) if weights and complete else None,
        weight_bytes=sum(file.size for file in selected.files) or None,
        dtype=dtype,
        dtype_bytes=weights.bytes_by_format if weights else {},
        quantisation=quantisation,
        tasks=tasks,
        tokenizer=tokenizer,
        chat_template=bool(template),
        template_source=template,
        needs_remote_code=hf_config.needs_remote_code(config, tokenizer_config),
        code_files=[clean(file.name) for file in listing.named(end=".py")][:MAX_CODE],
        missing=selected.missing[:200],
        geometry=geometry(config),
        weight_scheme=scheme,
        plain_parts=plain_parts,
        **hf_config.dimensions(config),
        **_files(listing, _own_files(listing, selected.files)),
    )
    problems += _judge(facts, weights if complete else None)
    return Found(facts=facts, name=name, problems=problems, size_bytes=_size(listing, selected.files))


def _json(listing: Listing, name: str, problems: list[Problem]) -> dict[str, Any]:
    """The object of a configuration file; an empty one, and a problem, when it cannot be used."""
    file = listing.files.get(name)
    if file is None:
        return {}
    try:
        return read_json_object(file.real)
    except Unusable as exc:
        problems.append(exc.problem)
    except OSError:
        problems.append(Problem(code="cannot_read", params={"file": name}))
    return {}


def _read_weights(files: list[LocalFile], problems: list[Problem]) -> Weights | None:
    """Sums of all safetensors headers; None when there are none or one is damaged. Pickled files are not opened."""
    total, good = Weights(), bool(files)
    for file in files:
        name = clean(file.name)
        if not file.name.endswith(".safetensors"):
            good = False
            if file.size == 0:
                problems.append(Problem(code="zero_bytes", params={"file": name}))
            continue
        try:
            total.merge(read_safetensors(file.real))
        except Unusable as exc:
            problems.append(Problem(code=exc.problem.code, params={"file": name, **exc.problem.params}))
            good = False
        except OSError:
            problems.append(Problem(code="cannot_read", params={"file": name}))
            good = False
    return total if good else None


def _judge(facts: ModelFacts, weights: Weights | None) -> list[Problem]:
    """Problems that only the whole picture shows."""
    problems = []
    if weights is not None and weights.tensors == 0:
        problems.append(Problem(code="missing_weights"))
    if weights is not None and facts.quantisation and not _has_quantised(facts.quantisation, weights):
        problems.append(Problem(code="quantisation_not_in_weights", params={"method": facts.quantisation.method}))
    if not facts.tokenizer and facts.tasks:
        problems.append(Problem(code="missing_tokenizer"))
    if facts.tasks == ["generate"] and not facts.chat_template:
        problems.append(Problem(code="no_chat_template"))
    if not facts.tasks:
        problems.append(Problem(code="unknown_task", params={"architecture": facts.architecture}))
    if facts.needs_remote_code:
        problems.append(Problem(code="needs_remote_code", params={"files": facts.code_files[:20]}))
    return problems


def _has_quantised(quantisation: Quantisation, weights: Weights) -> bool:
    """Engines trust the configuration: weights that are not packed as it says are served as noise."""
    formats = set(weights.bytes_by_format)
    if quantisation.method in ("gptq", "awq"):
        return bool(formats & {"I32", "U32"})
    if quantisation.method == "fp8":
        return any(name.startswith("F8") for name in formats)
    if quantisation.method in ("mxfp4", "nvfp4"):
        return bool(formats & {"U8", "F4", "I8"})
    return True


def _main_format(weights: Weights | None) -> str:
    sizes = weights.bytes_by_format if weights else {}
    return FLOATS.get(max(sizes, key=lambda name: sizes[name], default=""), "")


def _own_files(listing: Listing, weights: list[LocalFile]) -> list[LocalFile]:
    """What makes this model what it is: weights, configuration, tokenizer, template. Not its README, not its code."""
    own = {file.name: file for file in weights}
    for name, file in listing.files.items():
        if name.endswith((".json", ".jinja")) or is_tokenizer_file(name):
            own[name] = file
    return [own[name] for name in sorted(own)]


def _files(listing: Listing, own: list[LocalFile]) -> dict[str, Any]:
    code = listing.named(end=".py")
    shown = [FileFact(name=clean(file.name), size=file.size, kind=_kind(file.name)) for file in [*own, *code]]
    return {"files": shown[:MAX_FILES], "file_count": len(shown), "fingerprint": fingerprint(own)}


def _kind(name: str) -> Literal["weights", "config", "tokenizer", "template", "code", "other"]:
    if name.startswith("chat_template"):
        return "template"
    if is_tokenizer_file(name):
        return "tokenizer"
    if name.endswith(".json"):
        return "config"
    if name.endswith((".safetensors", ".bin")):
        return "weights"
    return "code" if name.endswith(".py") else "other"


def _size(listing: Listing, weights: list[LocalFile]) -> int:
    """Bytes on disk of what belongs to the model; hard and symbolic links to one file count once."""
    return sum({file.real: file.size for file in _own_files(listing, weights)}.values())
