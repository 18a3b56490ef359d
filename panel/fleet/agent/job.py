"""One job on this host, from its shim's birth to the proof that nothing of it is left.

`advance` looks at what is and moves as far as it can without waiting; it is safe to call at any time, after any crash.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
import time
from typing import Any

from pydantic import ValidationError

from panel.fleet.agent import procs
from panel.fleet.agent.journal import Final, Journal, Record, read_json
from panel.fleet.agent.keeper import Keeper
from panel.fleet.agent.logfile import LogFile
from panel.fleet.agent.orders import Order
from panel.fleet.agent.procs import Ident, MarkerCache, Snapshot, Use
from panel.fleet.agent.spawn import Child
from panel.fleet.wire import JobState, JobStatus, Progress, Refusal

log = logging.getLogger(__name__)

LEFTOVER_GRACE_S = 10.0  # for processes that outlive their main process unasked
EXIT_WAIT_S = 5.0  # for the shim to write down an exit that we see
PROGRESS_S = 1.0  # between two looks at how far an install or a download is
WITH_PROGRESS = ("install", "download", "sidecar", "convert", "package")
NEVER = float("inf")
MIB = 1 << 20


class World:
    """The host's processes, read at most once per round."""

    def __init__(self, markers: MarkerCache) -> None:
        self.markers = markers
        self._snap: Snapshot | None = None

    @property
    def snap(self) -> Snapshot:
        if self._snap is None:
            self._snap = procs.snapshot()
            self.markers.update(self._snap)
        return self._snap


class Job:
    """See the module. Not thread-safe; the table of jobs locks."""

    def __init__(
        self, record: Record, journal: Journal, order: Order | None = None, child: Child | None = None
    ) -> None:
        self.record, self.journal, self.order, self.child = record, journal, order, child
        self.folder = journal.folder_of(record.id)
        self.log = LogFile(self.folder)
        self.shim = Ident.load(record.shim)
        self.engine: Ident | None = None
        self.started_at: float | None = None
        self.exit: dict[str, Any] | None = None
        self.known: set[Ident] = set()
        self.leftover: list[Ident] = []
        self.termed: set[Ident] = set()
        self.use = Use()
        self.listening = self.vanished = self.unsaved = False
        self.attempts, self.port_holder = 0, ""
        self.kill_at: float | None = None
        self.due: float | None = None  # see _deadline
        self.dead_since: float | None = None
        self.keeper: Keeper | None = None
        self.last_progress: Progress | None = None
        self.reported_all = False
        self.load()

    # --- what the shim wrote ----------------------------------------------------------------------------------------

    def load(self) -> None:
        if self.engine is None:
            run = read_json(self.folder / "run.json")
            if isinstance(run, dict):
                self.engine = Ident.load(run.get("engine"))
                self.shim = self.shim or Ident.load(run.get("shim"))
                self.started_at = run.get("started_at")
                self.order = None  # with its secrets
        if self.engine is not None and self.exit is None:
            found = read_json(self.folder / "exit.json")
            self.exit = found if isinstance(found, dict) else None

    def shim_alive(self) -> bool:
        self.reap()
        if self.shim is not None:
            return self.shim.alive()
        return self.journal.watched(self.record.id)

    # --- the way to the end -----------------------------------------------------------------------------------------

    def ask_stop(self, grace_s: float, reason: str = "", trace: str = "") -> None:
        """Remember first, act in the next `advance`. Asking again changes nothing, except to shorten the grace."""
        if self.record.over:
            return
        if self.record.stop_asked_at is not None:
            if grace_s < self.record.grace_s:
                self.record.grace_s, self.kill_at = grace_s, None
            return
        self.record.stop_asked_at, self.record.stop_reason = time.time(), reason
        self.record.grace_s, self.kill_at = grace_s, None
        log.info("job %s is being stopped %s", self.record.id, reason, extra={"trace": trace or self.record.trace})
        self.remember()

    def remember(self, *, durable: bool = True) -> None:
        """Write the record down. A full disk must not keep a job from being stopped: then it is tried again."""
        try:
            self.journal.save(self.record, durable=durable)
            self.unsaved = False
        except OSError as exc:
            if not self.unsaved:
                log.error("job %s cannot be written down: %s", self.record.id, exc)
            self.unsaved = True

    def advance(self, world: World) -> None:
        if self.record.over:
            return
        self.load()
        if self.engine is None:
            self._before_engine()
        elif self.engine.alive():
            self._while_alive(world)
        else:
            self._after_main(world)

    def _before_engine(self) -> None:
        alive = self.shim_alive()
        self.load()
        if self.engine is not None:
            return
        if alive:
            if self.record.stop_asked_at is not None and self._grace_over() and self.shim is not None:
                procs.send(self.shim, signal.SIGKILL)  # its child waits at the gate and leaves with it
            return
        if self.record.stop_asked_at is not None:
            self._finish(Final("ended", time.time()))
        else:
            self.vanished = True  # nothing ever ran; the table decides

    def _while_alive(self, world: World) -> None:
        if not self.shim_alive():
            self._keep_log()
        if time.monotonic() > self._deadline():
            self.ask_stop(5.0, "timed_out")
        if self.record.stop_asked_at is not None:
            self._push(world)
        elif self.record.port is not None and not self.listening:
            self.check_listening(world)

    def _after_main(self, world: World) -> None:
        if self.dead_since is None:
            self.dead_since = time.monotonic()
        shim = self.shim_alive()
        self.load()
        if self.exit is None and shim and time.monotonic() - self.dead_since < EXIT_WAIT_S:
            return
        self.listening = False
        self.leftover = self.find(world)
        if not self.leftover:
            self._finish(self._final())
            return
        if self.record.cleaning_since is None and self.record.stop_asked_at is None:
            self.record.cleaning_since = time.time()
            self.remember()
        if not shim:
            self._keep_log()
        self._push(world)

    def find(self, world: World) -> list[Ident]:
        """The job's living processes now."""
        found = procs.members(
            self.record.id, world.snap, world.markers, shim=self.shim, engine=self.engine, known=self.known
        )
        self.known = set(found)
        return found

    def _grace_over(self) -> bool:
        if self.kill_at is None:
            asked, grace = self.record.stop_asked_at, self.record.grace_s
            if asked is None:
                asked, grace = self.record.cleaning_since or time.time(), min(LEFTOVER_GRACE_S, grace)
            # Of a grace that began before a restart of the agent only the rest is left, whatever the clock did.
            self.kill_at = time.monotonic() + min(grace, max(0.0, asked + grace - time.time()))
        return time.monotonic() >= self.kill_at

    def _deadline(self) -> float:
        """When the job has taken too long, by the clock that only runs: it takes no notice of one that steps."""
        if self.due is None and (end := self.record.deadline_at) is not None:
            self.due = time.monotonic() + min(end - self.record.accepted_at, max(0.0, end - time.time()))
        return NEVER if self.due is None else self.due

    def _push(self, world: World) -> None:
        """TERM to everything once, KILL to everything again and again when the grace is over."""
        self.leftover = self.find(world)
        if self._grace_over():
            if not self.record.killed and self.leftover:
                self.record.killed = True
                self.remember()
            self._send(world, self.leftover, signal.SIGKILL)
            return
        new = [ident for ident in self.leftover if ident not in self.termed]
        if new:
            self._send(world, new, signal.SIGTERM)
            self.termed.update(new)

    def _send(self, world: World, targets: list[Ident], number: signal.Signals) -> None:
        grouped: set[int] = set()
        if self.engine is not None and self.engine in targets:
            grouped = {s.pid for s in world.snap.values() if s.pgid == self.engine.pid}
            procs.send_group(self.engine, world.snap, number)
        for ident in targets:
            if ident.pid not in grouped or number == signal.SIGKILL:
                self._send_one(ident, number)

    def _send_one(self, ident: Ident, number: signal.Signals) -> None:
        try:
            procs.send(ident, number)
        except PermissionError:  # it changed its user; it stays in the list of leftovers, where people see it
            log.warning("no right to end process %d of job %s", ident.pid, self.record.id)

    def _final(self) -> Final:
        if self.exit is None:
            # The machine's restart ended it: that is no failure of the engine, and the panel starts it again.
            restarted = self.engine is not None and self.engine.boot != procs.boot_id()
            refusal = Refusal(code="host_restarted" if restarted else "exit_unknown").model_dump()
            return Final("ended", time.time(), refusal=refusal)
        failed = int(self.exit.get("errno") or 0)
        if failed:
            params = {"path": self.record.argv[:1], "errno": errno.errorcode.get(failed, str(failed))}
            refusal = Refusal(code="cannot_execute", params=params).model_dump()
            return Final("refused", time.time(), refusal=refusal)
        left = self.record.cleaning_since is not None or self.record.stop_asked_at is not None
        ended = time.time() if left else float(self.exit.get("ended_at") or time.time())
        if self.exit.get("exit_code") and self.record.port is not None and not left:
            self.port_holder = procs.listener(self.record.port)  # ours are gone: whoever listens now is the reason
        return Final("ended", ended, exit_code=self.exit.get("exit_code"), signal=self.exit.get("signal"))

    def _finish(self, final: Final) -> None:
        self.leftover, self.listening = [], False
        self.use = Use(read_before=self.use.read_before + sum(self.use.read.values()))
        self.record.final, self.order = final, None
        log.info("job %s %s", self.record.id, final.said, extra={"trace": self.record.trace})
        self.remember()
        self.close()

    def refuse(self, refusal: Refusal) -> None:
        """End a job that never ran."""
        self._finish(Final("refused", time.time(), refusal=refusal.model_dump()))

    def reap(self) -> None:
        """Let a shim that has left go entirely."""
        if self.child is not None:
            self.child.process.poll()

    def close(self) -> None:
        self.reap()
        if self.child is not None:
            self.child.close()
        if self.keeper is not None:
            self.keeper.close()
            self.keeper = None

    # --- signs of life ----------------------------------------------------------------------------------------------

    def _keep_log(self) -> None:
        """Without its shim the log is bounded by us."""
        if self.keeper is None:
            log.warning("the shim of job %s is gone; its exit code will be unknown", self.record.id)
            self.keeper = Keeper.open(self.folder, self.record.head, self.record.tail, self.log.book())
        self.keeper.check()

    def check_listening(self, world: World) -> None:
        """Whether the port accepts a connection, and is ours: another program may have taken it meanwhile."""
        port = self.record.port
        if port is None or self.engine is None:
            return
        family = socket.AF_INET6 if ":" in self.record.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(0.2)
            connected = probe.connect_ex((self.record.host, port)) == 0
        if connected and not self.listening:
            connected = procs.listens((ident.pid for ident in self.find(world)), port)
        self.listening = connected

    def measure(self, world: World) -> None:
        """Refresh what is only reported, never decided on."""
        if self.record.over or self.engine is None:
            return
        found = self.find(world)
        pages = sum(world.snap[ident.pid].rss for ident in found if ident.pid in world.snap)
        read = {ident: procs.read_bytes(ident.pid) for ident in found}
        before = self.use.read_before + sum(count for ident, count in self.use.read.items() if ident not in read)
        own = sum(procs.own_pages(ident.pid) for ident in found)
        self.use = Use(len(found), pages * procs.PAGE // MIB, own * procs.PAGE // MIB, read, before)
        if self.listening:
            self.check_listening(world)

    def due_in(self, *, watched: bool) -> float:
        """Seconds until it is worth looking again. `watched`: the kernel wakes us when its main process ends."""
        if self.record.over:
            return NEVER
        if self.dead_since is not None and self.exit is None:
            return 0.02
        if self.stopping:
            if not self.record.killed and self.kill_at is not None:
                return min(0.2, max(0.01, self.kill_at - time.monotonic()))
            return 0.1
        if self.engine is None or (self.record.port is not None and not self.listening):
            return 0.25
        if self.keeper is not None or not watched:
            return 0.5
        due = max(0.1, self._deadline() - time.monotonic())
        return min(due, PROGRESS_S) if self.record.kind in WITH_PROGRESS else due

    # --- what to say ------------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self.record.stop_asked_at is not None or self.record.cleaning_since is not None

    @property
    def state(self) -> JobState:
        if self.record.final is not None:
            return "refused" if self.record.final.state == "refused" else "ended"
        if self.stopping:
            return "stopping"
        return "starting" if self.engine is None else "running"

    def status(self, gpu_used_mib: int | None = None) -> JobStatus:
        record, final = self.record, self.record.final
        size, hole, output_at = self._log_facts()
        return JobStatus(
            id=record.id,
            kind=record.kind,
            state=self.state,
            pid=self.engine.pid if self.engine is not None else None,
            port=record.port,
            listening=self.listening,
            argv=record.argv,
            started_at=self.started_at,
            ended_at=final.ended_at if final else None,
            exit_code=final.exit_code if final else None,
            signal=final.signal if final else None,
            stop_asked=record.stop_asked_at is not None,
            killed=record.killed,
            refusal=Refusal.model_validate(final.refusal) if final and final.refusal else None,
            leftover_pids=[ident.pid for ident in self.leftover][:200] if self.state == "stopping" else [],
            processes=self.use.processes,
            rss_mib=self.use.rss_mib,
            own_mib=self.use.own_mib,
            read_bytes=self.use.read_before + sum(self.use.read.values()),
            gpu_used_mib=gpu_used_mib,
            log_size=size,
            log_hole=hole,
            last_output_at=output_at,
            progress=self.progress(),
            oom_kills=(self.exit or {}).get("oom_kills") if final else None,
            oom_ago_s=(self.exit or {}).get("oom_ago_s") if final else None,
            port_holder=self.port_holder,
        )

    def progress(self) -> Progress | None:
        """How far an install or a download is, as its process wrote it last."""
        if self.record.kind in WITH_PROGRESS and not self.reported_all:
            self.reported_all = self.record.over  # it does not change any more
            raw = read_json(self.folder / "progress.json")
            with contextlib.suppress(ValidationError):
                self.last_progress = Progress.model_validate(raw) if isinstance(raw, dict) else None
        return self.last_progress

    def _log_facts(self) -> tuple[int, tuple[int, int] | None, float | None]:
        try:
            return self.log.facts()
        except (OSError, ValueError) as exc:
            log.warning("the log of job %s cannot be read: %s", self.record.id, exc)
            return 0, None, None

    def news(self) -> tuple[object, ...]:
        """What others act on; a change of it is reported at once."""
        record = self.record
        pids = tuple(ident.pid for ident in self.leftover)
        return (
            self.state,
            self.engine,
            self.listening,
            record.killed,
            record.stop_asked_at,
            record.final is None,
            pids,
            self.progress(),
        )
