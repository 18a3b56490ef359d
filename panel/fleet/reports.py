"""What the agents say becomes rows: facts, GPUs, job states, results, logs."""

import uuid
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from panel.fleet import (
    doors,
    heartbeat,
    hostclock,
    live,
    log_secrets,
    logstore,
    samples,
    services,
    serving_points,
    signals,
    wire,
)  # fmt: skip
from panel.fleet.models import Gpu, Host, Job, JobLog
from panel.fleet.runtimes import outcomes as runtime_outcomes
from panel.fleet.runtimes import packages

LATE_US = 300_000_000  # a call is not under way for longer; a machine put back to an earlier moment is
MOST_REV = 1 << 52  # no host ever had so many orders; the column holds far more, so that ours can go on growing
PROVISION = ("install", "remove")  # kinds of jobs that change which engines a host has


def take_report(host: Host, report: wire.Report) -> wire.ReportReply:
    """Take a report: figures alone go to the broker's memory, whatever is new becomes rows.

    A report that is older than one that was taken says what is not so any more, and changes nothing. The network may
    bring it late, or a web process that slept.
    """
    if _overtaken(host, report):
        return wire.ReportReply(rev=host.work_rev)
    now = timezone.now()
    skew = hostclock.skew(report, now)
    try:
        before = samples.read(host.pk)
        if heartbeat.quiet(host, report, before, skew, now):
            looks = serving_points.commands(heartbeat.points(report, before, now))
            samples.keep(host.pk, heartbeat.sample(report, before, {}, skew, now), looks)
            return wire.ReportReply(rev=host.work_rev)
        return _store(host, report, before, skew, now)
    except samples.Away:
        return _store(host, report, None, skew, now, whole=True)


def _overtaken(host: Host, report: wire.Report) -> bool:
    return 0 < report.seq <= host.report_seq < report.seq + LATE_US


def _store(
    host: Host, report: wire.Report, before: dict[str, Any] | None, skew: float, now: Any, *, whole: bool = False
) -> wire.ReportReply:
    """Write down what a report says. `whole`: also figures of jobs that alone moved, since they have no other place."""
    changed: list[Job] = []
    with transaction.atomic():
        services.lock_host(host.pk)
        host.refresh_from_db(fields=["report_seq"])
        if _overtaken(host, report):  # just now, by another process
            return wire.ReportReply(rev=host.work_rev)
        changes: dict[str, Any] = {"last_seen_at": now, "lost_at": None, "agent_version": report.agent_version[:32]}
        changes["report_seq"] = report.seq
        changes["clock_skew_s"] = skew
        if report.facts is not None:
            changes |= _facts(host, report.facts, now) | hostclock.restarted(host, report.facts, skew, now)
        if host.work_rev < report.rev < MOST_REV:  # our database is older than the agent's memory (a restored backup)
            changes["work_rev"] = report.rev + 1
        changes |= doors.taken(host, report.door)
        if "door_keys" in changes:  # one hash fewer in its work
            changes["work_rev"] = max(changes.get("work_rev", 0), host.work_rev) + 1
        jobs = host.jobs.in_bulk([uuid.UUID(s.id) for s in report.jobs if _is_uuid(s.id)])
        known = {str(pk): job.status for pk, job in jobs.items()}
        sample = heartbeat.sample(report, before, known, skew, now)
        for status in report.jobs:
            job = jobs.get(uuid.UUID(status.id)) if _is_uuid(status.id) else None
            if job is not None and _take_status(job, status, sample["jobs"][status.id], skew, now, whole=whole):
                changed.append(job)
                if job.kind in PROVISION:
                    runtime_outcomes.take_status(job)
        # With an end or a stranger in it the report is not done with until the host may forget that job.
        settled = len(jobs) == len(report.jobs) and all(job.state not in wire.JOB_OVER for job in jobs.values())
        sample["told"] = changes["told"] = heartbeat.told(report, host.told) if settled and not whole else ""
        if report.facts is not None:
            sample["rows"] = heartbeat.figures(report.facts)
        Host.objects.filter(pk=host.pk).update(**changes)
        if not whole:
            of_ours = {str(pk) for pk in jobs}
            looks = {job: at for job, at in heartbeat.points(report, before, now).items() if job in of_ours}
            transaction.on_commit(partial(_remember, host.pk, sample, looks), robust=True)
    _tell(host, changed, page_news=not changes["told"] or changes["told"] != host.told)
    return wire.ReportReply(rev=changes.get("work_rev", host.work_rev), forget=_to_forget(host, jobs, report))


def _remember(host_id: int, sample: dict[str, Any], looks: dict[str, serving_points.New]) -> None:
    try:
        samples.keep(host_id, sample, serving_points.commands(looks))
    except samples.Away:
        return  # the rows say that it called; the next report finds no sample and is stored whole


def _tell(host: Host, changed: list[Job], *, page_news: bool) -> None:
    """Wake who waits for this host or these jobs."""
    if host.lost_at is not None:
        signals.host_back.send_robust(sender=Host, host_id=host.pk)
    if page_news or changed or host.lost_at is not None:
        live.publish_on_commit(live.HOSTS)
    for job in changed:
        signals.job_changed.send_robust(sender=Job, job_id=job.pk, kind=job.kind, state=job.state, log_grew=False)


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _facts(host: Host, facts: wire.HostFacts, now: Any) -> dict[str, Any]:
    """The columns that new facts change; GPUs are rows of their own."""
    rows = [
        Gpu(
            host=host,
            uuid=gpu.uuid[:80],
            index=gpu.index,
            name=gpu.name[:120],
            total_mib=gpu.total_mib,
            used_mib=gpu.used_mib,
            measured=gpu.model_dump(mode="json", exclude={"index", "uuid", "name", "total_mib", "used_mib"}),
            measured_at=now,
        )
        for gpu in {gpu.uuid[:80]: gpu for gpu in facts.gpus}.values()
    ]
    measured = ["index", "name", "total_mib", "used_mib", "measured", "measured_at", "present"]
    if rows:  # what is reserved and who set a GPU aside stay as they are
        Gpu.objects.bulk_create(rows, update_conflicts=True, unique_fields=["host", "uuid"], update_fields=measured)
    if facts.gpu_error is None:  # an unreadable driver says nothing about which GPUs exist
        gone = Gpu.objects.filter(host=host, present=True).exclude(uuid__in=[row.uuid for row in rows])
        gone.update(present=False)
    return {
        "facts": facts.model_dump(mode="json", exclude={"gpus"}),
        "facts_at": now,
        "ram_total_mib": facts.ram_total_mib,
    }


def _take_status(
    job: Job, status: wire.JobStatus, moving: dict[str, Any], skew_s: float, now: Any, *, whole: bool
) -> bool:
    """Store one job's status; True when something a reader acts on is new (not mere measurements)."""
    if job.state in wire.JOB_OVER:
        return False
    old = job.status
    values = status.model_dump(mode="json")
    hostclock.put_right(values, old, skew_s)
    values["still_since"] = moving["still_since"]
    on = heartbeat.same_progress(old.get("progress"), values["progress"])
    aside = {*heartbeat.MOVING, "still_since", *(["progress"] if on else [])}
    if not whole and all(old.get(name) == value for name, value in values.items() if name not in aside):
        job.status = values
        return False
    ended = status.state in wire.JOB_OVER
    rows = Job.objects.filter(pk=job.pk).exclude(state__in=wire.JOB_OVER)
    if not rows.update(state=status.state, status=values, status_at=now, **({"ended_at": now} if ended else {})):
        return False
    news = ("state", "listening", "port", "stop_asked", "leftover_pids", "pid")
    is_new = not on or any(old.get(key) != values.get(key) for key in news)
    job.state, job.status = status.state, values
    return is_new


def _to_forget(host: Host, jobs: dict[uuid.UUID, Job], report: wire.Report) -> list[str]:
    """Close the jobs whose end, result and whole log are here, and tell the host which files it may drop."""
    forget = [status.id for status in report.jobs if not _is_uuid(status.id) or uuid.UUID(status.id) not in jobs]
    over = [job for job in jobs.values() if job.state in wire.JOB_OVER]
    sizes = dict(JobLog.objects.filter(pk__in=[job.pk for job in over]).values_list("pk", "size")) if over else {}
    done = []
    for job in over:
        complete = sizes.get(job.pk, 0) >= int(job.status.get("log_size") or 0)
        answered = job.kind == "engine" or job.result is not None or job.never_ran
        if complete and answered:
            done.append(job.pk)
    if done and Job.objects.filter(pk__in=done, open=True).update(open=False, secrets=None):
        Host.objects.filter(pk=host.pk).update(work_rev=F("work_rev") + 1)
        live.publish_on_commit(live.work_topic(host.pk))
    return [*forget, *map(str, done)]


def take_log(host: Host, job_id: uuid.UUID, offset: int, data: bytes, skipped: int) -> wire.LogReply:
    """Append log bytes of one of the host's own jobs. Raises Job.DoesNotExist for any other."""
    job = host.jobs.only("pk", "kind", "state", "secrets").get(pk=job_id)
    size, grew = logstore.append(job_id, offset, log_secrets.hidden(job, data), skipped)
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
        elif kept and job.kind == "package":
            packages.take_result(job, result)
    if kept:
        signals.job_changed.send_robust(sender=Job, job_id=job.pk, kind=job.kind, state="ended", log_grew=False)
