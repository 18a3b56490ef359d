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
    """The texts that are given to `audit.record` or `record` as the verb."""
    verbs = set()
    for room in ("panel", "models_catalog", "deployments"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args and _is_record(node.func):
                    for part in ast.walk(node.args[0]):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            verbs.add(part.value)
    return verbs


def _is_record(func: ast.expr) -> bool:
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    owner = func.value.id if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) else "audit"
    return name == "record" and owner == "audit"


def test_every_recorded_verb_has_a_sentence() -> None:
    verbs = recorded_verbs()
    assert {"login", "token.created"} <= verbs
    assert not {verb for verb in verbs if "." in verb or verb.islower()} - set(SENTENCES)


def test_every_right_has_the_sentence_of_its_refusal() -> None:
    assert set(REFUSED) == set(RIGHTS)


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
