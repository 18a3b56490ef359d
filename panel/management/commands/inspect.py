"""`manage.py inspect PATH`: what the files at a path are, and what is wrong with them. No database, no model code."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from models_catalog.facts import ModelFacts, Problem
from models_catalog.inspect.one import look_at
from models_catalog.inspect.reading import Unusable
from models_catalog.wording import of_file, of_folder
from panel.core.numbers import ngroup, size

FOUND, NOTHING = 1, 2


class Command(BaseCommand):
    """Exit codes: 0 all models can be served as far as their files show, 1 one cannot, 2 there is no model."""

    help = "Print the facts and findings of the models at a path."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", help="a folder, GGUF file or config.json; a cache or store with many models")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        path = Path(options["path"]).expanduser()
        try:
            items = list(look_at(path))
        except Unusable as exc:
            words = of_file(exc.problem.model_dump())
            raise CommandError(f"{words.text} {words.hint}".strip(), returncode=NOTHING) from exc
        except OSError as exc:
            text = _("%(path)s cannot be read: %(why)s.") % {"path": path, "why": exc.strerror or exc}
            raise CommandError(text, returncode=NOTHING) from exc
        models = [item for item in items if item["format"] != "folder"]
        folders = [item for item in items if item["format"] == "folder"]
        if options["json"]:
            answer = {"path": str(path), "models": [_told(item, of_file) for item in models]}
            answer["problems"] = [problem for item in folders for problem in _told(item, of_folder)["problems"]]
            self.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False))
        else:
            self.tell(path, models, folders)
        if not models:
            words = of_file({"code": "no_model", "params": {"path": str(path)}})
            raise CommandError(f"{words.text} {words.hint}", returncode=NOTHING)
        if any(Problem.model_validate(problem).blocking for item in models for problem in item["problems"]):
            raise SystemExit(FOUND)

    def tell(self, path: Path, models: list[dict[str, Any]], folders: list[dict[str, Any]]) -> None:
        for item in models:
            self.stdout.write(item["name"])
            for term, value in _lines(item):
                self.stdout.write(f"  {term:18} {value}")
            self.findings(item, of_file)
            self.stdout.write("")
        for item in folders:
            if len(models) > 1:
                text = _("%(n)s models, %(size)s on disk") % {
                    "n": ngroup(len(models)),
                    "size": size(item["size_bytes"]),
                }
                self.stdout.write(text)
            self.findings(item, of_folder)

    def findings(self, item: dict[str, Any], words_of: Any) -> None:
        for problem in item["problems"]:
            words = words_of(problem)
            sign = "✗" if Problem.model_validate(problem).blocking else "–"
            self.stdout.write(f"  {sign} {words.text} {words.hint}".rstrip())


def _told(item: dict[str, Any], words_of: Any) -> dict[str, Any]:
    """An item with its problems as sentences beside the codes."""
    problems = []
    for problem in item["problems"]:
        words = words_of(problem)
        blocking = Problem.model_validate(problem).blocking
        problems.append({**problem, "blocking": blocking, "text": str(words.text), "hint": str(words.hint)})
    return {**item, "problems": problems}


def _lines(item: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(term, value) of what is known; terms are the field's own and the same as in JSON."""
    facts = ModelFacts.from_dict(item["facts"])
    for term, value in _values(item, facts):
        if value not in (None, "", 0, [], {}):
            yield term, ngroup(value) if isinstance(value, int) else str(value)


def _values(item: dict[str, Any], facts: ModelFacts) -> Iterator[tuple[str, Any]]:
    yield "path", item["path"]
    yield "format", " ".join(part for part in (facts.format.upper(), facts.label, facts.config_format) if part)
    yield "source", " ".join(part for part in (facts.source, facts.origin, facts.revision[:12], *facts.refs) if part)
    yield "architecture", ", ".join(facts.architectures)
    yield "purpose", _joined(facts.purpose, facts.inputs)
    yield "parameters", facts.parameters
    weights, disk = (size(number) if number else "" for number in (facts.weight_bytes, item["size_bytes"]))
    yield "weights", _joined(weights, [f"{k} {size(v)}" for k, v in facts.dtype_bytes.items()])
    yield "on disk", disk
    yield "files", facts.file_count
    yield "quantisation", facts.quantisation.label if facts.quantisation else ""
    yield "context", _joined(ngroup(facts.context_length) if facts.context_length else "", [facts.context_source])
    yield "rope", _rope(facts)
    yield "layers", facts.layers
    yield "heads", f"{facts.heads} / {facts.kv_heads} KV" if facts.heads else ""
    yield "KV heads by layer", ", ".join(map(str, facts.heads_by_layer))
    yield "key / value length", f"{facts.key_length} / {facts.value_length}" if facts.key_length else ""
    if facts.geometry and facts.geometry.latent:
        latent = facts.geometry.latent
        yield "latent attention", f"KV rank {latent.kv_rank}, query rank {latent.q_rank}, RoPE width {latent.rope}"
    yield "sliding window", facts.sliding_window
    yield "experts", f"{facts.experts}, {facts.experts_used} used" if facts.experts else ""
    yield "vocabulary", facts.vocab_size
    yield "tokenizer", _joined(facts.tokenizer, [facts.tokenizer_kind])
    yield "chat template", _joined(facts.template_source, facts.templates)
    yield "defaults", ", ".join(f"{name} {value:g}" for name, value in facts.generation.items())
    yield "projector", facts.projector
    if adapter := facts.adapter:
        yield "adapter", f"{adapter.kind} rank {adapter.rank}, alpha {adapter.alpha}, of {adapter.base or '?'}"
        yield "targets", ", ".join(adapter.targets)
    yield "sharded for", facts.sharded_for
    yield "own code", ", ".join([*facts.code_files, *facts.code_elsewhere])
    yield "licence", facts.licence
    yield "missing", ", ".join(facts.missing)
    yield "fingerprint", facts.fingerprint[:16]


def _joined(value: str, more: list[Any]) -> str:
    notes = ", ".join(str(note) for note in more if note)
    return f"{value} ({notes})" if value and notes else value


def _rope(facts: ModelFacts) -> str:
    if facts.rope is None:
        return ""
    rope = facts.rope
    stretched = f"{rope.scaling} × {rope.factor:g} of {rope.original_context}" if rope.factor else rope.scaling
    return _joined(f"base {rope.base:g}" if rope.base else "base ?", [stretched])
