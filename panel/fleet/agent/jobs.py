"""All jobs of this host: makes true what the panel's newest work says, and knows what is.

One lock guards the table; everything under it is quick. The panel's orders come in by `converge`, time passes by
`tick`, and what is goes out by `statuses`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from panel.fleet.agent import guard, procs
from panel.fleet.agent.files import Registry
from panel.fleet.agent.gpus import Reading
from panel.fleet.agent.job import NEVER, Job, World
from panel.fleet.agent.journal import Final, Journal, Record, read_json
from panel.fleet.agent.orders import Order
from panel.fleet.agent.procs import MarkerCache
from panel.fleet.agent.serving import Place
from panel.fleet.agent.spawn import TASK_LIMIT_S, NoPort, Spawner
from panel.fleet.wire import MAX_REPORT_JOBS, JobResult, JobStatus, Refusal
from panel.fleet.wire_serving import Serving

log = logging.getLogger(__name__)

KEEP_ENDED_S = 7 * 86400.0
MAX_TRIES = 3  # of a start whose shim died before it ran anything


class Jobs:
    """The table. `wake` is called when a look is due sooner than the last `tick` said."""

    def __init__(self, journal: Journal, registry: Registry, wake: Callable[[], None] = lambda: None) -> None:
        self.journal, self.registry, self.wake = journal, registry, wake
        self.spawner = Spawner(journal, registry)
        self.lock = threading.RLock()
        self.jobs: dict[str, Job] = {}
        self.ghosts: dict[str, JobStatus] = {}  # ids that have a status but nothing on this host
        self.markers = MarkerCache()
        self.seen_rev = 0  # the newest ever, over restarts
        self.done_rev = 0  # the newest that this process made true
        self._pids: dict[int, str] = {}
        self._news: dict[str, tuple[object, ...]] = {}

    # --- starting over ----------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over what an earlier agent of this folder left. What never ran is left to a new order."""
        with self.lock:
            self.seen_rev = self.journal.load_rev()
            for record in self.journal.records():
                job = Job(record, self.journal)
                if self._of_another_folder(job):
                    log.warning("job %s belongs to the folder that this one was copied from; left alone", record.id)
                    continue
                never_ran = not record.over and job.engine is None and not job.shim_alive()
                if never_ran and record.stop_asked_at is None:
                    self.journal.drop(record.id)
                else:
                    self.jobs[record.id] = job
            log.info("jobs remembered: %d, living: %d", len(self.jobs), len(self.living()))

    def _of_another_folder(self, job: Job) -> bool:
        """Whether a copied record tells of a job that lives, but not here: its shim holds no lock of this folder."""
        shim = job.shim
        # Looked at twice: one that ends in between has let go of its lock, and is ours all the same.
        return shim is not None and shim.alive() and not self.journal.watched(job.record.id) and shim.alive()

    def living(self) -> list[Job]:
        return [job for job in self.jobs.values() if not job.record.over]

    # --- orders -----------------------------------------------------------------------------------------------------

    def converge(self, rev: int, orders: list[Order]) -> bool:
        """Make it true. False when the work is older than what was seen, which changes nothing."""
        with self.lock:
            if rev < self.seen_rev:
                log.warning("work of revision %d ignored, %d was seen", rev, self.seen_rev)
                return False
            self.seen_rev = rev
            wanted = {order.id: order for order in orders}
            for job_id in self.ghosts.keys() - wanted.keys():
                self._lay(job_id)
            for order in orders:
                if order.desired == "run":
                    self._run(order)
            self._stop(wanted)
            self._prune(wanted)
            self._save_rev(rev)
            self.done_rev = rev
        self.wake()
        return True

    def _save_rev(self, rev: int) -> None:
        """A full disk must not keep anything from being done. An older number there only lets us start further back."""
        try:
            self.journal.save_rev(rev)
        except OSError as exc:
            log.error("the revision of the work cannot be written: %s", exc)

    def _run(self, order: Order) -> None:
        if order.id in self.jobs or (order.id in self.ghosts and self.ghosts[order.id].refusal):
            return
        if self.journal.buried(order.id):
            self._ghost(order, Refusal(code="tombstone"))
        elif order.refusal is not None or order.task is None:
            self._ghost(order, order.refusal or Refusal(code="order_unreadable"))
        elif order.begun:
            log.warning("job %s ran here once, but this disk knows nothing of it; it is not started again", order.id)
            self._ghost(order, Refusal(code="host_restarted"), state="ended")
        elif len(self.living()) >= self.registry.config.max_jobs:
            self._ghost(order, Refusal(code="too_many_jobs", params={"limit": self.registry.config.max_jobs}))
        else:
            self._start(order)

    def _ghost(self, order: Order, refusal: Refusal | None, state: str = "refused") -> None:
        self.ghosts[order.id] = JobStatus.model_validate(
            {
                "id": order.id,
                "kind": order.kind,
                "state": state if refusal else "ended",
                "stop_asked": refusal is None,
                "refusal": refusal,
            }
        )

    def _start(self, order: Order) -> None:
        """Journal first, then the shim: whatever dies in between, the id runs at most once."""
        assert order.task is not None
        limit = TASK_LIMIT_S.get(order.kind)
        now = time.time()
        record = Record(order.id, order.kind, accepted_at=now, grace_s=order.grace_s, trace=order.trace)
        record.deadline_at = now + limit if limit else None
        try:
            self.spawner.check(order.task, [[*job.record.argv, job.record.reads] for job in self.living()])
            command = self.spawner.prepare(record, order.task, self._ports())
            self.journal.save(record)
            child = self.spawner.launch(record, command)
        except guard.Refused as exc:
            log.warning("job %s refused: %s", order.id, exc.refusal, extra={"trace": order.trace})
            self._refuse(record, order, exc.refusal)
        except NoPort:
            self._refuse(record, order, Refusal(code="no_port"))
        except OSError as exc:
            log.exception("job %s cannot be started", order.id)
            self._refuse(record, order, Refusal(code="spawn_failed", params={"errno": exc.errno, "path": exc.filename}))
        else:
            earlier = self.jobs.get(order.id)
            job = Job(record, self.journal, order, child)
            job.attempts = earlier.attempts + 1 if earlier else 1
            job.remember(durable=False)  # it runs: a disk that is full by now must not make it nobody's
            self.jobs[order.id] = job
            log.info("job %s started: %s", order.id, order.kind, extra={"trace": order.trace})

    def _refuse(self, record: Record, order: Order, refusal: Refusal) -> None:
        record.final = Final("refused", time.time(), refusal=refusal.model_dump())
        try:
            self.journal.save(record, durable=True)
        except OSError as exc:
            log.warning("cannot remember the refusal of %s: %s", record.id, exc)
            self._ghost(order, refusal)
            self.jobs.pop(record.id, None)
            return
        self.jobs[record.id] = Job(record, self.journal)

    def _ports(self) -> list[int]:
        return [job.record.port for job in self.living() if job.record.port is not None]

    def _stop(self, wanted: dict[str, Order]) -> None:
        stops = [job_id for job_id, order in wanted.items() if order.desired == "stop"]
        gone = [job.record.id for job in self.living() if job.record.id not in wanted]
        # On disk before the first signal: a late start of these ids must be refused whatever dies now.
        self._bury([*stops, *gone])
        for job_id in stops:
            if job_id in self.jobs:
                self.jobs[job_id].ask_stop(wanted[job_id].grace_s, trace=wanted[job_id].trace)
            elif job_id not in self.ghosts:
                self._ghost(wanted[job_id], None)
        for job_id in gone:
            log.warning("job %s is not in the work any more and is stopped", job_id)
            self.jobs[job_id].ask_stop(self.jobs[job_id].record.grace_s, "not_wanted")

    def _bury(self, job_ids: list[str]) -> bool:
        """False when that cannot be written: a full disk must not keep anything from being stopped."""
        try:
            self.journal.bury(job_ids)
        except OSError as exc:
            log.error("tombstones cannot be written: %s", exc)
            return False
        return True

    def stop_all(self, grace_s: float | None = None) -> None:
        """Stop everything, without a panel."""
        with self.lock:
            living = self.living()
            self._bury([job.record.id for job in living])
            for job in living:
                job.ask_stop(job.record.grace_s if grace_s is None else grace_s, "stop_all")

    def forget(self, job_ids: list[str]) -> None:
        """The panel has all of these jobs: delete the files. Living ones are never forgotten."""
        with self.lock:
            known = [i for i in job_ids if i in self.jobs and self.jobs[i].record.over]
            if not self._bury(known):
                return
            for job_id in known:
                try:
                    self.journal.drop(job_id)
                except OSError as exc:  # it stays ours until the panel asks again
                    log.error("the files of job %s cannot be deleted: %s", job_id, exc)
                    continue
                self.jobs.pop(job_id).close()
                self._news.pop(job_id, None)
            for job_id in job_ids:
                self._lay(job_id)

    def _lay(self, job_id: str) -> None:
        """Forget a ghost, and the folder of one that was refused because nothing could be written there."""
        if self.ghosts.pop(job_id, None) is None or job_id in self.jobs:
            return
        try:
            self.journal.drop(job_id)
        except OSError as exc:  # the next start of the agent finds it
            log.warning("the folder of job %s cannot be deleted: %s", job_id, exc)

    def _prune(self, wanted: dict[str, Order]) -> None:
        """A panel that never says "forget" must not fill the disk."""
        old = time.time() - KEEP_ENDED_S
        ended = [(i, job.record.final) for i, job in self.jobs.items() if i not in wanted]
        self.forget([i for i, final in ended if final is not None and final.ended_at < old])

    # --- time passes ------------------------------------------------------------------------------------------------

    def tick(self, watched: Callable[[Job], bool] = lambda job: False) -> tuple[bool, float]:
        """Look at all living jobs. Returns (whether there is news, seconds until the next look)."""
        with self.lock:
            world = World(self.markers)
            due = NEVER
            for job in self.jobs.values():
                job.reap()
                if job.unsaved:
                    job.remember()
                    due = 1.0
            for job in self.living():
                try:
                    job.advance(world)
                except OSError:  # a full disk or a vanished folder: this job waits, the others go on
                    log.exception("job %s could not be looked after", job.record.id)
                    due = min(due, 1.0)
                    continue
                if job.vanished:
                    self._again(job)
                due = min(due, self.jobs[job.record.id].due_in(watched=watched(job)) if not job.record.over else NEVER)
            news = {job_id: job.news() for job_id, job in self.jobs.items()}
            changed, self._news = news != self._news, news
            return changed, due

    def _again(self, job: Job) -> None:
        """The shim died before it ran anything, so that nothing was started: start it once more, or say so."""
        job.vanished = False
        if job.order is not None and job.attempts < MAX_TRIES:
            job.close()
            self._start(job.order)
        else:
            job.refuse(Refusal(code="spawn_failed", params={"tries": job.attempts}))

    # --- what is ----------------------------------------------------------------------------------------------------

    def statuses(self, gpus: Reading, serving: Mapping[str, Serving] | None = None) -> list[JobStatus]:
        """Every job, measured now; the living ones first when there are too many for a report."""
        used: dict[str, int] = {}
        for process in (process for gpu in gpus.gpus for process in gpu.processes):
            if process.job_id and process.used_mib:
                used[process.job_id] = used.get(process.job_id, 0) + process.used_mib
        with self.lock:
            world = World(self.markers)
            pids: dict[int, str] = {}
            for job in self.living():
                job.measure(world)
                pids.update((ident.pid, job.record.id) for ident in job.known)
            self._pids = pids
            jobs = sorted(self.jobs.values(), key=lambda job: (job.record.over, -job.record.accepted_at))
            known = [job.status(used.get(job.record.id)) for job in jobs[:MAX_REPORT_JOBS]]
        return [*_with_serving(known, serving or {}), *self.ghosts.values()][:MAX_REPORT_JOBS]

    def serving(self) -> dict[str, Place]:
        """Where engines of ours listen now."""
        with self.lock:
            return {
                job.record.id: Place(job.record.host, job.record.port, job.engine.pid)
                for job in self.living()
                if job.listening and not job.stopping and job.engine is not None and job.record.port is not None
            }

    def job_of(self, pid: int) -> str | None:
        """The job that a process belongs to. Called from other threads, so it takes no lock."""
        marker = procs.marker_of(pid)
        return marker if marker in self.jobs else self._pids.get(pid)

    def logs(self) -> list[tuple[str, Job]]:
        with self.lock:
            return list(self.jobs.items())

    # --- results of everything but engines ----------------------------------------------------------------------------

    def results_due(self) -> list[tuple[str, JobResult]]:
        with self.lock:
            due = [j for j in self.jobs.values() if j.record.over and j.record.kind != "engine"]
            due = [j for j in due if not j.record.result_sent and j.state != "refused"]
            return [(job.record.id, self._result(job)) for job in due]

    def _result(self, job: Job) -> JobResult:
        final, record = job.record.final, job.record
        if record.stop_asked_at is not None:
            return JobResult(refusal=Refusal(code=record.stop_reason or "stopped"))
        raw = read_json(job.folder / "result.json")
        if final is None or final.exit_code != 0 or not isinstance(raw, dict):
            params = {"exit_code": final.exit_code, "signal": final.signal} if final else {}
            return JobResult(refusal=Refusal(code="task_failed", params=params))
        try:
            result = JobResult.model_validate(raw)
        except ValidationError as exc:
            log.error("the result of job %s cannot be read: %s", record.id, exc)
            return JobResult(refusal=Refusal(code="task_failed", params={"exit_code": 0}))
        if record.kind == "runtimes" and result.refusal is None:
            self.registry.register(result.items)
        elif record.kind in ("install", "package"):
            self.registry.add(result.items)
        return result

    def result_sent(self, job_id: str) -> None:
        with self.lock:
            job = self.jobs.get(job_id)
            if job is not None:
                job.record.result_sent = True
                job.remember()


def _with_serving(known: list[JobStatus], serving: Mapping[str, Serving]) -> list[JobStatus]:
    """With what the engines that still run said of themselves."""
    return [
        status.model_copy(update={"serving": seen})
        if status.state == "running" and (seen := serving.get(status.id)) is not None
        else status
        for status in known
    ]
