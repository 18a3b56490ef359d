"""The tiny process between the agent and one job: it outlives the agent, keeps the exit code, bounds the log.

Run as a file by `python -I -S -E shim.py LOCK_FD` in the job's folder, as the leader of a new session. What to run
comes as marshal data on stdin, so that secrets touch no disk and a half-written order starts nothing.

Files it writes: `run.json` (before the engine's first instruction), `exit.json` (fsync, rename), `log` (by the engine
itself, O_APPEND), `log.json` (what the bound removed). It holds the lock of the folder as long as it lives.
It imports little: one shim lives beside every engine.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
CANNOT_PUNCH = (22, 38, 95)  # EINVAL, ENOSYS, EOPNOTSUPP
BLOCK = 4096
RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
QUIET_S, BUSY_S = 0.5, 0.05  # between two looks at the log's size


def replace(name: str, text: str, *, durable: bool = False) -> None:
    """Write a small file atomically; `durable` (for names in the current folder) also over a power cut."""
    handle = os.open(f"{name}.tmp", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(handle, text.encode())
        os.ftruncate(handle, len(text.encode()))
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(f"{name}.tmp", name)  # noqa: PTH104 - pathlib costs memory in every shim
    if durable:
        folder = os.open(".", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def reserve(name: str) -> None:
    """Take the blocks of a file that must be writable later, even when the disk is full by then."""
    handle = os.open(f"{name}.tmp", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(handle, 0, BLOCK)
    except OSError:  # the file system cannot; then the write has to succeed at its time
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        return int(file.read().rpartition(b")")[2].split()[19])


def oom_kills() -> int:
    """Processes that the kernel has ended for lack of memory: in our cgroup, else on the machine. -1: unknown."""
    try:
        with open("/proc/self/cgroup") as file:  # noqa: PTH123
            parts = [line.strip().split(":", 2) for line in file if line.count(":") >= 2]
    except OSError:
        parts = []
    own = [path for number, _kinds, path in parts if number == "0"]
    old = [path for _number, kinds, path in parts if "memory" in kinds.split(",")]
    # In a container the path may be that of the machine, while only its own part is mounted.
    places = [f"/sys/fs/cgroup{path.rstrip('/')}/memory.events" for path in [*own, ""]]
    places += [f"/sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control" for path in [*old, ""]]
    for name in [*places, "/proc/vmstat"]:
        try:
            with open(name) as file:  # noqa: PTH123
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except (OSError, ValueError):
            continue
    return -1


class LogBound:
    """Keeps the first `head` and the newest `tail` bytes of the log on disk. Offsets stay what they were.

    Where the file system can punch holes, the middle of the one file is removed. Elsewhere the file is moved aside in
    parts and cut to zero, and `base` says which offset its first byte has; bytes written between the last copy and
    the cut are lost there (microseconds), and are then not counted either.
    """

    def __init__(self, log: int, head: int, tail: int, libc: ctypes.CDLL, folder: str = "") -> None:
        self.log, self.tail, self.libc = log, max(tail, 2 * BLOCK), libc
        self.at = folder  # "" for the current one, else with its slash
        self.head = -(-head // BLOCK) * BLOCK
        self.slack = max(BLOCK, min(1 << 20, self.tail // 8))
        self.hole_end, self.fresh, self.punches = self.head, True, True
        self.base, self.prev_start, self.last_size = 0, -1, 0

    def resume(self, hole: tuple[int, int] | None, base: int, prev_start: int) -> None:
        """Go on where another process stopped."""
        if hole is not None:
            self.hole_end = hole[1]
        if prev_start >= 0:
            self.punches, self.base, self.prev_start = False, base, prev_start

    def check(self) -> float:
        """Remove what is too much; returns seconds until the next look."""
        size = os.fstat(self.log).st_size
        grown, self.last_size = size - self.last_size, size
        try:
            if self.punches:
                self._punch(size)
            if not self.punches:
                self._rotate(size)
        except OSError:  # a full disk: what cannot be bounded now is tried again
            return QUIET_S
        return BUSY_S if abs(grown) > self.slack else QUIET_S

    def _punch(self, size: int) -> None:
        end = (size - self.tail) // BLOCK * BLOCK
        if end < self.hole_end + self.slack:
            return
        start = self.head if self.fresh else self.hole_end
        # Told before it is done, so that no reader takes the zeros of a hole for text.
        self._tell((self.head, end))
        result = self.libc.fallocate(
            self.log, KEEP_SIZE_PUNCH_HOLE, ctypes.c_longlong(start), ctypes.c_longlong(end - start)
        )
        if result != 0:
            self.punches = ctypes.get_errno() not in CANNOT_PUNCH
            self._tell((self.head, self.hole_end) if self.hole_end > self.head else None)
            return
        self.hole_end, self.fresh = end, False

    def _rotate(self, size: int) -> None:
        first = self.prev_start < 0
        if size < self.tail // 2 + (self.head if first else 0):
            return
        start = self.head if first else 0
        try:
            if first:
                self._copy(0, self.head, "log.head")
            self._tell(None, moving=True)
            copied = self._copy(start, None, "log.prev.new")
        except OSError:
            self.tell()
            raise
        os.ftruncate(self.log, 0)
        self.prev_start = self.base + start
        self.base += start + copied
        self.finish_move()

    def finish_move(self) -> None:
        os.rename(self.at + "log.prev.new", self.at + "log.prev")  # noqa: PTH104
        self.last_size = 0
        self.tell()

    def tell(self) -> None:
        """Say how the log lies now, with nothing under way."""
        self._tell((self.head, self.prev_start) if self.prev_start > self.head else None)

    def _copy(self, start: int, count: int | None, name: str) -> int:
        """Copy `count` bytes (None: until the end, as far as it has come) to a new file; returns how many."""
        source = os.open(self.at + "log", os.O_RDONLY)
        target = os.open(self.at + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        done = 0
        try:
            while count is None or done < count:
                data = os.pread(source, BLOCK * 64 if count is None else min(BLOCK * 64, count - done), start + done)
                if not data:
                    break
                os.write(target, data)
                done += len(data)
        finally:
            os.close(source)
            os.close(target)
        return done

    def _tell(self, hole: tuple[int, int] | None, *, moving: bool = False) -> None:
        text = f"[{hole[0]}, {hole[1]}]" if hole else "null"
        replace(
            self.at + "log.json",
            f'{{"hole": {text}, "base": {self.base}, "head": {self.head}, "prev_start": {self.prev_start},'
            f' "moving": {"true" if moving else "false"}}}',
        )


def run_child(spec: dict, log: int, gate: int, errors: int) -> None:  # type: ignore[type-arg] # marshal data
    """Become the engine. Waits at the gate until it is on record; leaves when the gate is torn down instead."""
    try:
        os.setsid()
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if os.read(gate, 1) != b"1":
            os._exit(70)
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.execve(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as exc:
        os.write(errors, str(exc.errno or 0).encode())
    finally:
        os._exit(127)


def start_engine(spec: dict, log: int) -> tuple[int, int]:  # type: ignore[type-arg] # marshal data
    """Fork, record, open the gate. Returns (pid, errno of a failed exec or 0)."""
    gate_out, gate_in = os.pipe()
    errors_out, errors_in = os.pipe()
    # The child ignores these, as we do, until it has reset them: what comes meanwhile has to wait, not to be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, RESET)
    pid = os.fork()
    if pid == 0:
        os.close(gate_in)
        run_child(spec, log, gate_out, errors_in)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RESET)
    os.close(gate_out)
    os.close(errors_in)
    replace(
        "run.json",
        f'{{"engine": [{pid}, {start_ticks(pid)}, "{spec["boot"]}"],'
        f' "shim": [{os.getpid()}, {start_ticks(os.getpid())}, "{spec["boot"]}"],'
        f' "started_at": {time.time():.6f}, "trace": "{spec.get("trace", "")}"}}',
    )
    # The pipe can be torn only when a stop has already killed the child; its exit then tells so.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        os.write(gate_in, b"1")
    except BrokenPipeError:
        return pid, 0
    finally:
        os.close(gate_in)
    failure = os.read(errors_out, 16)
    os.close(errors_out)
    return pid, int(failure or 0)


class Kills:
    """What the kernel ended for lack of memory since this was made, and when the newest of them was seen.

    The count is that of a cgroup or of the machine, so of others as well: when it rose tells more than that it did.
    """

    def __init__(self) -> None:
        self.before = self.seen = oom_kills()
        self.risen_at = 0.0

    def look(self) -> None:
        now = oom_kills()
        if now > self.seen >= 0:
            self.seen, self.risen_at = now, time.monotonic()

    def told(self) -> tuple[str, str]:
        """Their number, and for how many seconds the newest has been; "null" for what is not known."""
        self.look()
        if self.before < 0:
            return "null", "null"
        ago = f"{time.monotonic() - self.risen_at:.1f}" if self.risen_at else "null"
        return str(self.seen - self.before), ago


def record_exit(status: int, errno: int, kills: Kills) -> None:
    code = os.waitstatus_to_exitcode(status)
    exit_code, number = (str(code), "null") if code >= 0 else ("null", str(-code))
    count, ago = kills.told()
    replace(
        "exit.json",
        f'{{"exit_code": {exit_code}, "signal": {number}, "errno": {errno},'
        f' "oom_kills": {count}, "oom_ago_s": {ago}, "ended_at": {time.time():.6f}}}',
        durable=True,
    )


def watch(engine: int, errno: int, bound: LogBound, kills: Kills) -> None:
    """Until no child and no adopted grandchild is left."""
    wait = QUIET_S
    while True:
        signal.sigtimedwait([signal.SIGCHLD], wait)
        wait = bound.check()
        kills.look()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                bound.check()
                return
            if pid == 0:
                break
            if pid == engine:
                record_exit(status, errno, kills)


def say(text: str) -> None:
    """Tell the agent, if it is still there."""
    try:
        os.write(1, text.encode())
    except BrokenPipeError:
        return
    finally:
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)


def read_spec() -> dict | None:  # type: ignore[type-arg] # marshal data
    """None when the agent died while it wrote."""
    parts = []
    while data := os.read(0, 1 << 16):
        parts.append(data)
    try:
        return marshal.loads(b"".join(parts))  # type: ignore[no-any-return] # from our own agent, by a private pipe
    except (EOFError, ValueError, TypeError):
        return None


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    os.set_inheritable(int(sys.argv[1]), False)
    spec = read_spec()
    if spec is None:
        return 75
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    log = os.open("log", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    reserve("exit.json")
    kills = Kills()
    engine, errno = start_engine(spec, log)
    say("started\n")
    watch(engine, errno, LogBound(log, spec["head"], spec["tail"], libc), kills)
    return 0


if __name__ == "__main__":
    sys.exit(main())
