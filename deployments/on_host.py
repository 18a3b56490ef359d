"""All that runs on one host, as one act: it is emptied before somebody works on the machine."""

from typing import Any

from django.db import transaction

from deployments import services
from deployments.models import Deployment
from deployments.states import Desired
from panel import audit
from panel.fleet.models import Host


def running_on(host: Host) -> list[Deployment]:
    """Deployments that people want running and that have a run there now."""
    rows = Deployment.objects.filter(run__host=host, run__ended_at=None, desired=Desired.RUNNING, deleted_at=None)
    return list(rows.order_by("pk"))  # one order everywhere, so that two who do this at once do not deadlock


@transaction.atomic
def stop_all(host: Host, *, actor: Any) -> list[Deployment]:
    """Stop each of them as by its own button; returns those that were stopped."""
    rows = running_on(host)
    for row in rows:
        services.stop(row, actor=actor)
    if rows:
        audit.record("host.emptied", host, actor=actor, deployments=[row.name for row in rows])
    return rows
