"""Where a download's files lie: in the Hugging Face cache, or in a plain folder of models.

    hub/models--org--name/blobs/<sum>              the content, named by its sum; <sum>.part and <sum>.map before that
                          snapshots/<commit>/…     relative links to it, made when everything is there
                          refs/<branch>            the commit
    hub/.locks/models--org--name/berth.lock        one download of a repository at a time

    <folder>/<name>/…                              the files
                    .berth-download/<sum>          compared, waits for the others; <sum>.part and <sum>.map before that

Nothing is written outside the allowed roots, whatever links lie there. Raises Trouble and OSError.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from panel.fleet.agent.download_http import Trouble
from panel.fleet.agent.download_order import COMMIT, OURS, within
from panel.fleet.agent.download_part import discard, sync_folder
from panel.fleet.agent.private import write
from panel.fleet.wire import DownloadFile, DownloadTask

LOOK_S = 0.5


class Store:
    """The one layout or the other. `roots` are the folders that models may lie in."""

    def __init__(self, task: DownloadTask, roots: Sequence[Path]) -> None:
        self.task, self.roots = task, list(roots)
        self.hub = task.layout == "hf_cache"
        folder = Path(task.folder)
        repo = f"models--{task.repo.replace('/', '--')}"
        self.place = folder / repo if self.hub else folder / task.name
        self.parts = self.place / ("blobs" if self.hub else OURS)
        self.lock_file = folder / ".locks" / repo / "berth.lock" if self.hub else self.parts / "lock"

    def make(self, folder: Path) -> Path:
        """A folder that lies where it may."""
        if not within(folder, self.roots):
            raise Trouble("path_not_allowed", fatal=True, path=str(folder)[:500])
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def base(self, file: DownloadFile) -> Path:
        """The content's name; its part's without the ending."""
        return self.parts / file.sum

    def target(self, file: DownloadFile, commit: str) -> Path:
        """Where people and engines find it."""
        return (self.place / "snapshots" / commit if self.hub else self.place) / file.path

    @contextmanager
    def locked(self, waiting: Callable[[], None]) -> Iterator[None]:
        """One download at a time writes here; `waiting` is called while another one does."""
        handle = -1
        try:
            while handle < 0:
                self.make(self.lock_file.parent)
                handle = self._try_lock()
                if handle < 0:
                    waiting()
                    time.sleep(LOOK_S)
            yield
        finally:
            if handle >= 0:
                os.close(handle)

    def _try_lock(self) -> int:
        """The descriptor, or -1 while another one holds it, or deleted the file meanwhile."""
        handle = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == self.lock_file.stat().st_ino:
                return handle
        except (BlockingIOError, FileNotFoundError):
            os.close(handle)
            return -1
        os.close(handle)
        return -1

    # --- what is there ------------------------------------------------------------------------------------------------

    def present(self, file: DownloadFile) -> list[Path]:
        """Files that could have this content, by their length. Raises Trouble where one leads out."""
        found = []
        for path in [self.base(file)] if self.hub else [self.base(file), self.target(file, "")]:
            with contextlib.suppress(OSError):
                info = path.stat()
                if stat.S_ISREG(info.st_mode) and info.st_size == file.size and within(path, self.roots):
                    found.append(path)
        return found

    def in_the_way(self, file: DownloadFile) -> Path | None:
        """A file of another content at this one's place, which somebody may need."""
        target = self.target(file, "")
        return target if not self.hub and os.path.lexists(target) else None

    def discard(self) -> int:
        """Delete what unfinished downloads of these files left; bytes of the disk that come back."""
        freed = 0
        for file in self.task.files:
            freed += discard(self.base(file))
            if not self.hub:
                with contextlib.suppress(FileNotFoundError):
                    freed += self.base(file).lstat().st_blocks * 512
                    self.base(file).unlink()
        self.tidy()
        return freed

    def tidy(self) -> None:
        """Take our own folder away when nothing is in it any more, and what a discarded first download made."""
        empty = [self.place / "snapshots", self.place / "refs", self.parts, self.place] if self.hub else [self.place]
        if not self.hub and set(os.listdir(self.parts)) <= {self.lock_file.name}:  # noqa: PTH208
            self.lock_file.unlink(missing_ok=True)
            self.parts.rmdir()
        for folder in empty:
            with contextlib.suppress(OSError):  # not empty, or not there
                folder.rmdir()

    # --- the end ------------------------------------------------------------------------------------------------------

    def show(self, commit: str) -> Path:
        """Put everything where it is looked for; returns the folder of the model."""
        if self.hub:
            self._link(commit)
            return self.place / "snapshots" / commit
        left = [file.sum for file in self.task.files]
        for file in self.task.files:
            left.remove(file.sum)
            content, target = self.base(file), self.target(file, "")
            if not content.exists():
                continue  # it was at its place before
            self.make(target.parent)
            if file.sum in left:
                draft = self.base(file).with_suffix(".copy")
                shutil.copyfile(content, draft)
                draft.rename(target)
            else:
                content.rename(target)
            sync_folder(target.parent)
        self.tidy()
        return self.place

    def _link(self, commit: str) -> None:
        folders = set()
        for file in self.task.files:
            link = self.target(file, commit)
            folders.add(self.make(link.parent))
            aim = os.path.relpath(self.base(file), link.parent)
            if link.is_symlink() and os.readlink(link) == aim:  # noqa: PTH115
                continue
            draft = link.with_name(f".{file.sum}.berth")  # a name of full length has no room for an ending
            draft.unlink(missing_ok=True)
            draft.symlink_to(aim)
            draft.rename(link)
        for folder in folders:
            sync_folder(folder)
        ref = self.task.ref or ("" if COMMIT.fullmatch(self.task.revision) else self.task.revision)
        if ref:
            path = self.place / "refs" / ref
            self.make(path.parent)
            write(path, commit)
            path.chmod(0o644)
