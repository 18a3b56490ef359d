"""Keeps the door's snapshot fresh inside the web process, so that no request waits for the database.

It is built anew when an event says that something changed (topic `door`), and while requests come it never gets older
than MAX_AGE_S: that is how fast a revoked token stops working even with the broker away. Without requests and events it
rests. One thread and one database connection do the work.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import Error, connections

from deployments.events import DOOR
from deployments.gateway import snapshot
from panel.core.sse import Stopping, hub
from panel.fleet.door import NoSnapshot, Snapshot

log = logging.getLogger(__name__)

FRESH_S = 1.0  # older: built anew beside the request
MAX_AGE_S = 1.8  # older: the request waits for the new one
WAIT_S = 3.0  # how long it waits before it makes do with what there is
MAX_STALE_S = 60.0  # with the database away, tokens are trusted this long
RETRY_S = 0.5  # after a failed build, until the next is tried
REST_S = 5.0  # after a failed build, no request waits for another this long
SETTLE_S = 0.05  # events often come in groups
NOTE_S = 60.0  # last uses of tokens are written this often at most


class Source:
    """`await source()` gives the snapshot; `used` is the door's notebook of token uses."""

    def __init__(self, build: Callable[[], Snapshot] = snapshot.build) -> None:
        self._build_now = build
        self._thread = ThreadPoolExecutor(1, "door-snapshot")
        self._newest: Snapshot | None = None
        self._at = self._failed_at = float("-inf")
        self._building: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._noted_at = time.monotonic()
        self.used: dict[int, float] = {}

    async def __call__(self, *, newest: bool = False) -> Snapshot:
        """The snapshot; with `newest`, one that was begun after this call. Raises NoSnapshot."""
        age = time.monotonic() - self._at
        if newest or age > MAX_AGE_S:
            await self._wait_for_newer(newest)
        elif age > FRESH_S:
            self._begin()
        if self._newest is None or time.monotonic() - self._at > MAX_STALE_S:
            raise NoSnapshot
        return self._newest

    async def _wait_for_newer(self, newest: bool) -> None:
        if (failed_ago := time.monotonic() - self._failed_at) < REST_S:
            if failed_ago > RETRY_S:
                self._begin()
            return
        try:
            async with asyncio.timeout(WAIT_S):
                if newest and self._building is not None:
                    await asyncio.shield(self._building)  # it may have read before what the asker knows of
                await asyncio.shield(self._begin())
        except TimeoutError:  # a database that hangs: not every request shall wait for it
            self._failed_at = time.monotonic()

    def _begin(self) -> asyncio.Task[None]:
        if self._building is None:
            self._building = asyncio.create_task(self._build(), name="door snapshot")
        return self._building

    async def _build(self) -> None:
        began = time.monotonic()
        try:
            self._newest = await asyncio.get_running_loop().run_in_executor(self._thread, self._in_thread)
            self._at, self._failed_at = began, float("-inf")
        except Error as exc:
            self._failed_at = time.monotonic()
            log.warning("the door works with what it knew %.0f s ago: %s", time.monotonic() - self._at, exc)
        except Exception:
            self._failed_at = time.monotonic()
            log.exception("the door's snapshot could not be built")
        finally:
            self._building = None

    def _in_thread(self) -> Snapshot:
        try:
            self._note_use(NOTE_S)
            return self._build_now()
        finally:
            connections.close_all()

    def _note_use(self, pause: float) -> None:
        """Write the token uses down when `pause` seconds have passed since the last time. In the thread."""
        if not self.used or time.monotonic() - self._noted_at < pause:
            return
        self._noted_at = time.monotonic()
        snapshot.note_use(_taken(self.used))

    # --- the life of the web process ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._listener = asyncio.create_task(self._listen(), name="door events")

    async def stop(self) -> None:
        """Stop listening; write down the last uses."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        await self._write_uses(0)
        self._thread.shutdown(wait=False)

    async def _listen(self) -> None:
        self._begin()
        with contextlib.suppress(Stopping):
            async with hub.subscribe([DOOR]) as news:
                while True:
                    if await news.wait(NOTE_S):
                        await self._wait_for_newer(newest=True)
                        await asyncio.sleep(SETTLE_S)
                    else:
                        await self._write_uses(NOTE_S)

    async def _write_uses(self, pause: float) -> None:
        def write() -> None:
            try:
                self._note_use(pause)
            finally:
                connections.close_all()

        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, write)
        except Error as exc:
            log.warning("the last uses of tokens were not written: %s", exc)


def _taken(used: dict[int, float]) -> dict[int, float]:
    """All entries, taken out one by one: the event loop goes on writing to the same dictionary."""
    taken = {}
    while used:
        key, at = used.popitem()
        taken[key] = at
    return taken
