"""Ship the logs to the panel as they grow: by offset, resumed after any break, never twice.

The panel's answer says how many bytes it has, and that is where the next upload starts. After a restart, or when an
answer was lost, an upload of a position the panel does not expect changes nothing there and brings its true size.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from panel.fleet.agent.client import Away, Backoff, Client, Rejected
from panel.fleet.agent.job import Job
from panel.fleet.agent.jobs import Jobs
from panel.fleet.wire import MAX_LOG_CHUNK, LogReply

log = logging.getLogger(__name__)

POLL_S = 0.1  # while a job lives
REST_S = 1.0
UNKNOWN_S = 60.0  # a job the panel does not know (any more)


@dataclass
class Position:
    """How far one log is at the panel; None until the panel said so."""

    at: int | None = None
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


class Shipper:
    """One thread ships all logs, a part of each in turn, so that a flood in one does not silence the others."""

    def __init__(self, jobs: Jobs, client: Client, stop: threading.Event, moved: Callable[[], None]) -> None:
        self.jobs, self.client, self.stop, self.moved = jobs, client, stop, moved
        self.kick = threading.Event()  # set when a job began or ended, so that its first words need not wait
        self.positions: dict[str, Position] = {}
        self.away = Backoff()

    def run(self) -> None:
        while not self.stop.is_set():
            self.kick.clear()
            try:
                pause = self.round()
                self.away.reset()
            except Away as exc:
                log.log(logging.INFO if self.away.fresh else logging.DEBUG, "logs wait: %s", exc)
                self.stop.wait(self.away.pause())
                continue
            except Exception:  # this thread must not end while the agent lives
                log.exception("logs wait")
                self.stop.wait(self.away.pause())
                continue
            self.kick.wait(pause)

    def round(self) -> float:
        """One part of every log that has something new; returns seconds to rest. Raises Away."""
        jobs = self.jobs.logs()
        for job_id in self.positions.keys() - dict(jobs).keys():
            del self.positions[job_id]
        now = time.monotonic()
        more = False
        for job_id, job in jobs:
            position = self.positions.setdefault(job_id, Position())
            if now >= position.not_before:
                more |= self._ship(job_id, job, position)
        if more:
            return 0.0
        return POLL_S if any(not job.record.over for _, job in jobs) else REST_S

    def _ship(self, job_id: str, job: Job, position: Position) -> bool:
        """Upload one part; True when more is waiting."""
        over = job.record.over  # looked up first: what is written before the end is then in the size below
        try:
            size = job.log.size()
            if size == 0 or (position.at is not None and size <= position.at):
                return False
            # Of a log that this process never shipped the panel may have any part: ask with nothing.
            piece = job.log.read(position.at, MAX_LOG_CHUNK) if position.at is not None else None
        except (OSError, ValueError) as exc:
            log.warning("the log of job %s cannot be read: %s", job_id, exc)
            position.not_before = time.monotonic() + position.backoff.pause()
            return False
        if position.at is not None and (piece is None or (not piece.data and not piece.skipped)):
            return False
        start, data, skipped = (piece.start, piece.data, piece.skipped) if piece else (0, b"", 0)
        reply = self._send(job_id, position, start, data, skipped)
        if reply is None:
            return False
        position.at = reply.size
        if over and reply.size >= size:
            self.moved()  # the panel now has all of it and can close the job
        return reply.size < size

    def _send(self, job_id: str, position: Position, start: int, data: bytes, skipped: int) -> LogReply | None:
        """None when the panel will not have it now; raises Away when it is not there."""
        try:
            raw = self.client.call(
                "POST", f"jobs/{job_id}/log", params={"offset": start, "skipped": skipped}, body=data
            )
            reply = LogReply.model_validate_json(raw or b"")
        except Rejected as exc:
            unknown = exc.status in (404, 410)
            position.not_before = time.monotonic() + (UNKNOWN_S if unknown else position.backoff.pause())
            if unknown:
                position.at = None
            log.log(logging.DEBUG if unknown else logging.WARNING, "log of %s: %s", job_id, exc)
            return None
        except ValueError as exc:
            raise Away(f"no size in the reply: {exc}") from exc
        position.backoff.reset()
        return reply
