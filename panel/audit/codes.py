"""What a record keeps as a code or under a short name, in words. The rooms above say their own; this room only asks."""

from collections.abc import Callable, Mapping
from typing import Any

from panel.audit.names import NAMES

# Facts whose values are codes of the room that acted; PARAMS holds the numbers that their sentences need.
CODED = frozenset({"reason", "code", "class", "fix", "warnings"})
PARAMS = "params"

Say = Callable[[str, str, Mapping[str, Any]], str]  # (name of the fact, code, params) → the sentence
Name = Callable[[str, str], str]  # (verb, name) → what it is called; "" where this room does not know it
_says: dict[str, Say] = {}
_names: list[Name] = []


def register(*verbs: str, say: Say) -> None:
    """`verbs` are how the verbs of a room begin ("run."). Call it from AppConfig.ready()."""
    _says.update(dict.fromkeys(verbs, say))


def register_names(name: Name) -> None:
    """How a room calls what its records say has changed. Call it from AppConfig.ready()."""
    if name not in _names:
        _names.append(name)


def facts_of(refusal: Mapping[str, Any]) -> dict[str, Any]:
    """Of a {code, params}: what a record keeps so that its sentence can be said later."""
    params = refusal.get("params") or {}
    return {"code": refusal["code"], **({PARAMS: params} if params else {})}


def sentence_of(verb: str, fact: str, code: str, params: Mapping[str, Any]) -> str:
    """The words of a code; without its full stop, as it stands among other facts. A code of no room is shown."""
    say = next((say for begin, say in _says.items() if verb.startswith(begin)), None)
    return say(fact, code, params).rstrip(".。") if say is not None and code else code


def name_of(verb: str, name: str) -> Any:
    """What a fact or a setting is called."""
    for ask in _names:
        if found := ask(verb, name):
            return found
    return NAMES.get(name, name.replace("_", " "))
