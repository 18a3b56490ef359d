"""Choosing where a start runs, by the same planner as the page, and making its run.

What only has to wait makes no run, however often it is looked at. A start that ends here is kept as an ended run all
the same: without a job and without a place, but with who wanted it, why it ended and among the failures.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from deployments import checking, evidence, failures, measured, preflight, queries, run_secrets
from deployments.checklist import engine as checked
from deployments.checklist import failed_here
from deployments.engines.base import masked_env
from deployments.models import Deployment, Run
from deployments.moves import LeaseLost, move, spec_of
from deployments.states import State
from deployments.steps import HOST_RESTARTED
from panel.core.claims import Claim
from panel.fleet import services as fleet
from panel.fleet.models import Job

QUEUE_LOOK_S = 15.0  # how often a waiting deployment looks for room when nothing tells it to
RESTARTED = "restart_policy"  # the cause of a start by the restart policy
BY_ITSELF = "fix"  # the cause of a start that Berth made with a fix of its own


class _Changed(Exception):
    """What the look found is not so any more: the host was set aside or forgotten, or its engine is being removed."""


def place(claim: Claim, row: Deployment) -> None:
    """Choose host, runtime and devices, reserve, and make the run; or wait; or end the start."""
    if gone := run_secrets.reason(row.revision):
        never_began(claim, row, gone)
        return
    spec = spec_of(row)
    check = preflight.check(spec, name=row.name)
    if not check.ok and check.retryable:
        _wait(claim, row, check.reason, QUEUE_LOOK_S)
        return
    if not check.ok:
        never_began(claim, row, check.reason, check)
        return
    kept = checked.kept(check, spec, row.pk)
    if kept.refused is not None:  # what can only fail takes no memory from others
        never_began(claim, row, {}, check, refused=kept.refused)
        return
    try:
        with transaction.atomic():
            run = _begun(row, check, ask=kept.ask and settings.BERTH_CHECK_BEFORE_START)
            if not fleet.takes_new(run.host_id, run.runtime_id, [s.gpu_uuid for s in check.shares if s.gpu_uuid]):
                raise _Changed
            fleet.reserve(str(run.pk), run.host, check.shares)
            if not move(claim, row, State.PREPARING, run=run, next_attempt_at=None, restart_done=row.restart_asked):
                raise LeaseLost
    except LeaseLost:
        return
    except _Changed:
        _wait(claim, row, {}, 0)
    except fleet.NoRoom as exc:  # someone reserved between our look and our claim
        _wait(claim, row, {"code": exc.code, "params": exc.params}, 1)


def _wait(claim: Claim, row: Deployment, reason: dict[str, Any], seconds: float) -> None:
    later = timezone.now() + timedelta(seconds=seconds)
    move(claim, row, State.QUEUED, reason, next_attempt_at=later, restart_done=row.restart_asked)


def never_began(
    claim: Claim,
    row: Deployment,
    reason: dict[str, Any],
    check: preflight.Check | None = None,
    *,
    refused: Job | None = None,
) -> None:
    """End a start that got no place, in a run of its own: no failure is in no record.

    `refused` is the check in which the engine said already what it would say now; it gives the reason.
    """
    run = _next(row, **_known(row, check), outcome="failed", reason=reason)
    if refused is not None:
        if check is not None and check.launch is not None:
            run.command, run.env = check.launch.argv, masked_env(check.launch)
        known, kept = evidence.gathered(run, {})
        ending = checked.ending_of(refused, known)
        run.reason, run.error_block, run.diagnosis = ending.reason, ending.error_block, {**ending.diagnosis, **kept}
        run.placement = {**run.placement, checking.KEY: {"job": str(refused.pk), "over": "refused"}}
    try:
        with transaction.atomic():
            if not claim.rows().select_for_update().filter(state=row.state, run=row.run_id).exists():
                raise LeaseLost
            run.ended_at = timezone.now()
            _save(row, run)
            failures.keep(run, run.reason, run.error_block)
            done = {"next_attempt_at": None, "restart_done": row.restart_asked}
            if not move(claim, row, State.FAILED, run.reason, run=run, **done):
                raise LeaseLost
    except LeaseLost:
        return


def _known(row: Deployment, check: preflight.Check | None) -> dict[str, Any]:
    """As much of the place as was known when it ended: all of it where only the settings were refused, or nothing."""
    if check is not None and check.placement is not None:
        return _where(check)
    name = queries.model_names([row])[row.pk]
    before = row.run
    if not name and before is not None and spec_of(before).artifact_id == spec_of(row).artifact_id:
        name = before.model_name  # it left the catalog since
    return {"model_name": name}


def _where(check: preflight.Check) -> dict[str, Any]:
    assert check.host is not None and check.runtime is not None and check.copy is not None
    return {
        "host": check.host,
        "runtime": check.runtime,
        "copy": check.copy,
        "engine_version": check.runtime.version,
        "host_name": check.host.name,
        "model_name": str(check.copy.artifact),
        "placement": check.facts() | _named_as(check),
    }


def _named_as(check: preflight.Check) -> dict[str, Any]:
    """So that a check of the same finds what came of this start."""
    return {failed_here.KEY: checked.key_of(check)} if checked.can_be_asked(check) else {}


def _begun(row: Deployment, check: preflight.Check, *, ask: bool) -> Run:
    """`ask`: nobody knows yet what its engine thinks of these settings."""
    assert check.host is not None and check.runtime is not None and check.copy is not None
    usual = queries.usual_start_s(check.host.pk, check.runtime.pk, check.copy.pk)
    run = _next(
        row,
        **_where(check),
        family=measured.family_of(check.copy.artifact.facts),
        foreseen=measured.foreseen(check.placement.plan, spec_of(row), _names(check.gpus), usual),
    )
    if ask and not _goes_on(row, run):
        run.placement = {**run.placement, checking.KEY: {}}
    _save(row, run)
    return run


def _goes_on(row: Deployment, run: Run) -> bool:
    """Whether Berth starts by itself what it started before: then the engine is not asked what it had accepted."""
    before = row.run
    same = before is not None and before.revision_id == run.revision_id
    return same and run.cause in (HOST_RESTARTED, RESTARTED)


def _next(row: Deployment, **facts: Any) -> Run:
    """The next run of a deployment, not written yet."""
    last = row.runs.aggregate(n=Max("number"))["n"] or 0
    before = row.run
    return Run(
        deployment=row,
        revision=row.revision,
        number=last + 1,
        parent=before if before is not None and before.outcome == "failed" else None,
        started_by=row.wanted_by or "system",
        started_by_id=row.wanted_by_id,
        detail=0 < row.detail_asked == row.restart_asked,
        cause=_cause(row, first=last == 0),
        **facts,
    )


def _save(row: Deployment, run: Run) -> None:
    """A wish for detail is used up by it; one that came meanwhile has another number, and stays."""
    run.save(force_insert=True)
    if run.detail:
        Deployment.objects.filter(pk=row.pk, detail_asked=row.detail_asked).update(detail_asked=0)


def _cause(row: Deployment, *, first: bool) -> str:
    asked = row.restart_asked > row.restart_done
    if row.revision.why.get("by_itself") and asked and not row.runs.filter(revision=row.revision).exists():
        return BY_ITSELF
    if not asked and row.run is not None and row.run.reason.get("code") == HOST_RESTARTED:
        return HOST_RESTARTED
    return "person" if asked or first or row.attempts == 0 else RESTARTED


def _names(gpus: Iterable[Any]) -> list[str]:
    """The smallest first: the estimate is made for it."""
    return [gpu.name for gpu in sorted(gpus, key=lambda gpu: gpu.total_mib)]
