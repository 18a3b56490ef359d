"""Processes by /proc: who is it, whose is it, how much does it use.

A process is named by pid, start time (clock ticks since boot) and boot id, so that a reused pid is never taken for
ours.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc")
MARKER = "BERTH_JOB"  # environment variable that every process of a job inherits
PAGE = os.sysconf("SC_PAGE_SIZE")


@lru_cache(maxsize=1)
def kernel_boot() -> str:
    """The id of the kernel's boot, or "" where the kernel does not tell."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def in_container() -> bool:
    """Whether this runs in a container, whose restart ends everything in it while the kernel goes on."""
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in os.environ


@lru_cache(maxsize=1)
def boot_id() -> str:
    """The id of what processes live in: the kernel's boot, in a container also its own start. "" if unknown."""
    kernel = kernel_boot()
    first = read_stat(1) if kernel and in_container() else None
    return f"{kernel}.{first.start}" if first is not None else kernel


class Stat(NamedTuple):
    """The parts of /proc/PID/stat that matter here. `start` is in clock ticks since boot, `rss` in pages."""

    pid: int
    state: str
    ppid: int
    pgid: int
    sid: int
    threads: int
    start: int
    rss: int

    @property
    def alive(self) -> bool:
        """False for a zombie, unless threads of it still run (its leader left first)."""
        return self.state not in "ZX" or (self.state == "Z" and self.threads > 1)


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold spaces and brackets; everything after its last bracket is numbers.
    rest = text[text.rindex(")") + 2 :].split()
    return Stat(
        pid,
        rest[0],
        int(rest[1]),
        int(rest[2]),
        int(rest[3]),
        int(rest[17]),
        int(rest[19]),
        int(rest[21]),
    )


Snapshot = dict[int, Stat]


def snapshot() -> Snapshot:
    """All processes of the host now."""
    found: Snapshot = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - os.listdir is an order of magnitude cheaper than Path objects
        if name.isdigit() and (stat := read_stat(int(name))) is not None:
            found[stat.pid] = stat
    return found


@dataclass(frozen=True)
class Ident:
    """One process for all time."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Ident | None:
        stat = read_stat(pid)
        return cls(pid, stat.start, boot_id()) if stat is not None else None

    @classmethod
    def load(cls, value: Any) -> Ident | None:
        """From journal data; None when it does not name a process."""
        if not isinstance(value, list | tuple) or len(value) != 3:
            return None
        pid, start, boot = value
        if not isinstance(pid, int) or not isinstance(start, int) or not isinstance(boot, str) or pid <= 0:
            return None
        return cls(pid, start, boot)

    def dump(self) -> list[int | str]:
        return [self.pid, self.start, self.boot]

    def matches(self, stat: Stat | None) -> bool:
        """True when `stat` is this process and it still runs."""
        return stat is not None and stat.start == self.start and stat.alive and self.boot == boot_id()

    def alive(self) -> bool:
        return self.matches(read_stat(self.pid))


def marker_of(pid: int) -> str:
    """The job id in a process's environment; "" when it has none or it may not be read."""
    return env_of(pid, MARKER)


def env_of(pid: int, name: str) -> str:
    """One variable of a process's environment as it was started; "" when it has none or it may not be read."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    prefix = name.encode() + b"="
    for item in environ.split(b"\0"):
        if item.startswith(prefix):
            return item[len(prefix) :].decode(errors="replace")
    return ""


@dataclass
class MarkerCache:
    """Markers by (pid, start). An environment is inherited, so a process without the marker never gets it later."""

    seen: dict[tuple[int, int], str] = field(default_factory=dict)

    def update(self, snap: Snapshot) -> None:
        """Read the new processes, drop the gone ones."""
        keys = {(stat.pid, stat.start) for stat in snap.values()}
        for key in self.seen.keys() - keys:
            del self.seen[key]
        for pid, start in keys - self.seen.keys():
            self.seen[pid, start] = marker_of(pid)

    def of(self, stat: Stat) -> str:
        return self.seen.get((stat.pid, stat.start), "")


def members(
    job_id: str,
    snap: Snapshot,
    markers: MarkerCache,
    *,
    shim: Ident | None,
    engine: Ident | None,
    known: Iterable[Ident] = (),
) -> list[Ident]:
    """The living processes of a job: by marker, session, parentage, or because they were seen as its own before.

    The shim and this process are never among them.
    """
    ours = {stat.pid for stat in snap.values() if markers.of(stat) == job_id}
    ours |= {ident.pid for ident in known if ident.matches(snap.get(ident.pid))}
    if engine is not None and engine.boot == boot_id():
        leader = snap.get(engine.pid)
        if leader is not None and leader.start == engine.start:
            ours |= {stat.pid for stat in snap.values() if stat.sid == engine.pid}
    roots = {shim.pid} if shim is not None and shim.matches(snap.get(shim.pid)) else set()
    ours = _with_descendants(ours | roots, snap) - roots
    # A zombie shim, or a shim of a previous life of this pid, is nobody's member either.
    ours.discard(os.getpid())
    boot = boot_id()
    return sorted(
        (Ident(pid, snap[pid].start, boot) for pid in ours if pid in snap and snap[pid].alive), key=lambda i: i.pid
    )


def _with_descendants(pids: set[int], snap: Snapshot) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in snap.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    found, todo = set(pids), list(pids)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def send(ident: Ident, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone. A pidfd closes the gap between looking and sending."""
    try:
        handle = os.pidfd_open(ident.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel or a sandbox without pidfd
        return _send_by_pid(ident, number)
    try:
        if not ident.alive():
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _send_by_pid(ident: Ident, number: signal.Signals) -> bool:
    if not ident.alive():
        return False
    try:
        os.kill(ident.pid, number)
    except ProcessLookupError:
        return False
    return True


def send_group(leader: Ident, snap: Snapshot, number: signal.Signals) -> None:
    """Signal a whole process group at once, so that nothing forked in between is missed.

    Only while a living member of the leader's own session is in it, which keeps the number from being reused.
    """
    if not any(stat.pgid == leader.pid and stat.sid == leader.pid and stat.alive for stat in snap.values()):
        return
    found = snap.get(leader.pid)
    if found is not None and found.start != leader.start:
        return
    try:
        os.killpg(leader.pid, number)
    except ProcessLookupError:
        return


def read_bytes(pid: int) -> int:
    """Bytes the process has read: by read() (`rchar`) or by touching mapped files (`read_bytes`), the larger one."""
    best = 0
    try:
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("rchar", "read_bytes"):
                best = max(best, int(value))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return best


def own_pages(pid: int) -> int:
    """Pages that end with the process: without those of files and of what is shared, which others may hold as well."""
    try:
        _size, resident, shared, *_rest = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return max(0, int(resident) - int(shared))


@dataclass
class Use:
    """What a job's processes used at the last look."""

    processes: int = 0
    rss_mib: int = 0
    own_mib: int = 0
    read: dict[Ident, int] = field(default_factory=dict)  # bytes
    read_before: int = 0  # by processes that are gone: the sum must not fall


def listens(pids: Iterable[int], port: int) -> bool:
    """Whether the socket that listens on `port` belongs to one of the processes. True where that cannot be seen."""
    inodes = _listening_inodes(port)
    if not inodes:
        return False
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):  # noqa: PTH208
                if _link(f"{folder}/{name}") in inodes:
                    return True
        except PermissionError:
            return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


def listener(port: int) -> str:
    """Who listens on `port`, as "nginx (process 812)"; "" when nobody does, or another user's cannot be seen."""
    inodes = _listening_inodes(port)
    if not inodes:
        return ""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            if any(_link(f"/proc/{name}/fd/{fd}") in inodes for fd in os.listdir(f"/proc/{name}/fd")):  # noqa: PTH208
                return f"{Path(f'/proc/{name}/comm').read_text(errors='replace').strip()[:60]} (process {name})"
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
    return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _listening_inodes(port: int) -> set[str]:
    found = set()
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            parts = line.split()
            if parts[1].endswith(wanted) and parts[3] == "0A":
                found.add(f"socket:[{parts[9]}]")
    return found
