"""Fetch the missing pieces of several files at once: who fetches what, pauses after trouble, the speed limit.

Workers are threads; each takes a run of pieces of one file that lie side by side, as one request. What a worker could
not fetch goes back and is taken again. The one that watches is the caller: it looks at `last_byte`, `trouble` and
`failure`, and sets `stop`.
"""

from __future__ import annotations

import bisect
import errno
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from panel.fleet.agent.download_http import Patience, Session, Trouble
from panel.fleet.agent.download_part import Part

SEGMENT = 64 << 20  # bytes of one request at most: each is a redirect of the hub's to count
SYNC_S = 10.0
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Item:
    """One content to fetch: its name among its siblings, its address, where its part lies."""

    path: str
    address: str
    base: Path
    sum: str
    size: int
    free: list[int] = field(default_factory=list)  # pieces that nobody fetches, in order
    part: Part | None = None
    have: int = 0  # when it began
    lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> Part:
        """The caller holds the pool's lock."""
        if self.part is None:
            self.part = Part.open(self.base, self.sum, self.size)
        return self.part

    def close(self) -> None:
        with self.lock:
            if self.part is not None:
                self.part.close()
            self.part = None

    def sync(self) -> None:
        with self.lock:  # not while the disk works: a worker that has the last piece would wait with everything
            bring = self.part.to_sync() if self.part is not None else None
        if bring is not None:
            bring()


@dataclass
class Claim:
    item: Item
    part: Part
    pieces: range
    got: int = 0

    @property
    def start(self) -> int:
        return self.pieces.start * self.part.piece + self.part.done[self.pieces.start]

    @property
    def end(self) -> int:
        return min(self.part.size, self.pieces.stop * self.part.piece)


class Throttle:
    """Lets so many bytes per second pass, 0 for any number."""

    def __init__(self, per_s: float, stop: threading.Event) -> None:
        self.per_s, self.stop = per_s, stop
        self.lock = threading.Lock()
        self.at = 0.0

    def pass_(self, count: int) -> None:
        if not self.per_s:
            return
        with self.lock:
            now = time.monotonic()
            self.at = max(self.at, now - 0.2) + count / self.per_s
            wait = self.at - now
        if wait > 0:
            self.stop.wait(wait)


class Pool:
    """See the module. `items` are in the order in which they are wanted."""

    def __init__(
        self, items: list[Item], session: Session, patience: Patience, *, connections: int, limit: float = 0.0
    ) -> None:
        self.items, self.session, self.patience, self.connections = items, session, patience, connections
        self.lock = threading.Condition()
        self.stop = threading.Event()
        self.over = threading.Event()  # all is fetched, or no worker is left
        self.throttle = Throttle(limit, self.stop)
        self.bytes = 0  # of this run
        self.last_byte = time.monotonic()
        self.trouble: Trouble | None = None  # the newest, None after bytes came
        self.failure: Trouble | None = None
        self.crash: BaseException | None = None
        self.not_before = 0.0  # until then the server asked to wait
        self.asked_s = 0.0
        self.busy = 0
        self.said: Callable[[str], None] = lambda text: None
        self.threads: list[threading.Thread] = []

    @property
    def done(self) -> int:
        with self.lock:
            return sum(item.have for item in self.items) + self.bytes

    # --- the workers' life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        for item in self.items:
            if item.size == 0:
                item.free = []
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.connections)]
        self.threads.append(threading.Thread(target=self._keep, daemon=True))
        for thread in self.threads:
            thread.start()

    def end(self, wait_s: float = 3.0) -> bool:
        """Stop; what is there is on the disk then. False when a worker still hangs, and keeps its files open."""
        self.stop.set()
        with self.lock:
            self.lock.notify_all()
        until = time.monotonic() + wait_s
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))
        for item in self.items:
            item.sync()
        if any(thread.is_alive() for thread in self.threads):
            return False
        for item in self.items:
            item.close()
        return True

    def _keep(self) -> None:
        """Bring what came to the disk now and then, so that a power cut costs seconds."""
        while not self.stop.wait(SYNC_S) and not self.over.is_set():
            try:
                for item in self.items:
                    item.sync()
            except OSError as exc:
                self._fail(disk_trouble(exc, self.items[0].base))
                return

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as exc:  # the one that watches raises it
            with self.lock:
                self.crash = self.crash or exc
            self.over.set()

    def _work(self) -> None:
        failed = 0
        while (claim := self._take()) is not None:
            pause = 0.0
            try:
                self._fetch(claim)
                failed = 0
            except Trouble as exc:
                failed = 1 if claim.got else failed + 1
                pause = self._note(exc, failed, claim)
            finally:
                self._give_back(claim)
            if pause:
                self.stop.wait(pause)

    def _fetch(self, claim: Claim) -> None:
        at, end, item = claim.start, claim.end, claim.item
        with self.session.range(item.address, at, end, item.size, item.sum) as body:
            for chunk in body:
                if self.stop.is_set():
                    return
                try:
                    claim.part.write(at, chunk)
                except OSError as exc:
                    raise disk_trouble(exc, claim.item.base) from exc
                at += len(chunk)
                claim.got += len(chunk)
                self._count(len(chunk))
                self.throttle.pass_(len(chunk))

    def _count(self, count: int) -> None:
        with self.lock:
            self.bytes += count
            self.last_byte = time.monotonic()
            self.trouble = None

    # --- trouble ------------------------------------------------------------------------------------------------------

    def _note(self, trouble: Trouble, failed: int, claim: Claim) -> float:
        """Seconds until this worker tries again."""
        if trouble.fatal:
            self._fail(Trouble(trouble.code, {"file": claim.item.path, **trouble.params}))
            return 0.0
        with self.lock:
            first = self.trouble is None or self.trouble.code != trouble.code
            self.trouble = trouble
            if trouble.wait_s:
                until = time.monotonic() + trouble.wait_s
                self.asked_s += max(0.0, until - max(self.not_before, time.monotonic()))
                self.not_before = max(self.not_before, until)
        if trouble.wait_s > self.patience.stall_s:
            self._fail(Trouble(trouble.code, {**trouble.params, "retry_after_s": round(trouble.wait_s)}))
        if first:
            self.said(f"{claim.item.path}: {trouble.code} {trouble.params or ''}; trying again.")
        # An answer that broke off after some bytes is soon gone on with; one that never began waits longer each time.
        pause = min(self.patience.most_pause_s, 0.25 * 2.0 ** min(failed - 1, 10))
        return max(trouble.wait_s, pause * random.uniform(0.5, 1.0))

    def _fail(self, trouble: Trouble) -> None:
        with self.lock:
            self.failure = self.failure or trouble
            self.lock.notify_all()
        self.stop.set()
        self.over.set()

    # --- who fetches what ---------------------------------------------------------------------------------------------

    def _take(self) -> Claim | None:
        """Pieces to fetch; waits while others may still give some back. None: no more work."""
        with self.lock:
            while not self.stop.is_set():
                wait = self.not_before - time.monotonic()
                item = next((item for item in self.items if item.free), None)
                if item is not None and wait <= 0:
                    self.busy += 1
                    return self._claim(item)
                if item is None and not self.busy:
                    self.over.set()
                    self.lock.notify_all()
                    return None
                self.lock.wait(max(0.05, wait) if wait > 0 else 1.0)
        return None

    def _claim(self, item: Item) -> Claim:
        part = item.open()
        left = sum(len(one.free) * part.piece for one in self.items)
        most = min(SEGMENT, left // (2 * self.connections))
        first = item.free.pop(0)
        last = first
        while item.free and item.free[0] == last + 1 and not part.done[last + 1]:
            if (last + 2 - first) * part.piece > most:
                break
            last = item.free.pop(0)
        return Claim(item, part, range(first, last + 1))

    def _give_back(self, claim: Claim) -> None:
        item, part = claim.item, claim.part
        with self.lock:
            for index in claim.pieces:
                if part.done[index] < part.length(index):
                    bisect.insort(item.free, index)
            self.busy -= 1
            if part.complete:
                item.close()
            self.lock.notify_all()


def disk_trouble(exc: OSError, base: Path) -> Trouble:
    """What a failing write means."""
    code = "disk_full" if exc.errno in FULL else "system"
    params = {} if code == "disk_full" else {"error": exc.strerror or ""}
    return Trouble(code, params, fatal=True, path=str(exc.filename or base.parent))
