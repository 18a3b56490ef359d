"""Workers of the loop that can be stopped in the middle of a step: for longer than their lease, or for ever.

A worker runs in a thread of its own, and only ever one thread moves at a time, so that a run can be repeated exactly.
It halts at a gate: before a step, or inside one between its look and its write. Never while it holds a transaction,
since rows locked there are the database's to free when the process dies.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from deployments import acts, preflight, reconcile
from panel.core import claims

here = threading.local()
PATIENCE_S = 60.0


class Killed(BaseException):
    """The process died here."""


class Worker:
    """One call of reconcile(pk) that halts at its `at`-th gate, until `go_on()` or `kill()`."""

    def __init__(self, pk: int, at: int) -> None:
        self.pk, self.at = pk, at
        self.passed = 0
        self.where = ""
        self.dies = False
        self.failure: BaseException | None = None
        self._halted, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalled", daemon=True)

    def start(self) -> bool:
        """Run until the gate or the end; True when it halts there."""
        self._thread.start()
        self._wait()
        return self.halted

    @property
    def halted(self) -> bool:
        return self._thread.is_alive() and bool(self.where)

    def go_on(self) -> None:
        """As after SIGCONT: it acts on what it saw long ago."""
        self._go.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def kill(self) -> None:
        self.dies = True
        self.go_on()

    def _wait(self) -> None:
        assert self._halted.wait(PATIENCE_S)

    def _run(self) -> None:
        here.worker = self
        try:
            reconcile.reconcile(self.pk)
        except Killed:
            pass
        except BaseException as exc:  # shown by the one who waits
            self.failure = exc
        finally:
            connection.close()
            self._halted.set()

    def gate(self, name: str) -> None:
        if connection.in_atomic_block:
            return
        self.passed += 1
        if self.passed == self.at:
            self.where = name
            _end_lease(self.pk)
            self._halted.set()
            self._go.wait()
        if self.dies:
            raise Killed


def _end_lease(pk: int) -> None:
    """It sleeps for longer than its lease: nobody renews it, and it is over."""
    from django.db.models.functions import Now

    from deployments.models import Deployment

    with claims._heartbeat._lock:
        claims._heartbeat._claims.clear()
    Deployment.objects.filter(pk=pk).update(claim_until=Now())


def gate(name: str) -> None:
    worker = getattr(here, "worker", None)
    if worker is not None:
        worker.gate(name)


def _gated(name: str, original: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not after:
            gate(name)
        found = original(*args, **kwargs)
        if after:
            gate(name)
        return found

    return call


def _drop(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """A process that died gives nothing back."""

    def drop(claim: Any) -> None:
        worker = getattr(here, "worker", None)
        if worker is None or not worker.dies:
            original(claim)

    return drop


@contextmanager
def gates() -> Iterator[None]:
    """Put the gates in: before each step, after each look at the fleet, before each write of an end."""
    patch = pytest.MonkeyPatch()
    for module, name, after in (
        (reconcile, "do", False),
        (reconcile, "situation", True),
        (preflight, "check", True),
        (preflight, "launch_of", True),
        (acts, "_explain", True),
    ):
        patch.setattr(module, name, _gated(name, getattr(module, name), after=after))
    patch.setattr(claims.Claim, "drop", _drop(claims.Claim.drop))
    try:
        yield
    finally:
        patch.undo()
