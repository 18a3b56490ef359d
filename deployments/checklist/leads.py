"""Where a finding leads that nothing mends yet: to a value that surely fits, a free name, the page where it is done.

Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from deployments import patching, preflight
from deployments.checklist.findings import Finding
from deployments.mending import edits
from deployments.mending.fix import Fix
from deployments.mending.making import patch_fix
from deployments.models import Deployment
from deployments.planner import inverse, length
from deployments.spec import DeploymentSpec
from deployments.suggesting import free_name, names_taken
from panel.fleet.models import Host

SHARE = "gpu_memory_utilization"
NOT_SURE = ("tight", "unlikely")
CHANCE = 80


def surer(check: preflight.Check, spec: DeploymentSpec, name: str, fleet: preflight.Fleet | None) -> tuple[Fix, ...]:
    """What surely fits, where the wanted may not: a shorter conversation, and as long a one with more of the GPU.

    The planner is asked of each whether it is sure then.
    """
    placed = check.placement
    if fleet is None or placed is None or placed.level not in NOT_SURE:
        return ()
    asks, facts = fleet.estimator, fleet.artifact.facts
    wanted, people = placed.context or 0, spec.people or 1
    found = inverse.longest_context(spec, fleet.seen, facts, people, estimator=asks)
    alone = placed.longest.low if placed.longest is not None else None
    contexts = {_rounded((alone or 0) / people), found.low if found is not None else 0}
    tries = [(length.OPTION, context) for context in sorted(contexts, reverse=True) if 0 < context < wanted]
    if found is not None and placed.device == "gpu" and found.low >= wanted:
        tries.append((SHARE, found.placement.utilisation))
    fixes = [fix for option, value in tries for fix in _of_option(spec, option, value)]
    return tuple(fix for fix in fixes if _surely(patching.tried(spec, fix.patch, name, fleet=fleet)))


def _rounded(tokens: float) -> int:
    return int(tokens) // inverse.ROUND * inverse.ROUND


def _of_option(spec: DeploymentSpec, option: str, value: Any) -> list[Fix]:
    return patch_fix(spec, option, edits.with_option(spec, option, value), value, chance=CHANCE)


def _surely(check: preflight.Check | None) -> bool:
    return check is not None and check.ok and check.placement is not None and check.placement.level == "fits"


def other_name(name: str) -> Fix:
    """A name that nobody uses yet. It is no part of the spec: pages and the API put it where the name stands."""
    to = free_name(name, names_taken())
    return Fix("patch", "fix.name", {"to": to}, patch={"name": to}, option="name", chance=CHANCE)


def linked(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """What has to stop, with the page where it is stopped. One query where something has to."""
    found = tuple(fixes)
    names = {name for fix in found if fix.code == "change.stop" for name in fix.params["names"]}
    rows = Deployment.objects.filter(name__in=names, deleted_at=None) if names else Deployment.objects.none()
    ids = dict(rows.values_list("name", "pk"))
    return tuple(_to_stop(fix, ids) if fix.code == "change.stop" else fix for fix in found)


def _to_stop(fix: Fix, ids: dict[str, int]) -> Fix:
    names = fix.params["names"]
    if len(names) > 1:
        return replace(fix, link="deployments")
    return replace(fix, link="deployment", target=ids[names[0]]) if names[0] in ids else fix


def on_host(findings: Iterable[Finding], host: Host | None) -> tuple[Finding, ...]:
    """What is mended on the machine, with its page."""
    if host is None:
        return tuple(findings)
    fix = Fix("host", "fix.on_host", {"host": host.name}, link="host", target=host.pk)
    return tuple(replace(one, fixes=(*one.fixes, fix)) for one in findings)
