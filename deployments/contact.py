"""Since when nobody has heard of the host of a deployment: said wherever such a state is shown. Reads only."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deployments.models import Deployment
from deployments.states import State
from panel.core.numbers import clock
from panel.fleet.models import Host


@dataclass(frozen=True)
class Silence:
    """A host by its name of today, and when its agent called last."""

    host: str
    since: dt.datetime

    @property
    def params(self) -> dict[str, str]:
        """For a sentence, in the words of who reads it."""
        return {"host": self.host, "since": clock(self.since)}


def silent(rows: Iterable[Deployment]) -> dict[int, Silence]:
    """By deployment, where its host is out of contact; one query, none where every host is heard of."""
    lost = {row.pk: row.run.host_id for row in rows if row.state == State.LOST and row.run is not None}
    hosts = set(filter(None, lost.values()))
    if not hosts:
        return {}
    told = Host.objects.filter(pk__in=hosts, last_seen_at__isnull=False).values_list("pk", "name", "last_seen_at")
    found = {pk: Silence(name, at) for pk, name, at in told if at is not None}
    return {pk: found[host] for pk, host in lost.items() if host in found}


def reason_of(row: Deployment, silence: Silence | None) -> dict[str, Any]:
    """Why it is as it is, with the host's name and the time where that is known."""
    if silence is None or not row.reason:
        return dict(row.reason)
    return {**row.reason, "params": {**(row.reason.get("params") or {}), **silence.params}}
