"""The pulse of the loop, a thread in each worker: one of them leads, by an advisory lock on a connection of its own.

A tick that is late runs once, not many times. What it does is cheap and level-triggered: due rows, silent hosts.
The others tick now and then as well: a leader that hangs, or whose machine sleeps, keeps its lock.
"""

import logging
import threading

import psycopg
from django.conf import settings
from django.db import close_old_connections, connections

from deployments import reconcile
from deployments.checklist import forget
from deployments.reconcile import sweep
from deployments.serving import watch
from models_catalog import sweep as catalog
from panel.audit import months
from panel.core import idempotency
from panel.core.clock import Clock
from panel.core.daily import Daily
from panel.core.database import own_connection
from panel.core.locks import Lock
from panel.fleet import retention, signals
from panel.fleet import services as fleet
from panel.fleet.models import Host
from panel.fleet.runtimes import outcomes as runtime_outcomes

log = logging.getLogger(__name__)

FOLLOWERS_TURN = 5  # a follower ticks at every so many-th turn of its own; a tick twice does nothing twice


class Ticker:
    """Start once per process; `stop()` ends it and lets another worker lead."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)
        self._lock: psycopg.Connection | None = None
        self._turns = 0
        self._clock = Clock()
        self._daily = [
            Daily("record", months.keep_up),
            Daily("logs", retention.keep_up),
            Daily("checks", forget.old_checks),
        ]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._ended.wait(settings.BERTH_TICK_S):
            try:
                close_old_connections()
                self._turns += 1
                if moved := self._clock.moved_s():
                    log.warning("the clock was moved by %.0f s", moved)
                    clock_moved()
                if self._leads() or self._turns % FOLLOWERS_TURN == 0:
                    tick()
                    for work in self._daily:
                        work.turn()
            except Exception:  # the database may be away; the next tick tries again
                log.warning("tick failed, trying again", exc_info=True)
                self._let_go()
            finally:
                connections.close_all()
        self._let_go()

    def _leads(self) -> bool:
        """Whether this process holds the lock; it is held as long as its connection lives."""
        if self._lock is not None and not self._lock.closed:
            self._lock.execute("SELECT 1")  # raises when the server dropped the connection, and the lock with it
            return True
        lock = own_connection()
        if lock.execute("SELECT pg_try_advisory_lock(%s)", (int(Lock.TICKER),)).fetchone() == (True,):
            self._lock = lock
            return True
        lock.close()
        return False

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def clock_moved() -> None:
    """Each process that notices it does this; a second time changes nothing."""
    fleet.clock_moved()
    reconcile.clock_moved()


def tick() -> None:
    for host_id in fleet.mark_lost_hosts():
        signals.host_lost.send_robust(sender=Host, host_id=host_id)
    sweep()
    watch.turn()
    catalog.sweep()
    idempotency.sweep_sometimes()
    runtime_outcomes.sweep()
