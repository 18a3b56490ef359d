"""Fetch files of a repository, compare each with its sum, and only then put them where models lie.

Phases: waiting (another download writes there), checking (what is there already, the room on the disk), downloading,
verifying, placing. Whatever ends it, what was fetched stays, and the next download of the same files goes on from
there. Raises Trouble (what a person has to settle) or OSError.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from panel.fleet.agent.download_http import Patience, Session, Trouble
from panel.fleet.agent.download_order import COMMIT, address_of
from panel.fleet.agent.download_part import PART, Part, discard, finish
from panel.fleet.agent.download_pool import Item, Pool
from panel.fleet.agent.download_store import Store
from panel.fleet.agent.download_sums import Checked, sum_of
from panel.fleet.wire import DownloadFile, DownloadTask

MIB = 1 << 20
SPARE = 256 * MIB  # bytes of the disk that a download leaves free
FLOOR = 64 * MIB  # below this it stops
LOOK_S, DISK_S = 0.25, 2.0
WINDOW_S = 5.0  # of the rate
SILENT_S = 60.0  # without a byte until the log says so


class Teller(Protocol):
    """Where a download says what it does."""

    def say(self, text: str) -> None: ...

    def progress(
        self, phase: str, done: int = 0, total: int = 0, note: str = "", *, rate: float = 0.0, silent_s: float = 0.0,
        trouble: str = "",
    ) -> None: ...  # fmt: skip


@dataclass
class Rate:
    """Bytes per second of the last seconds."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def now(self, count: int) -> float:
        at = time.monotonic()
        self.seen.append((at, count))
        while len(self.seen) > 2 and at - self.seen[0][0] > WINDOW_S:
            self.seen.popleft()
        passed = at - self.seen[0][0]
        return (count - self.seen[0][1]) / passed if passed > 0.2 else 0.0


@dataclass
class Download:
    """One order. `disk_free` tells the bytes that are free where a folder lies."""

    task: DownloadTask
    store: Store
    session: Session
    checked: Checked
    teller: Teller
    patience: Patience = field(default_factory=Patience)
    spare: int = SPARE
    floor: int = FLOOR
    disk_free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free

    def run(self) -> Path:
        """The folder of the model."""
        with self.store.locked(lambda: self.teller.progress("waiting")):
            self.store.make(self.store.parts)
            wanted = self._missing()
            commit = self._commit() if wanted or self.store.hub else ""
            self._require_room(wanted)
            if wanted:
                self._fetch(wanted, commit)
                self._verify(wanted)
            self.teller.progress("placing")
            return self._show(commit)

    def discard(self) -> int:
        """Take away what unfinished downloads of these files left; bytes that come back."""
        if not self.store.place.is_dir():
            return 0
        with self.store.locked(lambda: self.teller.progress("waiting")):
            self.store.make(self.store.parts)
            freed = self.store.discard()
        self.teller.say(f"Unfinished files are deleted: {freed / MIB:.0f} MiB.")
        return freed

    # --- before anything is fetched -----------------------------------------------------------------------------------

    def _missing(self) -> list[DownloadFile]:
        """The contents that are not there, or damaged; each once."""
        total = sum(path.stat().st_size for file in self.task.files for path in self.store.present(file))
        done, missing = 0, {}

        def read(count: int) -> None:
            nonlocal done
            done += count
            self.teller.progress("checking", done, total, file.path)

        self.teller.progress("checking", 0, total)
        for file in self.task.files:
            if any(self._is(path, file.sum, read) for path in self.store.present(file)):
                continue
            taken = None if self.task.replace else self.store.in_the_way(file)
            if taken is not None:
                raise Trouble("folder_taken", fatal=True, path=str(taken)[:500])
            missing[file.sum] = file
        return list(missing.values())

    def _is(self, path: Path, sum_: str, read: Callable[[int], None]) -> bool:
        if self.checked.knows(path, sum_):
            read(path.stat().st_size)
            return True
        same = sum_of(path, sum_, read) == sum_
        if same:
            self.checked.keep(path, sum_)
        else:
            self.teller.say(f"{path} is damaged, or another file; it is fetched again.")
        return same

    def _commit(self) -> str:
        """What the cache calls this state of the repository; a plain folder needs no name for it."""
        if not self.store.hub or COMMIT.fullmatch(self.task.revision):
            return self.task.revision
        address = address_of(self.task, self.task.files[0].path, self.task.revision)
        commit = self._asked(lambda: self.session.commit_of(address))
        if not COMMIT.fullmatch(commit):
            raise Trouble("no_commit", fatal=True, revision=self.task.revision)
        return commit

    def _asked(self, ask: Callable[[], str]) -> str:
        """One question before the download itself, with a little patience."""
        until, pause = time.monotonic() + self.patience.first_s, 0.25
        while True:
            try:
                return ask()
            except Trouble as exc:
                exc.params.setdefault("file", self.task.files[0].path)
                wait = max(exc.wait_s, pause)
                if exc.fatal or time.monotonic() + wait > until:
                    raise
                self.teller.progress("checking", trouble=exc.code)
                time.sleep(wait)
                pause = min(2 * pause, self.patience.most_pause_s)

    def _require_room(self, wanted: Iterable[DownloadFile]) -> None:
        need = 0
        for file in wanted:
            part = self.store.base(file).with_name(file.sum + PART)
            there = part.stat().st_blocks * 512 if part.exists() else 0
            need += max(0, file.size - there)
        free = self.disk_free(self.store.parts)
        if need and free < need + self.spare:
            needed = (need + self.spare) >> 20
            raise Trouble("no_space", path=str(self.store.parts), free_mib=free >> 20, need_mib=needed)

    # --- downloading --------------------------------------------------------------------------------------------------

    def _fetch(self, wanted: list[DownloadFile], commit: str) -> None:
        items = [self._item(file, commit) for file in wanted]
        total, begun = sum(item.size for item in items), sum(item.have for item in items)
        host = urlsplit(self.task.endpoint).hostname
        text = f"Downloading {len(items)} files, {total / MIB:.1f} MiB, from {host}"
        self.teller.say(f"{text}; {begun / MIB:.1f} MiB are there already." if begun else f"{text}.")
        limit = self.task.limit_mib_s * MIB
        pool = Pool(items, self.session, self.patience, connections=self.task.connections, limit=limit)
        pool.said = self.teller.say
        self.teller.progress("downloading", begun, total)
        pool.start()
        try:
            self._watch(pool, total)
        finally:
            pool.end()
        if pool.crash is not None:
            raise pool.crash
        if pool.failure is not None:
            raise pool.failure
        self.teller.progress("downloading", total, total)

    def _item(self, file: DownloadFile, commit: str) -> Item:
        address = address_of(self.task, file.path, commit)
        item = Item(file.path, address, self.store.base(file), file.sum, file.size)
        part = Part.open(item.base, item.sum, item.size)
        try:
            item.have = part.have
            item.free = [index for index, done in enumerate(part.done) if done < part.length(index)]
        finally:
            part.close()
        return item

    def _watch(self, pool: Pool, total: int) -> None:
        rate, looked, told = Rate(), 0.0, False
        while not pool.over.wait(LOOK_S):
            now = time.monotonic()
            silent = now - max(pool.last_byte, min(now, pool.not_before))
            trouble, done = pool.trouble, pool.done
            note = next((item.path for item in pool.items if item.part is not None), "")
            self.teller.progress(
                "downloading", done, total, note, rate=rate.now(done), silent_s=now - pool.last_byte,
                trouble=trouble.code if trouble else "",
            )  # fmt: skip
            if silent > SILENT_S and not told:
                self.teller.say(f"No byte has come for {silent:.0f} s.")
            told = silent > SILENT_S
            self._check_patience(pool, now)
            if now - looked > DISK_S:
                looked = now
                free = self.disk_free(self.store.parts)
                if free < self.floor:
                    raise Trouble("disk_full", path=str(self.store.parts), free_mib=free >> 20)

    def _check_patience(self, pool: Pool, now: float) -> None:
        silent, patience = now - pool.last_byte, self.patience
        first = not pool.bytes and silent > patience.first_s + pool.asked_s
        if silent <= patience.stall_s and not first:
            return
        trouble = pool.trouble
        if trouble is None or trouble.code == "silent":
            raise Trouble("stalled", silent_s=round(silent))
        raise Trouble(trouble.code, trouble.params, silent_s=round(silent))

    # --- verifying and placing ----------------------------------------------------------------------------------------

    def _verify(self, wanted: list[DownloadFile]) -> None:
        """Each with its sum; a wrong one is deleted, so that the next try fetches it anew, and the others stay."""
        total, done = sum(file.size for file in wanted), 0
        wrong: list[dict[str, str]] = []

        def read(count: int) -> None:
            nonlocal done
            done += count
            self.teller.progress("verifying", done, total, file.path)

        self.teller.progress("verifying", 0, total)
        for file in wanted:
            base = self.store.base(file)
            found = sum_of(base.with_name(file.sum + PART), file.sum, read)
            if found != file.sum:
                self.teller.say(f"{file.path} is not what the hub promised: {found} instead of {file.sum}.")
                discard(base)
                wrong.append({"file": file.path, "expected": file.sum, "found": found})
                continue
            finish(base)
            self.checked.keep(base, file.sum)
        if wrong:
            raise Trouble("wrong_hash", wrong[0], count=len(wrong))

    def _show(self, commit: str) -> Path:
        folder = self.store.show(commit)
        if not self.store.hub:  # they have other names now
            for file in self.task.files:
                self.checked.keep(self.store.target(file, commit), file.sum)
        self.teller.say(f"{len(self.task.files)} files are in {folder}.")
        return folder
