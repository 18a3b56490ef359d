"""Every verb that the code records and every right has its sentence, and the sentences fit together."""

import ast
from pathlib import Path

import pytest
from django.utils import translation

from panel.accounts.access import RIGHTS
from panel.audit.models import Event
from panel.audit.wording import KINDS, REFUSED, SENTENCES, entry

ROOT = Path(__file__).resolve().parents[2]


def recorded_verbs() -> set[str]:
    """The texts that are given to `audit.record` as the verb: at once, by a variable, or by a helper's parameter."""
    verbs: set[str] = set()
    for room in ("panel", "models_catalog", "deployments"):
        for path in (ROOT / room).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
                for call in _calls(function):
                    if _is_record(call.func) and call.args:
                        verbs |= _texts(call.args[0], function, tree)
    return verbs


def _calls(node: ast.AST) -> list[ast.Call]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Call)]


def _texts(verb: ast.expr, function: ast.FunctionDef, tree: ast.Module) -> set[str]:
    if not isinstance(verb, ast.Name):
        return {part.value for part in ast.walk(verb) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    sources: list[ast.expr] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and verb.id in {t.id for t in node.targets if isinstance(t, ast.Name)}:
            sources += [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
    names = [argument.arg for argument in function.args.args]
    if verb.id in names:
        place = names.index(verb.id)
        for call in _calls(tree):
            if isinstance(call.func, ast.Name) and call.func.id == function.name and len(call.args) > place:
                sources.append(call.args[place])
    return {source.value for source in sources if isinstance(source, ast.Constant)}


def _is_record(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and func.attr == "record" and getattr(func.value, "id", "") == "audit"


def test_every_recorded_verb_has_a_sentence() -> None:
    verbs = recorded_verbs()
    assert {"login", "token.created", "deployment.stopped", "model.code_allowed"} <= verbs
    assert not verbs - set(SENTENCES) - set(REFUSED)


def test_every_right_has_the_sentence_of_its_refusal() -> None:
    assert set(REFUSED) >= set(RIGHTS)


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_sentences_can_be_filled(language: str) -> None:
    with translation.override(language):
        for outcome, table in (("done", SENTENCES), ("denied", REFUSED)):
            for verb in table:
                made = entry(Event(verb=verb, actor="ada", target="chat", outcome=outcome, facts={})).sentence
                assert "{" not in made and ("ada" in made or "chat" in made)


def test_every_verb_is_found_by_a_kind() -> None:
    prefixes = tuple(prefix for kind in KINDS.values() for prefix in kind.verbs)
    lost = [verb for verb in SENTENCES if not verb.startswith(prefixes)]
    assert not lost
