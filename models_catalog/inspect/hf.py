"""Inspection of a Hugging Face folder: config.json, weights' headers, tokenizer, template. Pure; runs no model code."""

from __future__ import annotations

from typing import Any, Literal

from models_catalog.facts import FileFact, ModelFacts, Problem
from models_catalog.inspect import hf_config, hf_use, mistral
from models_catalog.inspect.adapter import CONFIG as ADAPTER
from models_catalog.inspect.adapter import adapter_of, adapter_weights
from models_catalog.inspect.chat_template import templates_of, text_of
from models_catalog.inspect.fingerprint import fingerprint
from models_catalog.inspect.found import Found
from models_catalog.inspect.hf_claims import claim_problems
from models_catalog.inspect.hf_code import MAX_CODE, absent_code, code_files, needs_remote_code
from models_catalog.inspect.hf_extras import generation_of, licence_of, not_whole_yet, unfinished
from models_catalog.inspect.hf_geometry import geometry
from models_catalog.inspect.hf_packing import kv_scheme, packing
from models_catalog.inspect.listing import Listing, LocalFile
from models_catalog.inspect.reading import Unusable, clean, read_json_object
from models_catalog.inspect.safetensors import Weights, read_safetensors
from models_catalog.inspect.tokenizer import is_tokenizer_file, kind_of, tokenizer_of
from models_catalog.inspect.weights import KINDS, pickled_damage, select_weights
from models_catalog.inspect.weights import Weights as Selected

MAX_FILES = 1000  # named in the facts; all are counted
RELEVANT = (".safetensors", ".bin", ".json", ".model", ".jinja", ".txt", ".tiktoken", ".py")
FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8", "F64": "float64"}
CONFIG = "config.json"


def inspect_hf(listing: Listing, *, name: str) -> Found | None:
    """Facts of the model in a folder; None when it holds no Hugging Face model. Never raises for its content."""
    problems = [p for p in listing.problems if str(p.params.get("file", "")).endswith(RELEVANT)]
    if not listing.has(CONFIG):
        return _without_config(listing, name, problems)
    if listing.has(ADAPTER) and not _has_weights(listing):
        return _adapter(listing, name, problems)
    config = _json(listing, CONFIG, problems)
    told = bool(config.get("model_type") or config.get("architectures"))
    if not told and not listing.named(end=".safetensors"):
        return None  # many programs have a config.json
    if not told and not any(problem.blocking for problem in problems):
        problems.append(Problem(code="bad_config", params={"file": CONFIG}))
    return _Inspection(listing, problems).whole(config, name)


def _has_weights(listing: Listing) -> bool:
    files = [*listing.named(end=".safetensors"), *listing.named(end=".bin")]
    return any(file.name.startswith(("model", "pytorch_model", "consolidated")) for file in files)


def _without_config(listing: Listing, name: str, problems: list[Problem]) -> Found | None:
    if listing.has(ADAPTER):
        return _adapter(listing, name, problems)
    if listing.has(mistral.PARAMS) and listing.named(end=".safetensors", start="consolidated"):
        params = _json(listing, mistral.PARAMS, problems)
        return _Inspection(listing, problems).whole(mistral.config_of(params), name, mistral_form=True)
    if listing.has("model.safetensors.index.json") or (
        listing.named(end=".safetensors", start="model") and listing.tokenizer_file()
    ):
        problems.insert(0, Problem(code="bad_config", params={"file": CONFIG}))
        files = [*listing.named(end=".safetensors"), *listing.named(end=".json")]
        return Found(ModelFacts(format="hf", **_files(listing, files)), name, problems, files)
    return None


def _adapter(listing: Listing, name: str, problems: list[Problem]) -> Found:
    adapter = adapter_of(_json(listing, ADAPTER, problems))
    problems.insert(0, Problem(code="adapter_only", params={"base": adapter.base}))
    weights, sums = adapter_weights(listing, problems)
    if adapter.rank is None and sums is not None:
        adapter = adapter.model_copy(update={"rank": sums.lora_rank})
    own = [*weights, *listing.named(end=".json")]
    facts = ModelFacts(
        format="hf",
        label=adapter.kind.upper() if adapter.kind != "lora" else "LoRA",
        adapter=adapter,
        parameters=sums.parameters(None) if sums else None,
        weight_bytes=sum(file.size for file in weights) or None,
        dtype=_main_format(sums),
        dtype_bytes=sums.bytes_by_format if sums else {},
        licence=licence_of(listing),
        **_files(listing, own),
    )
    return Found(facts, name, problems, own)


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


class _Inspection:
    """One folder with a configuration; what is wrong with it is added to `problems` on the way."""

    def __init__(self, listing: Listing, problems: list[Problem]) -> None:
        self.listing, self.problems = listing, problems

    def whole(self, config: dict[str, Any], name: str, *, mistral_form: bool = False) -> Found:
        listing, problems = self.listing, self.problems
        extra = self.json("hf_quant_config.json") or self.json("quantize_config.json")
        quantisation = hf_config.quantisation(config, extra)
        selected = select_weights(listing, (mistral.WEIGHTS,) if mistral_form else KINDS)
        problems += selected.problems
        weights = self.weights(selected)
        complete = bool(weights and weights.tensors and not selected.missing)
        count = None
        if weights and complete and not selected.sharded_for:
            count = weights.parameters(quantisation.bits if quantisation else None)
        dtype = hf_config.dtype(config) or _main_format(weights)
        scheme, plain_parts = packing(config, extra)
        own = _own_files(listing, selected.files)
        facts = ModelFacts(
            format="hf",
            label=quantisation.label if quantisation else dtype,
            architectures=hf_config.architectures(config),
            parameters=count,
            weight_bytes=sum(file.size for file in selected.files) or None,
            dtype=dtype,
            dtype_bytes=weights.bytes_by_format if weights else {},
            quantisation=quantisation,
            missing=selected.missing[:200],
            geometry=geometry(config),
            weight_scheme=scheme,
            plain_parts=plain_parts,
            kv_scheme=kv_scheme(config, extra),
            config_format="mistral" if mistral_form else "",
            sharded_for=selected.sharded_for,
            licence=licence_of(listing),
            generation=generation_of(self.json("generation_config.json")),
            **self.dimensions(config, mistral_form),
            **self.words(config),
            **_files(listing, own),
        )
        if weights is not None and complete:
            problems += claim_problems(quantisation, hf_config.packing_format(config, extra), weights)
        problems += _judge(facts, weights if complete else None)
        self.unfinished(facts)
        return Found(facts, name, problems, own)

    def dimensions(self, config: dict[str, Any], mistral_form: bool) -> dict[str, Any]:
        found = hf_config.dimensions(config, mistral.PARAMS if mistral_form else CONFIG)
        if self.listing.has(mistral.PARAMS) and self.listing.named(end=".safetensors", start="consolidated"):
            found["context_named"] = None  # engines may read the other form, which may name another
        return found

    def json(self, name: str) -> dict[str, Any]:
        return _json(self.listing, name, self.problems)

    def words(self, config: dict[str, Any]) -> dict[str, Any]:
        """Tokenizer, templates, what it is for, and the code it asks to run."""
        listing = self.listing
        tokenizer_config = self.json("tokenizer_config.json")
        tokenizer = tokenizer_of(listing, tokenizer_config)
        source, templates = templates_of(listing, tokenizer_config)
        scores = "CrossEncoder" in clean(self.json("config_sentence_transformers.json").get("model_type"))
        purpose = hf_use.purpose(config, sentence_embedding=listing.has("modules.json"), cross_encoder=scores)
        elsewhere, absent = absent_code(listing, config, tokenizer_config)
        if absent:
            self.problems.append(Problem(code="code_missing", params={"files": absent}))
        return {
            "tokenizer": tokenizer,
            "tokenizer_kind": kind_of(listing, tokenizer, self.problems),
            "chat_template": bool(source),
            "template_source": source,
            "templates": templates,
            "template_text": text_of(listing, tokenizer_config, source, templates),
            "purpose": purpose,
            "tasks": hf_use.tasks(purpose),
            "inputs": hf_use.inputs(config, purpose),
            "needs_remote_code": needs_remote_code(config, tokenizer_config),
            "code_files": [clean(file.name) for file in listing.named(end=".py")][:MAX_CODE],
            "code_elsewhere": elsewhere,
        }

    def weights(self, selected: Selected) -> Weights | None:
        """Sums of all safetensors headers; None when there are none or one is damaged."""
        total, good = Weights(), bool(selected.files)
        for file in selected.files:
            try:
                sums = self.header(file, selected.tensors.get(file.name, 0))
            except Unusable as exc:
                params = {"file": clean(file.name), **exc.problem.params}
                self.problems.append(Problem(code=exc.problem.code, params=params))
                sums = None
            except OSError:
                self.problems.append(Problem(code="cannot_read", params={"file": clean(file.name)}))
                sums = None
            if sums is None:
                good = False
            else:
                total.merge(sums)
        return total if good else None

    def header(self, file: LocalFile, expected: int) -> Weights | None:
        """Sums of one file; None for a pickled one, which is not opened further. Raises Unusable or OSError."""
        if not_whole_yet(self.listing, file.name):
            raise Unusable("incomplete_download", files=1)
        if not file.name.endswith(".safetensors"):
            if code := pickled_damage(file):
                raise Unusable(code)
            return None
        sums = read_safetensors(file.real)
        if sums.tensors < expected:
            raise Unusable("wrong_shard", tensors=sums.tensors, expected=expected)
        return sums

    def unfinished(self, facts: ModelFacts) -> None:
        """Part files of other downloaders than the Hub's, which lie beside the files themselves."""
        parts = unfinished(self.listing)
        if not parts or any(problem.code == "incomplete_download" for problem in self.problems):
            return
        broken = bool(facts.missing) or any(problem.blocking for problem in self.problems)
        code = "incomplete_download" if broken else "leftover_parts"
        self.problems.insert(0, Problem(code=code, params={"files": len(parts), "file": parts[0]}))


def _judge(facts: ModelFacts, weights: Weights | None) -> list[Problem]:
    """Problems that only the whole picture shows."""
    problems = []
    if weights is not None and weights.tensors == 0:
        problems.append(Problem(code="missing_weights"))
    if facts.quantisation and facts.quantisation.method == "mlx":
        problems.append(Problem(code="mlx_only"))
    if not facts.tokenizer and facts.tasks:
        problems.append(Problem(code="missing_tokenizer"))
    if facts.tasks == ["generate"] and not facts.chat_template:
        problems.append(Problem(code="no_chat_template"))
    if not facts.tasks:
        problems.append(Problem(code="unknown_task", params={"architecture": facts.architecture}))
    if facts.needs_remote_code:
        problems.append(Problem(code="needs_remote_code", params={"files": facts.code_files[:20]}))
    if facts.code_elsewhere:
        problems.append(Problem(code="code_elsewhere", params={"files": facts.code_elsewhere}))
    return problems


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
    shown = [FileFact(name=clean(file.name), size=file.size, kind=_kind(file.name)) for file in own]
    code = code_files(listing)
    count = len(shown) + len(listing.named(end=".py"))
    return {"files": [*shown, *code][:MAX_FILES], "file_count": count, "fingerprint": fingerprint(own)}


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
