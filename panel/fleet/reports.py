"""What the agents say becomes rows: facts, GPUs, job states, results, logs."""

import uuid
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from panel.fleet import doors, hostclock, live, logstore, services, signals, wire
from panel.fleet.models import Gpu, Host, Job, JobLog
from panel.fleet.runtimes import outcomes as runtime_outcomes

OVER = ("ended", "refused")
PROVISION = ("install", "remove")  # kinds of jobs that change which engines a host has


def take_report(host: Host, report: wire.Report) -> wire.ReportReply:
    """Store a report. A job that is over never comes back to life by a late or repeated report."""
    now = timezone.now()
    skew = hostclock.skew(report, now)
    changed: list[Job] = []
    with transaction.atomic():
        services.lock_host(host.pk)
        changes: dict[str, Any] = {"last_seen_at": now, "lost_at": None, "agent_version": report.agent_version[:32]}
        changes["clock_skew_s"] = skew
        if report.facts is not None:
            changes |= _facts(host, report.facts, now) | hostclock.restarted(host, report.facts, skew, now)
        if report.rev > host.work_rev:  # our database is older than the agent's memory (a restored backup)
            changes["work_rev"] = report.rev + 1
        changes |= doors.taken(host, report.door)
        if "door_keys" in changes:  # one hash fewer in its work
            changes["work_rev"] = max(changes.get("work_rev", 0), host.work_rev) + 1
        Host.objects.filter(pk=host.pk).update(**changes)
        jobs = host.jobs.select_related("log").in_bulk([uuid.UUID(s.id) for s in report.jobs if _is_uuid(s.id)])
        for status in report.jobs:
            job = jobs.get(uuid.UUID(status.id)) if _is_uuid(status.id) else None
            if job is not None and _take_status(job, status, skew, now):
                changed.append(job)
                if job.kind in PROVISION:
                    runtime_outcomes.take_status(job)
    if host.lost_at is not None:
        signals.host_back.send_robust(sender=Host, host_id=host.pk)
    if report.facts is not None or host.lost_at is not None:
        live.publish_on_commit(live.HOSTS)
    for job in changed:
        signals.job_changed.send_robust(sender=Job, job_id=job.pk, kind=job.kind, state=job.state, log_grew=False)
    return wire.ReportReply(rev=changes.get("work_rev", host.work_rev), forget=_to_forget(host, jobs, report))


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _facts(host: Host, facts: wire.HostFacts, now: Any) -> dict[str, Any]:
    """The columns that new facts change; GPUs are rows of their own."""
    seen = []
    for gpu in facts.gpus:
        measured = gpu.model_dump(mode="json", exclude={"index", "uuid", "name", "total_mib", "used_mib"})
        row, _made = Gpu.objects.update_or_create(
            host=host,
            uuid=gpu.uuid[:80],
            defaults={
                "index": gpu.index,
                "name": gpu.name[:120],
                "total_mib": gpu.total_mib,
                "used_mib": gpu.used_mib,
                "measured": measured,
                "measured_at": now,
                "present": True,
            },
        )
        seen.append(row.pk)
    if facts.gpu_error is None:  # an unreadable driver says nothing about which GPUs exist
        Gpu.objects.filter(host=host, present=True).exclude(pk__in=seen).update(present=False)
    return {
        "facts": facts.model_dump(mode="json", exclude={"gpus"}),
        "facts_at": now,
        "ram_total_mib": facts.ram_total_mib,
    }


def _take_status(job: Job, status: wire.JobStatus, skew_s: float, now: Any) -> bool:
    """Store one job's status; True when something a reader acts on is new (not mere measurements)."""
    if job.state in OVER:
        return False
    old = job.status
    values = status.model_dump(mode="json")
    hostclock.put_right(values, old, skew_s)
    alive = ("log_size", "read_bytes", "rss_mib", "gpu_used_mib", "processes")
    moved = any(old.get(key) != values.get(key) for key in alive)
    values["still_since"] = now.timestamp() if moved else old.get("still_since", now.timestamp())
    ended = status.state in OVER
    rows = Job.objects.filter(pk=job.pk).exclude(state__in=OVER)
    if not rows.update(state=status.state, status=values, status_at=now, **({"ended_at": now} if ended else {})):
        return False
    news = ("state", "listening", "port", "stop_asked", "leftover_pids", "pid", "progress")
    is_new = any(old.get(key) != values.get(key) for key in news)
    job.state, job.status = status.state, values
    return is_new


def _to_forget(host: Host, jobs: dict[uuid.UUID, Job], report: wire.Report) -> list[str]:
    """Close the jobs whose end, result and whole log are here, and tell the host which files it may drop."""
    forget = [status.id for status in report.jobs if not _is_uuid(status.id) or uuid.UUID(status.id) not in jobs]
    sizes = dict(JobLog.objects.filter(pk__in=jobs).values_list("pk", "size"))
    done = []
    for job in jobs.values():
        complete = sizes.get(job.pk, 0) >= int(job.status.get("log_size") or 0)
        answered = job.kind == "engine" or job.result is not None or job.never_ran
        if job.state in OVER and complete and answered:
            done.append(job.pk)
    if done and Job.objects.filter(pk__in=done, open=True).update(open=False):
        Host.objects.filter(pk=host.pk).update(work_rev=F("work_rev") + 1)
        live.publish_on_commit(live.work_topic(host.pk))
    return [*forget, *map(str, done)]


def take_log(host: Host, job_id: uuid.UUID, offset: int, data: bytes, skipped: int) -> wire.LogReply:
    """Append log bytes of one of the host's own jobs. Raises Job.DoesNotExist for any other."""
    job = host.jobs.only("pk", "kind", "state").get(pk=job_id)
    size, grew = logstore.append(job_id, offset, data, skipped)
    if grew:
        signals.job_changed.send_robust(sender=Job, job_id=job.pk, kind=job.kind, state=job.state, log_grew=True)
    return wire.LogReply(size=size)


def take_result(host: Host, job_id: uuid.UUID, result: wire.JobResult) -> None:
    """Keep the result of a finished job, once. Raises Job.DoesNotExist for a job of another host."""
    job = host.jobs.select_related("host").get(pk=job_id)
    with transaction.atomic():
        services.lock_host(host.pk)
        kept = Job.objects.filter(pk=job.pk, result__isnull=True).update(result=result.model_dump(mode="json"))
        if kept and job.kind == "runtimes":
            services.take_runtimes(job, result)
        elif kept and job.kind in PROVISION:
            runtime_outcomes.take_result(job, result)
    if kept:
        signals.job_changed.send_robust(sender=Job, job_id=job.pk, kind=job.kind, state="ended", log_grew=False)
