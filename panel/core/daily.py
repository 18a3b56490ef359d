"""Work of once a day, which the ticker starts; a thread of its own does it, so that the pulse of the loop goes on."""

import logging
import threading
import time
from collections.abc import Callable

from django.db import connections

log = logging.getLogger(__name__)

EVERY_S = 24 * 3600
AGAIN_S = 600  # after a try that failed
MORE_S = 60  # after one that left something to do


class Daily:
    """`act` is called about once a day; it returns True when more is left to do, which is then soon gone on with."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self.name, self._act = name, act
        self._due = 0.0  # on the monotonic clock
        self._thread: threading.Thread | None = None

    def turn(self, *, wait: bool = False) -> None:
        """Begin when it is due and not under way. A failure is told in the log and tried again soon."""
        if time.monotonic() < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = time.monotonic() + AGAIN_S
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()
        if wait:
            self._thread.join()

    def _run(self) -> None:
        try:
            more = self._act()
        except Exception:  # a lock that was not to be had, a full disk: nothing is lost, and the next try may do it
            log.warning("%s: trying again in %s s", self.name, AGAIN_S, exc_info=True)
        else:
            self._due = time.monotonic() + (MORE_S if more is True else EVERY_S)
        finally:
            connections.close_all()
