"""Leases on rows: one worker at a time acts on a row, and nobody holds it for ever.

A claim is a token and a time in the row itself (`Claimable`), by the database's clock. One heartbeat thread per process
renews all claims held here. `wake` counts nudges: a release that meets a newer nudge is refused, so that a change made
while the row was claimed is never slept through.
"""

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import close_old_connections, connection
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from panel.core.models import Claimable

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Claim:
    """A held lease. Write back only through `rows()`: it matches nothing once the lease went to someone else."""

    model: type[Claimable]
    pk: Any
    token: uuid.UUID = field(default_factory=uuid.uuid4)

    def rows(self) -> QuerySet[Any]:
        return self.model._default_manager.filter(pk=self.pk, claim_token=self.token)

    def take(self) -> bool:
        free = Q(claim_until=None) | Q(claim_until__lt=Now()) | Q(claim_until__gt=too_far())
        return bool(
            self.model._default_manager.filter(free, pk=self.pk).update(claim_token=self.token, claim_until=_until())
        )

    def renew(self) -> bool:
        return bool(self.rows().update(claim_until=_until()))

    def release(self, *, wake: int, due_at: datetime | None, **more: Any) -> bool:
        """Give the row back; False when someone nudged it since `wake` was read (look again) or the lease was lost."""
        return bool(self.rows().filter(wake=wake).update(claim_token=None, claim_until=None, due_at=due_at, **more))

    def drop(self) -> None:
        """Give the row back as it is, so that the next one takes it at once."""
        self.rows().update(claim_token=None, claim_until=None)


def _until() -> Any:
    return Now() + timedelta(seconds=settings.BERTH_CLAIM_S)


def too_far() -> Any:
    """No lease goes beyond this: one that does is of before the database's clock was put back, and nobody's."""
    return Now() + 2 * timedelta(seconds=settings.BERTH_CLAIM_S)


class _Heartbeat:
    """The one thread that renews this process's claims; it ends when there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: set[Claim] = set()
        self._thread: threading.Thread | None = None

    def add(self, claim: Claim) -> None:
        with self._lock:
            self._claims.add(claim)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="claims", daemon=True)
                self._thread.start()

    def remove(self, claim: Claim) -> None:
        with self._lock:
            self._claims.discard(claim)

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(settings.BERTH_CLAIM_S / 3)
            with self._lock:
                claims = list(self._claims)
                if not claims:
                    self._thread = None
                    break
            try:
                close_old_connections()
                for claim in claims:
                    claim.renew()
            except Exception:  # the lease then ends by itself; the next beat tries again
                log.warning("claims could not be renewed", exc_info=True)
        connection.close()


_heartbeat = _Heartbeat()


@contextmanager
def hold(model: type[Claimable], pk: Any) -> Iterator[Claim | None]:
    """Hold the lease of one row for the block, or yield None when someone else has it or the row is gone."""
    claim = Claim(model, pk)
    if not claim.take():
        yield None
        return
    _heartbeat.add(claim)
    try:
        yield claim
    finally:
        _heartbeat.remove(claim)
        claim.drop()


def nudge(rows: QuerySet[Any]) -> int:
    """Mark rows as due now; whoever holds them looks again before letting go. Returns how many rows."""
    return rows.update(wake=F("wake") + 1, due_at=Now())
