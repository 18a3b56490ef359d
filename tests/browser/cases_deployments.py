"""One deployment in every state, and the record of a start."""

from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from deployments.diagnosis.failure import explain
from deployments.models import Deployment, Transition
from tests.browser.cases import case
from tests.browser.deployment_rows import (
    CHINESE_MODEL,
    FINDINGS,
    LONG,
    LONG_MODEL,
    TRACE,
    cpu_shelf,
    earlier,
    end_badly,
    finding,
    gpu_deployment,
    gpu_shelf,
    looked_at,
    page_of,
    phases,
    start,
    waiting,
)
from tests.deployments import builders

CORPUS = Path(__file__).parents[1] / "data" / "diagnosis" / "corpus"

# --- on its way -------------------------------------------------------------------------------------------------------


@case("deployment-queued")
def queued() -> str:
    row, _copy = gpu_deployment("queued")
    waiting(row)
    return page_of(row)


@case("deployment-placing")
def placing() -> str:
    row = builders.make_deployment(cpu_shelf(), state="placing", deadline_at=timezone.now() + timedelta(minutes=2))
    return page_of(row)


@case("deployment-preparing")
def preparing() -> str:
    row, copy = gpu_deployment("preparing", deadline_at=timezone.now() + timedelta(minutes=9))
    start(row, copy, ago=3, phases=[])
    return page_of(row)


@case("deployment-starting")
def starting() -> str:
    row, copy = gpu_deployment("starting", deadline_at=timezone.now() + timedelta(minutes=58))
    start(row, copy, phases=phases("load", timezone.now().timestamp() - 40, done=5, total=16))
    return page_of(row)


@case("deployment-starting-first", role="viewer")
def starting_first() -> str:
    """On a CPU, with no earlier start to compare with."""
    copy = cpu_shelf(CHINESE_MODEL)
    row = builders.make_deployment(
        copy, "zhongwen", state="starting", deadline_at=timezone.now() + timedelta(minutes=58)
    )
    run = start(row, copy, log=builders.LOG)
    begun = timezone.now().timestamp() - 30
    run.phases = [p for p in phases("http", begun - 60) if p["code"] != "graph"]
    run.save()
    return page_of(row)


@case("deployment-starting-stalled")
def starting_stalled() -> str:
    row, copy = gpu_deployment("starting", deadline_at=timezone.now() + timedelta(minutes=31))
    since = timezone.now().timestamp()
    still = since - settings.BERTH_STALL_S - 200
    start(row, copy, ago=1700, status={"still_since": still}, phases=phases("load", since - 1690, done=5, total=16))
    return page_of(row)


@case("deployment-lost")
def lost() -> str:
    row, copy = gpu_deployment("lost", reason={"code": "lost.no_contact", "params": {}})
    start(row, copy, phases=phases("load", timezone.now().timestamp() - 40, done=5, total=16))
    return page_of(row)


@case("deployment-stopping")
def stopping() -> str:
    row, copy = gpu_deployment("stopping", deadline_at=timezone.now() + timedelta(seconds=50))
    start(row, copy, status={"state": "stopping"})
    return page_of(row)


@case("deployment-stopping-leftover")
def stopping_leftover() -> str:
    row, copy = gpu_deployment("stopping", deadline_at=timezone.now() + timedelta(seconds=20))
    Deployment.objects.filter(pk=row.pk).update(state_since=timezone.now() - timedelta(minutes=2))
    start(row, copy, status={"state": "stopping", "leftover_pids": [4711, 4718]})
    return page_of(row)


# --- at rest ----------------------------------------------------------------------------------------------------------


@case("deployment-ready", role="operator")
def ready() -> str:
    """With all that can be wrong; the two after it are quiet."""
    row, copy = gpu_deployment("ready")
    run = start(row, copy, ago=151)
    run.findings = {"found": [finding(*each) for each in FINDINGS], "base": {}}
    builders.ready(row, run)
    looked_at(run)
    return f"/deployments/{row.pk}/"


@case("deployment-ready-viewer", role="viewer")
def ready_viewer() -> str:
    copy = cpu_shelf(CHINESE_MODEL)
    row = builders.make_deployment(copy, "zhongwen", state="ready", wanted_by="陈梅")
    builders.ready(row, start(row, copy, log=builders.LOG))
    return page_of(row)


@case("deployment-ready-long-names")
def ready_long_names() -> str:
    copy = cpu_shelf(LONG_MODEL)
    row = builders.make_deployment(copy, LONG, state="ready", wanted_by="a.person.with.a.rather.long.name")
    builders.ready(row, start(row, copy, log=builders.LOG))
    return page_of(row)


@case("deployment-failed", role="operator")
def failed() -> str:
    row, copy = gpu_deployment("failed")
    end_badly(row, copy, {"code": "exit.code", "params": {"exit_code": 1, "phase": "profile"}}, exit_code=1)
    return page_of(row)


@case("deployment-failed-recognised", role="operator")
def failed_recognised() -> str:
    row, copy = gpu_deployment("failed")
    ending = explain(log=(CORPUS / "015.log").read_bytes(), exit_code=1)
    end_badly(row, copy, ending.reason, exit_code=1, diagnosis=ending.diagnosis)
    return page_of(row)


@case("deployment-failed-again", role="operator")
def failed_again() -> str:
    """The third attempt, after a fix by a click and one by Berth itself."""
    row, copy = gpu_deployment("failed")
    row.revision.spec["options"] = {"max_model_len": 131_072}
    row.revision.save()
    ending = explain(log="\n".join(TRACE).encode(), exit_code=1)
    run = end_badly(row, copy, ending.reason, exit_code=1, diagnosis=ending.diagnosis)
    for number, (to, more) in enumerate(((77_168, {}), (65_536, {"by_itself": True, "switched_on_by": "maria"})), 2):
        why = {
            "fix": "fix.context_down",
            "params": {"name": "max_model_len", "to": to},
            "class": "mem.kv_lt_len",
        } | more
        spec = {**row.revision.spec, "options": {"max_model_len": to}}
        row.revision = row.revisions.create(number=number, spec=spec, created_by="maria", why=why)
        row.save()
        run = end_badly(row, copy, ending.reason, exit_code=1, diagnosis=ending.diagnosis, parent=run)
    return page_of(row)


@case("deployment-failed-viewer", role="viewer")
def failed_viewer() -> str:
    row, copy = gpu_deployment("failed")
    end_badly(row, copy, {"code": "exit.signal", "params": {"signal": "SIGKILL"}}, signal=9)
    return page_of(row)


@case("deployment-failed-tries-again", role="operator")
def failed_tries_again() -> str:
    row, copy = gpu_deployment("failed", attempts=2, next_attempt_at=timezone.now() + timedelta(seconds=40))
    end_badly(row, copy, {"code": "exit.code", "params": {"exit_code": 1, "phase": "profile"}}, exit_code=1)
    return page_of(row)


@case("deployment-failed-answer", role="operator")
def failed_answer() -> str:
    row, copy = gpu_deployment("failed", attempts=5)
    last = {"status": 500, "body": '{"error": {"message": "Internal server error", "type": "InternalServerError"}}'}
    reason = {"code": "answer.failed", "params": {"status": 500}}
    end_badly(
        row, copy, reason, exit_code=0, probe={"asked_at": timezone.now().timestamp() - 9, "tries": 3, "last": last}
    )
    return page_of(row)


@case("deployment-failed-no-place", role="operator")
def failed_no_place() -> str:
    row = builders.make_deployment(gpu_shelf(), "support-chat", state="failed")
    waiting(row, "failed")
    Deployment.objects.filter(pk=row.pk).update(deadline_at=None)
    return page_of(row)


@case("deployment-failed-flags", role="operator")
def failed_flags() -> str:
    row = builders.make_deployment(cpu_shelf(), "support-chat", state="failed")
    said = [
        {"name": "--swap-space", "code": "flag.removed", "params": {"flag": "--swap-space"}},
        {
            "name": "--enable-prefix-cachin",
            "code": "flag.unknown",
            "params": {"flag": "--enable-prefix-cachin", "near": ["--enable-prefix-caching"]},
        },
    ]
    row.reason = {"code": "options.refused", "params": {"candidates": said}}
    row.save()
    return page_of(row)


@case("deployment-stopped", role="operator")
def stopped() -> str:
    row, copy = gpu_deployment("stopped", wanted_by="ken.osei")
    start(
        row,
        copy,
        job_state="ended",
        outcome="stopped",
        signal=9,
        ended_at=timezone.now(),
        ready_at=timezone.now() - timedelta(hours=1),
    )
    return page_of(row)


@case("deployment-never-started", role="viewer")
def never_started() -> str:
    return page_of(builders.make_deployment(cpu_shelf(), "never-started"))


# --- the record -------------------------------------------------------------------------------------------------------


@case("run-stopped", role="viewer")
def run_stopped() -> str:
    row, copy = gpu_deployment("stopped")
    run = earlier(row, copy, days=1)
    for old, new in (("starting", "ready"), ("ready", "stopping"), ("stopping", "stopped")):
        Transition.objects.create(deployment=row, run=run, old=old, new=new)
    return f"/runs/{run.pk}/"


@case("run-failed")
def run_failed() -> str:
    row, copy = gpu_deployment("failed", name=LONG)
    reason = {"code": "exit.code", "params": {"exit_code": 1, "phase": "profile"}}
    run = end_badly(row, copy, reason, exit_code=1)
    Transition.objects.create(deployment=row, run=run, old="starting", new="failed", reason=reason)
    return f"/runs/{run.pk}/"


@case("run-of-a-deleted-one")
def run_deleted() -> str:
    copy = cpu_shelf(CHINESE_MODEL)
    row = builders.make_deployment(copy, "zhongwen", deleted_at=timezone.now())
    run = start(row, copy, log=builders.LOG, job_state="ended", outcome="stopped", exit_code=0, ended_at=timezone.now())
    return f"/runs/{run.pk}/"
