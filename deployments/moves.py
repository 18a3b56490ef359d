"""Taking an arrow: the one place where a deployment's state is written."""

import logging
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from deployments import events, failures
from deployments.models import Deployment, Run, Transition
from deployments.spec import DeploymentSpec
from deployments.states import State, may_move
from deployments.steps import deadline_of
from panel import audit
from panel.audit.models import Outcome
from panel.core.claims import Claim

log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another worker has the row now; what this one was writing is rolled back."""


def spec_of(row: Deployment | Run) -> DeploymentSpec:
    """The settings that count for it."""
    return DeploymentSpec.model_validate(row.revision.spec)


def move(claim: Claim, row: Deployment, to: State, reason: dict[str, Any] | None = None, **changes: Any) -> bool:
    """Take one arrow: guarded by the claim and the old state; the transition is recorded in the same transaction.

    `row` then says what the database does, except for what `changes` say: the caller need not read it again.
    """
    old = State(row.state)
    if not may_move(old, to):
        raise ValueError(f"no arrow from {old} to {to}")
    now = timezone.now()
    spec = spec_of(row)
    limit = deadline_of(to, start_deadline_s=spec.start_deadline_s, grace_s=spec.grace_s)
    deadline = now + timedelta(seconds=limit) if limit is not None else None
    with transaction.atomic():
        moved = (
            claim.rows()
            .filter(state=old)
            .update(
                state=to,
                state_since=now,
                deadline_at=deadline,
                looked_at=now,  # by the same clock as the deadline, wherever that was put meanwhile
                reason=reason or {},
                updated_at=now,
                **changes,
            )
        )
        if not moved:
            return False
        run_id = changes["run"].pk if "run" in changes else row.run_id
        _tell_the_story(row, run_id, old, to, reason or {})
        if run_id is not None and ("run" in changes or old not in (State.QUEUED, State.PLACING)):
            _tell_the_record(row, run_id, to, reason or {})
        if to == State.READY and Run.objects.filter(pk=run_id, ready_at=None).update(ready_at=now):
            failures.mended(run_id)
    log.info("deployment %s: %s → %s%s", row.name, old, to, f" ({reason['code']})" if reason else "")
    row.state, row.state_since, row.deadline_at, row.reason = to.value, now, deadline, reason or {}
    row.looked_at = now
    # Not before the commit of whoever called this: a page that looks at once would see the state before, and then
    # nothing until its next turn.
    transaction.on_commit(partial(events.announce, row.pk, state=to, name=row.name), robust=True)
    return True


def _tell_the_story(row: Deployment, run_id: Any, old: State, to: State, reason: dict[str, Any]) -> None:
    """Each arrow, without a gap. What waits for room looks for it every few seconds, for as long as it takes: that is
    told once, and again when the reason is another one, or when something comes of it.
    """
    if State.PLACING in (old, to):
        newest = Transition.objects.filter(deployment=row).order_by("-pk")
        was, at, why = newest.values_list("old", "new", "reason").first() or ("", "", {})
        looked_before = (was, at) == (State.PLACING, State.QUEUED)
        if looked_before and (to == State.PLACING or (to == State.QUEUED and _codes(why) == _codes(reason))):
            return
        if old == State.PLACING and at == State.QUEUED:  # the look that something came of
            Transition.objects.create(deployment=row, run_id=run_id, old=State.QUEUED, new=State.PLACING)
    Transition.objects.create(deployment=row, run_id=run_id, old=old, new=to, reason=reason)


def _codes(reason: dict[str, Any]) -> list[Any]:
    """What a reason says, without its numbers: free memory differs each time."""
    places = (reason.get("params") or {}).get("candidates") or []
    return [reason.get("code"), *((place.get("name"), place.get("code")) for place in places)]


def _tell_the_record(row: Deployment, run_id: Any, to: State, reason: dict[str, Any]) -> None:
    """What came of a start stands among the acts of people, so that everyone can follow the story in one place."""
    verbs = {State.READY: "run.ready", State.FAILED: "run.failed", State.STOPPED: "run.stopped", State.LOST: "run.lost"}
    if to not in verbs:
        return
    facts = {"reason": reason["code"]} if reason else {}
    outcome = Outcome.FAILED if to == State.FAILED else Outcome.DONE
    target = ("run", str(run_id), row.name)
    audit.record(verbs[to], target, actor=None, outcome=outcome, story=f"deployment:{row.pk}", **facts)
