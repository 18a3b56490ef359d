"""Whether a door is still of use: an agent looks after it, or an engine runs behind it.

A machine whose agent was killed and whose engines have ended would otherwise keep a port open for nobody, for ever.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
import time
from pathlib import Path

from panel.fleet.door.host import Book

log = logging.getLogger("berth.door")

LOOK_S = 5.0
IDLE_S = 60.0  # an agent that is only started again is back long before


def is_needed(folder: Path, book: Book) -> bool:
    """`folder` is the door's; the agent's, with the lock that a living agent holds, is above it."""
    if any(engine.process.alive() for engine in book.now().runs.values()):
        return folder.exists()
    try:
        handle = os.open(folder.parent / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # the folder was taken away
        return False
    try:
        # Held for no time: an agent that starts at this very moment tries again.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def watch(folder: Path, book: Book, *, look_s: float = LOOK_S, idle_s: float = IDLE_S) -> threading.Thread:
    """End this process in its orderly way once it has been of no use for `idle_s`."""

    def run() -> None:
        useful = time.monotonic()
        while True:
            time.sleep(look_s)
            if is_needed(folder, book):
                useful = time.monotonic()
            elif time.monotonic() - useful >= idle_s:
                log.warning("no agent and no engine for %g s: the door closes", idle_s)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=run, name="needed", daemon=True)
    thread.start()
    return thread
