"""The description that vLLM wants beside a GGUF file (config.json, tokenizer): made on the host before the start.

Each start has it made anew by a job of its own, which is done at once where the host has it: so a host that lost its
folder, or a file that changed, needs nobody's care. What is known stands in the run's placement, under `sidecar`:
{} is wanted, {"job": id} is being made, {"job": id, "folder": path} is there.
"""

from datetime import datetime
from typing import Any

from django.db import transaction

from deployments.models import Run
from panel.fleet import services as fleet
from panel.fleet import wire
from panel.fleet.models import LOST_RESULT, Job

KEY = "sidecar"
AGAIN = ("host_restarted",)  # the machine went down in the middle: the same once more
RENAMED = ("task_failed", "order_unreadable", "kind_unknown")  # said of other work in other words
GRACE_S = 10.0


def wanted(run: Run) -> bool:
    """Whether this start has to wait for it still."""
    found = run.placement.get(KEY)
    return found is not None and not found.get("folder")


def folder_of(placement: dict[str, Any]) -> str:
    return str((placement.get(KEY) or {}).get("folder") or "")


def job_of(run: Run) -> Job | None:
    job_id = (run.placement.get(KEY) or {}).get("job")
    return Job.objects.select_related("log").filter(pk=job_id).first() if job_id else None


def is_moving(run: Run, now: datetime) -> bool:
    """Whether the host still has it in hand."""
    job = job_of(run)
    if job is None or job.never_ran or job.result is not None:
        return False
    return job.state != "ended" or job.ended_at is None or job.ended_at > now - LOST_RESULT


def outcome(run: Run) -> tuple[str, dict[str, Any]]:
    """(folder, {}) or ("", why not); ("", {}) when it has to be ordered (again)."""
    job = job_of(run)
    if job is None:
        return "", {}
    result = wire.JobResult.model_validate(job.result) if job.result is not None else None
    refusal = result.refusal.model_dump(mode="json") if result is not None and result.refusal is not None else None
    if job.never_ran:
        refusal = job.status.get("refusal") or {"code": "stopped", "params": {}}
    if refusal is None and result is not None and result.items and result.items[0].get("folder"):
        return str(result.items[0]["folder"])[:1000], {}
    if refusal is not None and refusal["code"] in AGAIN:
        return "", {}
    params = (refusal or {}).get("params") or {}
    code = (refusal or {}).get("code") or "task_failed"
    return "", {"code": f"sidecar.{code}" if code in RENAMED else code, "params": params}


@transaction.atomic
def order(run: Run) -> None:
    """Have it made. The caller holds the deployment's lease and has locked its row. Raises HostGone."""
    assert run.host is not None and run.runtime is not None and run.copy is not None
    task = wire.SidecarTask(executable=run.runtime.executable, path=run.copy.path)
    job = fleet.order_job(host=run.host, task=task, grace_s=GRACE_S)
    keep(run, {"job": str(job.pk)})


def keep(run: Run, found: dict[str, Any]) -> None:
    run.placement = {**run.placement, KEY: {**run.placement.get(KEY, {}), **found}}
    Run.objects.filter(pk=run.pk, ended_at=None).update(placement=run.placement)


def stop(run: Run) -> None:
    """The start is over: nobody waits for it any more."""
    if wanted(run) and (job_id := run.placement[KEY].get("job")):
        fleet.stop_job(job_id, grace_s=GRACE_S)


def known_folder(host_id: int, path: str) -> str:
    """Where an earlier start had it made, for people who look at a command; "" when none did."""
    rows = Job.objects.filter(host_id=host_id, kind="sidecar", order__path=path, result__isnull=False)
    newest = rows.order_by("-created_at").values_list("result", flat=True).first()
    items = (newest or {}).get("items") or [{}]
    return str(items[0].get("folder") or "")
