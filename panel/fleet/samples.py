"""What hosts measure, as it is now: in the broker's memory and with an expiry, so that a heartbeat writes no row.

Rows hold what changed (reports.py); here is when a host called last and what its figures were then. Pages lay these
over the rows they read (`onto`). The memory may be lost at any time: whoever judges a silence asks `contact`, which
counts from the moment since which the memory is whole, and while the broker is away every report is stored as rows.
"""

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.conf import settings

from panel.core import sse
from panel.fleet.models import Host, Job
from panel.fleet.wire import JOB_OVER

SEEN = "berth:fleet:seen"  # hash: host → Unix seconds of its newest report
SINCE = "berth:fleet:since"  # since when this memory misses nothing
LIVE = "berth:fleet:live:"  # + host: the newest figures, JSON
DAY_S = 86_400
ROW_FIRST_S = 5.0  # a row that is newer by less was written just now, and this memory is about to be
ROW_TURNS = 10  # the row's own `last_seen_at` is at most so many times BERTH_HOST_LOST_S old while a host calls

_away_since: float | None = None  # by the clock that nobody puts forward or back


class Away(Exception):
    """The broker does not answer."""


def ask(*commands: tuple[Any, ...]) -> list[Any]:
    """The answers to some commands, in one round. Raises Away, at once when the broker failed a moment ago."""
    global _away_since
    if sse.broker_away():
        _away_since = _away_since or time.monotonic()
        raise Away
    try:
        pipeline = sse.broker().pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        found = pipeline.execute()
    except redis.RedisError as exc:
        sse.broker_failed()
        _away_since = _away_since or time.monotonic()
        raise Away from exc
    _away_since = None
    return found


def row_age() -> timedelta:
    """How old a calling host's own `last_seen_at` may be at most."""
    return timedelta(seconds=ROW_TURNS * settings.BERTH_HOST_LOST_S)


# --- one host ---------------------------------------------------------------------------------------------------------
def read(host_id: int) -> dict[str, Any] | None:
    """The newest sample of a host; None when there is none. Raises Away."""
    raw = ask(("GET", f"{LIVE}{host_id}"))[0]
    return _parsed(raw)


def keep(host_id: int, sample: dict[str, Any], more: Iterable[tuple[Any, ...]] = ()) -> None:
    """Remember a sample, and that the host called at its `at`; `more` commands go the same way. Raises Away."""
    lasts = int(max(60.0, row_age().total_seconds()))
    ask(
        ("SET", f"{LIVE}{host_id}", json.dumps(sample, separators=(",", ":")), "EX", lasts),
        ("HSET", SEEN, host_id, sample["at"]),
        ("EXPIRE", SEEN, DAY_S),
        *more,
    )


def drop(host_id: int) -> None:
    """Forget what a host said last. Never raises: it expires anyway."""
    try:
        ask(("DEL", f"{LIVE}{host_id}"), ("HDEL", SEEN, host_id))
    except Away:
        return


def _parsed(raw: bytes | None) -> dict[str, Any] | None:
    return json.loads(raw) if raw else None


# --- when a host called -----------------------------------------------------------------------------------------------
def called(hosts: Iterable[Host]) -> dict[int, datetime]:
    """When each host called last, as far as it is known; without those that never called."""
    return _called(list(hosts))[0]


def contact(hosts: Iterable[Host]) -> dict[int, datetime]:
    """The moment from which each host's silence counts: not for showing.

    After the memory was lost it is the moment since which it is whole again: who called is then known anew.
    """
    rows = list(hosts)
    found, whole_since = _called(rows)
    return {pk: max(at, whole_since) for pk, at in found.items()}


def _called(rows: list[Host]) -> tuple[dict[int, datetime], datetime]:
    found = {row.pk: row.last_seen_at for row in rows if row.last_seen_at is not None}
    if not found:
        return {}, datetime.fromtimestamp(0, UTC)
    try:
        kept, _set, since = ask(("HMGET", SEEN, *found), ("SET", SINCE, time.time(), "NX"), ("GET", SINCE))
    except Away:
        away_s = time.monotonic() - _away_since if _away_since else 0.0
        return found, datetime.fromtimestamp(time.time() - away_s, UTC)
    for pk, seen in zip(list(found), kept, strict=True):
        if seen is not None:
            found[pk] = max(found[pk], datetime.fromtimestamp(float(seen), UTC))
    return found, datetime.fromtimestamp(float(since), UTC)


def clock_moved(now: float) -> None:
    """The clock was put forward or back: silences count from `now` on, and nobody has called later than it."""
    try:
        kept = ask(("SET", SINCE, now), ("HGETALL", SEEN))[1]
        ahead = [host for host, seen in kept.items() if float(seen) > now]
        if ahead:
            ask(*[("HSET", SEEN, host, now) for host in ahead])
    except Away:
        return  # every report is written down as rows meanwhile


def overdue(hosts: Iterable[Host], seconds: float) -> set[int]:
    """The hosts that called once and have now been silent for longer than `seconds`."""
    limit = datetime.now(UTC) - timedelta(seconds=seconds)
    late = [row for row in hosts if row.last_seen_at is not None and row.last_seen_at < limit]
    return {pk for pk, at in contact(late).items() if at < limit}


# --- laid over rows ---------------------------------------------------------------------------------------------------
def onto(hosts: list[Host]) -> None:
    """Put the newest figures over rows that were read: the hosts, and of what is prefetched their GPUs and jobs."""
    rows = [row for row in hosts if row.last_seen_at is not None]
    if not rows:
        return
    try:
        found = ask(("MGET", *(f"{LIVE}{row.pk}" for row in rows)))[0]
    except Away:
        return
    for row, raw in zip(rows, found, strict=True):
        sample = _parsed(raw)
        if sample is not None:
            _onto(row, sample)


def _onto(row: Host, sample: dict[str, Any]) -> None:
    row.last_seen_at = max(row.last_seen_at, datetime.fromtimestamp(sample["at"], UTC))
    facts = sample.get("facts")
    ready = getattr(row, "_prefetched_objects_cache", {})
    if facts and (row.facts_at is None or row.facts_at.timestamp() <= facts["at"]):
        row.facts = {**row.facts, **facts["host"]}
        row.facts_at = datetime.fromtimestamp(facts["at"], UTC)
        for gpu in ready.get("gpus", ()):
            if (newer := facts["gpus"].get(gpu.uuid)) is not None:
                gpu.used_mib, gpu.measured_at = newer["used_mib"], row.facts_at
                gpu.measured = {**gpu.measured, **newer["measured"]}
    for job in ready.get("jobs", ()):
        _onto_job(job, sample)


def _onto_job(job: Job, sample: dict[str, Any]) -> None:
    newer = sample["jobs"].get(str(job.pk))
    if newer is None or job.state in JOB_OVER:
        return
    if "status_at" not in job.get_deferred_fields():
        ahead = job.status_at.timestamp() - sample["at"] if job.status_at is not None else 0.0
        if 0 < ahead < ROW_FIRST_S:
            return
        job.status_at = datetime.fromtimestamp(sample["at"], UTC)
    job.status = {**job.status, **newer}


def freshen(*jobs: Job | None) -> None:
    """Put the newest figures over jobs that were read, in one round."""
    rows = [job for job in jobs if job is not None and job.status and job.state not in JOB_OVER]
    if not rows:
        return
    hosts = list(dict.fromkeys(job.host_id for job in rows))
    try:
        found = ask(("MGET", *(f"{LIVE}{host_id}" for host_id in hosts)))[0]
    except Away:
        return
    known = {host_id: _parsed(raw) for host_id, raw in zip(hosts, found, strict=True)}
    for job in rows:
        sample = known[job.host_id]
        if sample is not None:
            _onto_job(job, sample)
