"""Which logs go: those of jobs that ended long ago, or the oldest when all are too large together. Each is a file in
the export folder before it goes; its row stays and says how long it was, so that offsets go on being true.
"""

import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from django.utils import timezone

from panel import audit
from panel.core import exports
from panel.fleet import logstore
from panel.fleet.models import Job

AT_ONCE_S = 60.0  # of one turn; the rest has to wait a little
AT_ONCE = 500

# What is stored of each log, and how much all newer ones take. Those of jobs that go on count as the newest.
OLD = """
WITH stored AS (
  SELECT job.id, job.open, job.ended_at, octet_length(log.tail) + COALESCE((
    SELECT sum((part->>1)::bigint - (part->>0)::bigint) FROM jsonb_array_elements(log.segments) AS part
    WHERE part->>2 <> ''), 0) AS bytes
  FROM fleet_joblog AS log JOIN fleet_job AS job ON job.id = log.job_id
), summed AS (
  SELECT *, sum(bytes) OVER (ORDER BY ended_at DESC NULLS FIRST, id) AS with_newer FROM stored WHERE bytes > 0
)
SELECT id FROM summed
WHERE NOT open AND ended_at IS NOT NULL AND (ended_at < %s OR with_newer > %s)
ORDER BY ended_at, id LIMIT %s
"""


def keep_up(now: datetime | None = None) -> bool:
    """Let go of what the settings do not keep; True when more is left to do."""
    days, most = settings.BERTH_LOG_KEEP_DAYS, settings.BERTH_LOG_KEEP_MIB
    if not days and not most:
        return False
    before = (now or timezone.now()) - timedelta(days=days or 36_500)
    with connection.cursor() as cursor:
        cursor.execute(OLD, [before, most << 20 if most else 1 << 62, AT_ONCE])
        old = [job_id for (job_id,) in cursor.fetchall()]
    end, done, size = time.monotonic() + AT_ONCE_S, 0, 0
    for job_id in old:
        size += export(job_id)
        done += 1
        if time.monotonic() > end:
            break
    if size:
        audit.record("logs.exported", f"{done}", actor=None, logs=done, bytes=size, folder="logs")
    return done < len(old) or len(old) == AT_ONCE


def export(job_id: uuid.UUID) -> int:
    """Write the log of a job that is over into a file, then drop it here; how many bytes it had, 0 when it grew."""
    job = Job.objects.select_related("log").get(pk=job_id)
    exports.write(file_of(job), _whole(job_id))
    return logstore.drop(job.log)


def file_of(job: Job) -> str:
    """The name of its file in the export folder, once it is there."""
    return f"logs/{job.ended_at or job.created_at:%Y-%m}/{job.pk}.log.gz"


def _whole(job_id: uuid.UUID) -> Iterator[bytes]:
    for part in logstore.read_all(job_id):
        if part.gap:
            yield b"\n[%d bytes were not kept]\n" % part.gap
        yield part.data
