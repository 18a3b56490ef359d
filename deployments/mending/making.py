"""Making a fix of a change, and putting several in order. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deployments.mending import edits
from deployments.mending.fix import Fix
from deployments.mending.titles import effects_of, title_of
from deployments.spec import DeploymentSpec


def ranked(fixes: Iterable[Fix]) -> list[Fix]:
    """By worth; of several with the same effect the first."""
    seen: dict[str, Fix] = {}
    for fix in sorted(fixes, key=lambda fix: -fix.worth):
        seen.setdefault(fix.key, fix)
    return list(seen.values())


def patch_fix(
    spec: DeploymentSpec, option: str, patch: edits.Patch | None, to: Any, *, chance: int, cost: str = "",
    before: Any = None, back: bool = False,
) -> list[Fix]:  # fmt: skip
    """A change of one option, with its title; nothing where it changes nothing."""
    if patch is None or all(getattr(spec, name) == value for name, value in patch.items()):
        return []
    was = before if before is not None else edits.value_of(spec, option)
    code, params = title_of(option, was, to, back=back)
    fix = Fix("patch", code, params, patch=patch, option=option, chance=chance, cost=cost)
    return [fix.told(*effects_of(option, cost, was, to))]
