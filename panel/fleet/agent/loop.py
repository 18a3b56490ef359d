"""The agent's threads: fetch work, look after jobs, report, ship logs. Each goes on whatever the others meet.

work     long-polls with the newest revision; hands orders to the keeper
keeper   (main thread) makes orders true, wakes by the kernel when a process ends
report   says what is, on every change and every 10 s; carries results; forgets what the panel has
logs     see logs.py;  nvml: see gpus.py;  door: see door_process.py;  serving: see serving.py
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from types import FrameType

from panel.fleet.agent import facts, orders, procs
from panel.fleet.agent.client import Away, Backoff, Client, Rejected
from panel.fleet.agent.config import Config
from panel.fleet.agent.door_process import DoorProcess
from panel.fleet.agent.files import Registry
from panel.fleet.agent.gpus import Reader, Reading
from panel.fleet.agent.job import NEVER, Job
from panel.fleet.agent.jobs import Jobs
from panel.fleet.agent.journal import Journal
from panel.fleet.agent.logs import Shipper
from panel.fleet.agent.serving import Watcher
from panel.fleet.agent.version import VERSION
from panel.fleet.wire import HostFacts, Report, ReportReply

log = logging.getLogger(__name__)

WAIT_S = 25
FACTS_S = 5.0  # not sent again sooner than this
LEAVE_S = 1.0  # for the last word to the panel
MISSED_S = 2.0  # what a long-poll brings is here by then
QUIET_S = 0.02  # changes that come together make one report


def _level(exc: Exception, backoff: Backoff) -> int:
    """The first failure is worth a line, and a refusal that only a person can end a loud one."""
    if not backoff.fresh:
        return logging.DEBUG
    loud = isinstance(exc, orders.OtherWire) or (isinstance(exc, Rejected) and exc.status in (401, 409, 426))
    return logging.ERROR if loud else logging.INFO


class Wakeup:
    """Interrupts a poll() from any thread or signal handler."""

    def __init__(self) -> None:
        self.out, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __call__(self) -> None:
        try:
            os.write(self._in, b"1")
        except BlockingIOError:
            return  # full of wake-ups already

    def drain(self) -> None:
        try:
            os.read(self.out, 4096)
        except BlockingIOError:
            return


class Watch:
    """Wakes the keeper when a job's processes end, and when a new shim says that its engine runs."""

    def __init__(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        self.poll = select.poll()
        self.poll.register(wakeup.out, select.POLLIN)
        self._by_fd: dict[int, tuple[str, int]] = {}  # fd → (job, pid), pid 0 for the news of a shim
        self._watched: dict[tuple[str, int], int] = {}
        self.failed = False  # no pidfd here: look more often instead

    def update(self, jobs: list[Job]) -> None:
        wanted = {}
        for job in jobs:
            for ident in (job.engine, job.shim):
                if ident is not None:
                    wanted[job.record.id, ident.pid] = -1
            if job.child is not None and job.child.news >= 0:
                wanted[job.record.id, 0] = job.child.news
        for key in self._watched.keys() - wanted.keys():
            self._drop(key)
        for key, news in wanted.items():
            if key not in self._watched:
                self._add(key, news)

    def _add(self, key: tuple[str, int], news: int) -> None:
        handle = -1
        if key[1]:
            try:
                handle = os.pidfd_open(key[1])
            except ProcessLookupError:
                handle = -1  # gone already: the next look sees it
            except OSError as exc:
                self.failed = True
                log.debug("no pidfd: %s", exc)
        else:
            handle = os.dup(news)  # ours to close, whatever the job does with its own
        self._watched[key] = handle
        if handle >= 0:
            self._by_fd[handle] = key
            self.poll.register(handle, select.POLLIN)

    def _drop(self, key: tuple[str, int]) -> None:
        self._mute(self._watched.pop(key))

    def _mute(self, handle: int) -> None:
        if handle in self._by_fd:
            del self._by_fd[handle]
            self.poll.unregister(handle)
            os.close(handle)

    def wait(self, seconds: float) -> None:
        """Until something happened. What fired stays readable for ever, so it is muted."""
        for handle, _event in self.poll.poll(None if seconds == NEVER else max(1, int(seconds * 1000))):
            if handle == self.wakeup.out:
                self.wakeup.drain()
            else:
                key = self._by_fd.get(handle)
                self._mute(handle)
                if key is not None:
                    self._watched[key] = -1

    def covers(self, job: Job) -> bool:
        """Whether the end of the job's main process wakes us."""
        if self.failed or job.engine is None:
            return False
        return self._watched.get((job.record.id, job.engine.pid), -1) >= 0


class Agent:
    """One agent of one folder and one panel."""

    def __init__(self, config: Config, journal: Journal) -> None:
        self.config, self.journal = config, journal
        self.wakeup = Wakeup()
        self.jobs = Jobs(journal, Registry(config), self.wakeup)
        self.gpus = Reader(self.jobs.job_of)
        self.stop = threading.Event()
        self.news = threading.Event()
        self.shipper = Shipper(self.jobs, Client(config), self.stop, self.news.set)
        self.door = DoorProcess(config, self.jobs, self.stop, self.news.set)
        self.serving = Watcher(self.jobs.serving, self.stop, config.report_s)
        self._behind = False  # the panel offered older work than we have seen
        self._facts_at = 0.0
        self._missed_at = 0.0  # since when the panel speaks of newer work than we have
        self._round_trip_s: float | None = None

    def run(self) -> None:
        """Until TERM or INT; engines go on without us."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.jobs.adopt()
        threads = [("work", self._work), ("report", self._report), ("logs", self.shipper.run), ("door", self.door.run)]
        threads.append(("serving", self.serving.run))
        for name, target in threads:
            threading.Thread(target=target, name=name, daemon=True).start()
        self.keep()

    def leave(self) -> None:
        """Tell the panel that this seat is free, so that an agent elsewhere need not wait. Not worth waiting for."""
        client = Client(self.config)
        try:
            client.call("POST", "leave", timeout_s=LEAVE_S)
        except (Away, Rejected) as exc:
            log.debug("left without a word: %s", exc)
        finally:
            client.close()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop.set()
        self.wakeup()

    # --- keeper -----------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        watch = Watch(self.wakeup)
        while not self.stop.is_set():
            try:
                changed, due = self.jobs.tick(watch.covers)
                watch.update(self.jobs.living())
                if changed:
                    self.news.set()
                    self.shipper.kick.set()
                    self.door.kick.set()
                    due = min(due, 0.05)  # with what is watched now the next look may be later
            except Exception:  # the keeper must not end while the agent lives
                log.exception("the jobs could not be looked after")
                due = 1.0
            watch.wait(due)

    # --- work -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        client, backoff = Client(self.config), Backoff()
        rev = 0  # the whole list is wanted first: after a start only the panel knows the orders
        while not self.stop.is_set():
            try:
                raw = client.call("GET", "work", params={"rev": rev, "wait": WAIT_S}, timeout_s=WAIT_S + 10.0)
                if raw is not None:
                    self._take(raw)
                    rev = self.jobs.seen_rev
                    if self._behind:  # it goes ahead of us once it sees our revision
                        self.stop.wait(backoff.pause())
                        continue
                backoff.reset()
            except (Away, Rejected, orders.Unreadable) as exc:
                log.log(_level(exc, backoff), "no work: %s", exc)
                self.stop.wait(backoff.pause())
            except Exception:  # a bad order must not end this thread
                log.exception("work could not be taken")
                rev = 0  # the whole list again: it was not made true
                self.stop.wait(backoff.pause())

    def _take(self, raw: bytes) -> None:
        new, found = orders.parse(raw)
        self._behind = not self.jobs.converge(new, found)
        if not self._behind:
            self.door.hear(raw)

    def _fetch_missed(self, client: Client, rev: int) -> None:
        """The panel has newer work for some time and the long-poll did not bring it: its line is dead and neither end
        knows, as when something between forgot the connection. Until its own time is over the work comes this way.
        """
        if rev <= self.jobs.seen_rev:
            self._missed_at = 0.0
        elif not self._missed_at:
            self._missed_at = time.monotonic()
        elif time.monotonic() - self._missed_at >= MISSED_S:
            raw = client.call("GET", "work", params={"rev": self.jobs.done_rev, "wait": 0})
            if raw is not None:
                try:
                    self._take(raw)
                except orders.Unreadable as exc:
                    log.warning("no work: %s", exc)

    # --- report -----------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        client, backoff = Client(self.config), Backoff()
        while not self.stop.is_set():
            self.news.clear()
            try:
                self.report(client)
                self.results(client)
                backoff.reset()
                self.news.wait(self.config.report_s)
                self.stop.wait(QUIET_S)
            except (Away, Rejected) as exc:
                log.log(_level(exc, backoff), "no report: %s", exc)
                self.stop.wait(backoff.pause())
            except Exception:  # this thread must not end while the agent lives
                log.exception("no report")
                self.stop.wait(backoff.pause())

    def report(self, client: Client) -> None:
        now = time.monotonic()
        with_facts = now - self._facts_at >= FACTS_S or not self._facts_at
        gpus = self.gpus.get() if with_facts else self.gpus.latest
        rev = self.jobs.seen_rev if self._behind else self.jobs.done_rev
        message = Report(
            agent_version=VERSION,
            instance=self.config.instance,
            round_trip_s=self._round_trip_s,
            seq=self._seq(),
            rev=rev,
            jobs=self.jobs.statuses(gpus, self.serving.latest),
            facts=self._facts(gpus) if with_facts else None,
            sent_at=time.time(),
            door=self.door.facts(),
        )
        body, sent = message.model_dump_json().encode(), time.monotonic()
        raw = client.call("POST", "report", body=body)
        self._round_trip_s = time.monotonic() - sent
        if with_facts:
            self._facts_at = now
        try:
            reply = ReportReply.model_validate_json(raw or b"")
        except ValueError as exc:
            raise Away(f"no sense in the reply: {exc}") from exc
        if reply.forget:
            self.jobs.forget(reply.forget)
        self._fetch_missed(client, reply.rev)

    @staticmethod
    def _seq() -> int:
        """Grows over restarts of the agent. Of a kernel whose boots have no name nobody knows when it begins anew."""
        return time.monotonic_ns() // 1000 if procs.kernel_boot() else 0

    def _facts(self, gpus: Reading) -> HostFacts:
        config = self.config
        found = facts.collect(
            config.current_roots(),
            config.folder,
            gpus,
            engines=config.managed_folder,
            allow_install=config.allow_install,
        )
        more = {"allow_download": config.allow_download, "allow_delete": config.allow_delete}
        return found.model_copy(update=more)

    def results(self, client: Client) -> None:
        sent = False
        for job_id, result in self.jobs.results_due():
            try:
                client.call("POST", f"jobs/{job_id}/result", body=result.model_dump_json().encode(), timeout_s=60.0)
            except Rejected as exc:
                if exc.status not in (400, 404, 410, 413, 422):
                    raise
                log.warning("the result of %s is not wanted: %s", job_id, exc)
            self.jobs.result_sent(job_id)
            sent = True
        if sent:
            self.news.set()  # the next report lets the panel close the job
