"""A fix applied by one click, or once by Berth itself: a revision with that one change, and a new start of it.

So is the change that a finding of a deployment that serves offers.
"""

import logging
from typing import Any

from django.db import transaction

from deployments import patching, queries, remedies, services, story
from deployments.conflicts import Edited, Moving, NoFix, NotHere
from deployments.mending import safe
from deployments.mending.fix import Fix
from deployments.models import Deployment, Run
from deployments.serving import fixes
from deployments.spec import DeploymentSpec
from deployments.states import State
from panel.accounts.actor import Actor
from panel.core.errors import Conflict

log = logging.getLogger(__name__)


def apply(row: Deployment, key: str, *, base_number: int | None, actor: Any) -> Deployment:
    """Apply the offered fix of this key and start again. `row` comes from queries.one.

    Raises Edited, Moving, NoFix or NotHere, and what services.start raises.
    """
    assert row.revision is not None
    if row.state not in remedies.RESTING:
        raise Moving
    if base_number is not None and base_number != row.revision.number:
        raise Edited
    fix = remedies.find(row, key, actor)
    if fix is None:
        raise NoFix
    if not fix.by_click:
        raise NotHere
    return start_with(row, fix, actor=actor)


@transaction.atomic
def start_with(row: Deployment, fix: Fix, *, actor: Any, by_itself: str = "") -> Deployment:
    """`by_itself` names who switched it on that Berth does this."""
    assert row.revision is not None
    run = remedies.failed_run(row)
    why: dict[str, Any] = {"fix": fix.code, "params": dict(fix.params), "class": _class_of(row, run)}
    why |= {"run": run.number} if run is not None else {}
    why |= {"by_itself": True, "switched_on_by": by_itself} if by_itself else {}
    spec = patching.apply(DeploymentSpec.model_validate(row.revision.spec), fix.patch)
    return services.start_fixed(row, spec=spec, base_number=row.revision.number, why=why, actor=actor)


def _class_of(row: Deployment, run: Run | None) -> str:
    params = row.reason.get("params") or {}
    return str((run.diagnosis.get("class") if run is not None else "") or params.get("cause") or row.reason["code"])


def apply_finding(row: Deployment, family: str, key: str = "", *, base_number: int | None, actor: Any) -> None:
    """Make a change that a finding offers (its first without `key`); what serves is started again with it.

    `row` comes from queries.one. Raises Edited where settings were saved since, NoFix where it is not offered any more,
    would not start now or it does not run with these settings, and what services.edit raises.
    """
    assert row.revision is not None
    fix = fixes.offered(row.run, family, key)
    # A patch has the options whole: under other settings than those that run it would undo what somebody just saved.
    runs = row.state == State.READY and row.run is not None and row.run.revision_id == row.revision_id
    if base_number != row.revision.number:
        raise Edited
    if fix is None or not runs:
        raise NoFix
    if not fixes.still_helps(row, fix):
        fixes.take_back(row.run, family, fix)
        raise NoFix
    spec = patching.apply(DeploymentSpec.model_validate(row.revision.spec), fix["patch"])
    services.edit(row, spec=spec, actor=actor, base_number=base_number)


# --- once by itself ---------------------------------------------------------------------------------------------------


def is_due(row: Deployment) -> bool:
    """Whether Berth should try now to mend the newest failure. `row` as the loop loads it; asked while it rests."""
    run = row.run
    if run is None or run.outcome != "failed" or row.revision_id != run.revision_id or run.reason != row.reason:
        return False
    if not row.revision.spec.get("fix_once"):  # the usual case costs nothing
        return False
    return safe.is_due(run.diagnosis, story.reasons(run), switched_on=True, was_ready=run.ready_at is not None)


def mend(row: Deployment) -> bool:
    """Apply the first fix, if it is safe; else note that it was tried, so that people are asked. True when applied."""
    run = row.run
    assert run is not None
    try:
        whole = queries.one(row.pk)
        fix = safe.first_of(remedies.of(whole))
        if fix is not None:
            start_with(whole, fix, actor=Actor.system(), by_itself=story.who_switched_on(whole))
            return True
    except Conflict as exc:  # people were faster
        log.info("deployment %s was not mended: %s", row.name, exc.code)
    except Exception:  # the loop goes on whatever stands in the way; people see the failure and its fixes
        log.exception("deployment %s could not be mended", row.name)
    Run.objects.filter(pk=run.pk).update(diagnosis={**run.diagnosis, "fix_tried": True})
    return False
