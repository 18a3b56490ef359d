"""Nothing that runs is stopped for settings that could never start: the one question of all that saves settings."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from deployments import preflight
from deployments.models import Deployment
from deployments.preflight import Check
from deployments.spec import DeploymentSpec
from deployments.states import LIVE, Desired, State
from deployments.wording import candidates, words
from panel.core.errors import Conflict

MOST_TOLD = 3  # places


class NeverStarts(Conflict):
    """`check` says why, place by place."""

    code = "deployment.never_starts"
    message: Any = _("%(name)s was left as it is: with these settings it could never start. %(why)s")
    hint: Any = _("Change what is said above, or stop it first: what is stopped may have any settings.")

    def __init__(self, name: str, check: Check) -> None:
        super().__init__(params={"name": name, "why": why(check)})
        self.check = check


def require(row: Deployment, spec: DeploymentSpec) -> None:
    """Raises NeverStarts where a run of it would be stopped for settings that cannot start however long they wait.

    What rests, or waits for a place, may be saved anyhow: nothing is stopped for it.
    """
    stopped_for_it = row.desired == Desired.RUNNING and row.state in LIVE and row.state != State.STOPPING
    if not stopped_for_it:
        return
    check = preflight.check(spec, name=row.name, fleet=preflight.Fleet.of(spec, row.run_id))
    if not check.ok and not check.retryable:
        raise NeverStarts(row.name, check)


def why(check: Check) -> str:
    """In the viewer's language: the reason, and that of each place where they differ."""
    said = words(check.reason)
    told = [said.text] if said is not None else []
    for one in candidates(check.reason)[:MOST_TOLD]:
        if one["text"] and one["text"] not in told:
            told.append(f"{one['name']}: {one['text']}" if one["name"] else one["text"])
    return " ".join(told)
