"""Small changes of a spec as patches: an option gets a value, or is left out, wherever it stands. Pure.

A patch holds the fields of DeploymentSpec to set, `options` whole, as the planner's changes do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from deployments.engines.base import EngineRefusal
from deployments.engines.options import Schema, normal_flag
from deployments.engines.tokens import expand
from deployments.spec import DeploymentSpec

Patch = dict[str, Any]


def put(spec: DeploymentSpec, name: str, value: Any) -> Patch:
    """The option with this value, and nowhere else."""
    kept = _words_without(spec.extra_args, name)
    patch: Patch = {"options": {**_options_without(spec, name), name: value}}
    return patch if kept is None else {**patch, "extra_args": kept}


def drop(spec: DeploymentSpec, name: str) -> Patch:
    """Without the option; {} where it does not stand in the settings."""
    kept = _words_without(spec.extra_args, name)
    options = _options_without(spec, name)
    patch: Patch = {} if options == spec.options else {"options": options}
    return patch if kept is None else {**patch, "extra_args": kept}


def renamed(spec: DeploymentSpec, old: str, new: str, schema: Schema) -> Patch:
    """What was said for one option, said for another; {} where nothing was said or the parser has no such option."""
    option = schema.find(new) if new.startswith("-") else schema.get(new)
    if option is None:
        return {}
    value = value_of(spec, old)
    if value is None:
        return {}
    typed = True if option.kind == "bool" else value
    return {**drop(spec, old), "options": {**_options_without(spec, old), option.name: typed}}


def value_of(spec: DeploymentSpec, name: str) -> Any:
    """What the settings say for it: True for a flag without a value, None where it is not there."""
    for key, value in spec.options.items():
        if _plain(key) == name:
            return value
    words = _words(spec.extra_args)
    for place, word in enumerate(words):
        head, equals, value = word.partition("=")
        if _is(head, name):
            if equals:
                return value
            following = words[place + 1] if place + 1 < len(words) else "-"
            return True if following.startswith("-") else following
    return None


def nearest(value: Any, choices: Iterable[str]) -> str:
    """The choice that was probably meant; "" when none is close."""
    found = difflib.get_close_matches(str(value).lower(), [choice for choice in choices if choice], 1, 0.6)
    return found[0] if found else ""


def _options_without(spec: DeploymentSpec, name: str) -> dict[str, Any]:
    return {key: value for key, value in spec.options.items() if _plain(key) != name}


def _words_without(elements: list[str], name: str) -> list[str] | None:
    """Further flags without one and its values; None where it is not among them."""
    words = _words(elements)
    kept, inside, found = [], False, False
    for word in words:
        if word.startswith("-"):
            inside = _is(word.partition("=")[0], name)
            found = found or inside
        if not inside:
            kept.append(word)
    return kept if found else None


def _words(elements: list[str]) -> list[str]:
    try:
        return expand(elements)
    except EngineRefusal:  # an open quote: it is said by itself
        return []


def _is(flag: str, name: str) -> bool:
    """Whether a flag as typed (`--no-x`, `--x.key`) is that of the option."""
    return flag.startswith("--") and _plain(normal_flag(flag).partition(".")[0][2:]) in (name, f"no_{name}")


def _plain(name: str) -> str:
    return str(name).replace("-", "_")
