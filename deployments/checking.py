"""The engine is asked before it is started: what it would refuse is refused while nothing was started for it.

By the job that "Check without starting" orders too (checklist/engine.py), so whoever asked first, asked for all. What
is known stands in the run's placement, under `check`: {} is wanted, {"job": id, "since": Unix seconds} is being asked,
and `over` says what came of it: passed, refused, told (this refusal ended a start before: now the start itself shall
tell), unknown, or late. Nothing but a sure refusal ends a start; every other answer, and none, lets it go on.
"""

from datetime import datetime
from typing import Any

from deployments import preflight
from deployments.checklist import engine as checked
from deployments.engines.base import EngineRefusal, masked_env
from deployments.models import Run
from deployments.spec import DeploymentSpec
from panel.fleet import services as fleet
from panel.fleet.models import Job

KEY = "check"
LIMIT_S = 60.0  # of waiting for an answer; the host goes on with it, and the next start knows it
GRACE_S = 5.0


def wanted(run: Run) -> bool:
    """Whether this start has to wait for it still."""
    found = run.placement.get(KEY)
    return found is not None and "over" not in found


def over(run: Run) -> str:
    """What came of it; "" before that, and where nobody asks."""
    return str((run.placement.get(KEY) or {}).get("over") or "")


def job_id_of(run: Run) -> str:
    return str((run.placement.get(KEY) or {}).get("job") or "")


def job_of(run: Run) -> Job | None:
    job_id = job_id_of(run)
    return Job.objects.select_related("log").filter(pk=job_id).first() if job_id else None


def left_s(run: Run, now: datetime) -> float:
    """How long the start still waits for an answer; 0 where there is one, or none can come."""
    job = job_of(run)
    if job is None or not checked.is_running(job) or (run.host is not None and run.host.lost_at is not None):
        return 0.0
    since = float((run.placement.get(KEY) or {}).get("since") or 0.0)
    return max(0.0, since + LIMIT_S - now.timestamp()) if since <= now.timestamp() else LIMIT_S


def begin(run: Run, spec: DeploymentSpec, name: str, now: datetime) -> None:
    """Have the engine asked, or share the question that somebody asked. The caller has locked the deployment's row."""
    check = _check_of(run, spec, name)
    if (
        check is None
        or check.launch is None
        or not checked.can_be_asked(check)
        or (run.host is not None and run.host.lost_at is not None)
    ):
        keep(run, {"over": "unknown"})
        return
    job = checked.of_use(check)
    own = job is None
    job = job or checked.order(check)
    if job is None:  # the host has enough in hand
        keep(run, {"over": "unknown"})
        return
    run.command, run.env = check.launch.argv, masked_env(check.launch)
    Run.objects.filter(pk=run.pk, ended_at=None).update(command=run.command, env=run.env)
    keep(run, {"job": str(job.pk), "since": now.timestamp(), "own": own})


def _check_of(run: Run, spec: DeploymentSpec, name: str) -> preflight.Check | None:
    """The start as the check sees it: without secrets, and as it is without a detailed log."""
    if run.host is None or run.runtime is None or run.copy is None:
        return None
    detail, run.detail = run.detail, False
    try:
        launch = preflight.launch_of(spec, run, name=name, api_key=preflight.NO_KEY)
    except EngineRefusal:  # the order says it
        return None
    finally:
        run.detail = detail
    uuids = run.placement.get("gpu_uuids") or []
    gpus = tuple(gpu for gpu in run.host.gpus.all() if gpu.uuid in uuids)
    return preflight.Check(launch=launch, host=run.host, runtime=run.runtime, copy=run.copy, gpus=gpus)


def answer(run: Run, spec: DeploymentSpec) -> tuple[str, Job | None]:
    """(what came of it, the job that says why where that ends the start)."""
    job = job_of(run)
    found = checked.outcome(job, spec)
    if found.state == "refused" and found.sure and job is not None:
        return ("told", None) if checked.was_told(job, run.deployment_id) else ("refused", job)
    return ("passed" if found.state == "passed" else "late" if found.state == "running" else "unknown"), None


def keep(run: Run, found: dict[str, Any]) -> None:
    run.placement = {**run.placement, KEY: {**(run.placement.get(KEY) or {}), **found}}
    Run.objects.filter(pk=run.pk, ended_at=None).update(placement=run.placement)


def stop(run: Run) -> None:
    """The start is over: nobody waits for it any more, unless somebody else had asked, or shares the question."""
    found = run.placement.get(KEY) or {}
    if not wanted(run) or not found.get("own"):
        return
    others = Run.objects.filter(ended_at=None, **{f"placement__{KEY}__job": found["job"]}).exclude(pk=run.pk)
    if not others.exists():
        fleet.stop_job(found["job"], grace_s=GRACE_S)


def log_job_of(run: Run) -> Job | None:
    """The job whose log is the run's: its own, or that in which its engine refused the settings."""
    if run.job is not None:
        return run.job
    return job_of(run) if over(run) == "refused" else None
