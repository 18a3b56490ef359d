"""A start that failed with the very same settings on the same host: known before it is tried again. Reads only."""

from __future__ import annotations

from django.utils import timezone

from deployments.checklist.engine import KEPT, key_of
from deployments.checklist.findings import Finding
from deployments.diagnosis.rules import BY_CODE
from deployments.mending.fix import Fix
from deployments.models import Run
from deployments.placement import Placement
from deployments.preflight import Check

KEY = "checked_as"  # in a run's placement: what was started, as engine.key_of names it
CODE = "check.failed_here"
LOOKED_AT = 10  # newest starts
SAME = 0.005  # of a share


def last(check: Check) -> Run | None:
    """The newest start of the very same that failed for a cause that stays; None where it was ready since. One query.

    Memory is no part of the key: a start that had less of it says nothing of this one.
    """
    assert check.host is not None and check.placement is not None
    since = timezone.now() - KEPT
    same = {f"placement__{KEY}": key_of(check)}
    rows = Run.objects.filter(host=check.host, created_at__gt=since, job__isnull=False, **same)
    told = rows.select_related("deployment").only(
        "number", "created_at", "ready_at", "outcome", "diagnosis", "placement", "host_id", "deployment__name"
    )
    for run in told.order_by("-created_at")[:LOOKED_AT]:
        if run.ready_at is not None:
            return None
        if run.outcome == "failed" and _stays(run) and not _has_more(check.placement, run):
            return run
    return None


def _stays(run: Run) -> bool:
    rule = BY_CODE.get(str(run.diagnosis.get("class") or ""))
    return rule is not None and not rule.curable


def _has_more(placed: Placement, run: Run) -> bool:
    before = run.placement
    if placed.device == "cpu":
        return placed.kv_cache_gib > int(before.get("kv_cache_gib") or 0)
    return placed.utilisation > float(before.get("utilisation") or 0) + SAME


def finding(run: Run, fixes: tuple[Fix, ...]) -> Finding:
    """With a way to its record, and what helps first."""
    cause = str(run.diagnosis["class"])
    params = {
        "cause": cause, "said": BY_CODE[cause].title, "number": run.number, "name": run.deployment.name,
        "run": str(run.pk), "at": run.created_at.isoformat(),
    }  # fmt: skip
    return Finding("warning", CODE, params, "", fixes[:1])
