"""Small changes of a spec as patches: an option gets a value, or is left out, wherever it stands. Pure.

A patch holds the fields of DeploymentSpec to set, `options` whole, as the planner's changes do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from deployments.engines.options import Schema
from deployments.mending.edits import Patch as Patch
from deployments.mending.edits import value_of as value_of
from deployments.mending.edits import with_option, without_option
from deployments.spec import DeploymentSpec

put = with_option


def drop(spec: DeploymentSpec, name: str) -> Patch:
    """Without the option; {} where it does not stand in the settings."""
    return without_option(spec, name) or {}


def renamed(spec: DeploymentSpec, old: str, new: str, schema: Schema) -> Patch:
    """What was said for one option, said for another; {} where nothing was said or the parser has no such option."""
    option = schema.find(new) if new.startswith("-") else schema.get(new)
    if option is None:
        return {}
    value = value_of(spec, old)
    if value is None:
        return {}
    typed = True if option.kind == "bool" else value
    without = drop(spec, old)
    return {**without, "options": {**without.get("options", spec.options), option.name: typed}}


def nearest(value: Any, choices: Iterable[str]) -> str:
    """The choice that was probably meant; "" when none is close."""
    found = difflib.get_close_matches(str(value).lower(), [choice for choice in choices if choice], 1, 0.6)
    return found[0] if found else ""
