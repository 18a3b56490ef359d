"""Programs of our own that begin as copies of this process: what they import is loaded once, and is shared memory.

Three processes that each load Django, Celery and all rooms take 270 MiB; as copies they take 145, and start at once.
A copy of a process with threads would keep their locks for ever, so such a process starts programs the usual way.
"""

import contextlib
import ctypes
import gc
import importlib.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import IO

PR_SET_PDEATHSIG = 1
M_ARENA_MAX = -8
TOLD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # for which the first process has handlers of its own


class Forked:
    """A copy of this process that runs one function; as much of subprocess.Popen as its keeper uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def possible() -> bool:
    """Whether a copy of this process would work: no thread but this one runs."""
    return threading.active_count() == 1 and threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def only_parts(package: str) -> Iterator[None]:
    """Inside, modules of a package load without what the package itself would: for who wants but one of them.

    Nothing happens where it is loaded already. Afterwards it can be imported whole, as ever.
    """
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if spec is None:
        yield
        return
    frame = ModuleType(package)
    frame.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[package] = frame
    try:
        yield
    finally:
        if sys.modules.get(package) is frame:
            del sys.modules[package]


def settle() -> None:
    """Before the first copy: what is loaded now is for good, and no search for garbage shall write into it."""
    gc.collect()
    gc.freeze()


def fork(run: Callable[[], int], *, title: list[str], log: IO[bytes], cwd: Path, death_signal: str) -> Forked:
    """Start a copy of this process that becomes `run` and nothing else; it ends when this process does."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # A copy that is told to stop before it is itself would act as this process does: it would stop all the others.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Forked(pid)
    code = 1
    try:
        _become(parent, title, log, cwd, getattr(signal, f"SIG{death_signal}"))
        code = run()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # nothing that the first process wanted to do at its end is done here


def _become(parent: int, title: list[str], log: IO[bytes], cwd: Path, death_signal: int) -> None:
    """What exec and a new session would have done, as far as it matters."""
    os.setsid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the wish was made
        os._exit(1)
    for number in TOLD:  # as Python has them at every start
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text file, as at every start
    os.chdir(cwd)
    if hasattr(libc, "mallopt"):  # threads share two heaps: each of their own would keep what it once needed
        libc.mallopt(M_ARENA_MAX, 2)
    sys.argv = title
    rename(title)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)


def rename(words: list[str]) -> None:
    """What `ps` shows of this process, as far as there is room: the length of the command that it was started with."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    if 0 < start < end:
        text = b"\0".join(word.encode() for word in words)[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
