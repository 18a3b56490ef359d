"""Waking the loop and telling open pages. Both are shortcuts: the ticker and a page load find the truth anyway."""

import uuid
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models.functions import Now
from django.dispatch import receiver

from deployments.models import Deployment
from panel.accounts.signals import tokens_changed
from panel.core import claims, queue, sse
from panel.fleet import signals

ALL = "deployments"  # topic: some deployment changed
WAITED_FOR = ("sidecar", "check")  # jobs of a host that a start waits for; runs keep them under these names
DOOR = "door"  # topic: what the door may open changed


def topic(deployment_id: int) -> str:
    return f"deployment:{deployment_id}"


def announce(deployment_id: int, *, state: str = "", name: str = "") -> None:
    """Tell open pages and the door; never raises."""
    data = {"id": deployment_id, "state": state, "name": name}
    for where in (topic(deployment_id), ALL, DOOR):
        sse.publish(where, "changed", data)


def nudge(deployment_id: int) -> None:
    """Mark due and send the task."""
    claims.nudge(Deployment.objects.filter(pk=deployment_id))
    send(deployment_id)


def send(deployment_id: int) -> bool:
    """Send the task. False when the broker is away: then the ticker finds the row."""
    return queue.send("deployments.tasks.reconcile", deployment_id)


def room_changed() -> None:
    """Memory was given back or a host came: let those who wait for room look at once."""
    waiting = Deployment.objects.filter(state="queued", next_attempt_at__gt=Now())
    for pk in list(waiting.values_list("pk", flat=True)):
        Deployment.objects.filter(pk=pk, state="queued").update(next_attempt_at=None)
        nudge(pk)


def nudge_on_commit(deployment_id: int) -> None:
    # The announcement first: where the broker hangs it notices soonest, and the nudge then does not wait for it.
    transaction.on_commit(partial(announce, deployment_id), robust=True)
    transaction.on_commit(partial(nudge, deployment_id), robust=True)


@receiver(signals.job_changed, dispatch_uid="deployments.job_changed")
def on_job_changed(sender: Any, job_id: uuid.UUID, kind: str, state: str, log_grew: bool, **_: Any) -> None:
    if kind in WAITED_FOR and not log_grew:
        rows = Deployment.objects.filter(state="preparing", **{f"run__placement__{kind}__job": str(job_id)})
        for pk in rows.values_list("pk", flat=True):
            nudge(pk)
    if kind != "engine":
        return
    rows = Deployment.objects.filter(run__job_id=job_id)
    if log_grew and state == "running":  # a ready engine's chatter is nobody's news
        rows = rows.exclude(state="ready")
    for pk in rows.values_list("pk", flat=True):
        nudge(pk)


@receiver(tokens_changed, dispatch_uid="deployments.tokens_changed")
def on_tokens_changed(sender: Any, **_: Any) -> None:
    """A token was made or revoked: the door looks again at once, not at its next turn."""
    sse.publish(DOOR)


@receiver([signals.host_lost, signals.host_back], dispatch_uid="deployments.host_contact")
def on_host_contact(sender: Any, host_id: int, **_: Any) -> None:
    live = Deployment.objects.filter(run__host_id=host_id).exclude(state__in=["stopped", "failed"])
    for pk in list(live.values_list("pk", flat=True)):
        nudge(pk)
    room_changed()
