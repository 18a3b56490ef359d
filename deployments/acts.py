"""The acts of the loop, one function per step of steps.py. Each is safe to repeat: a worker may die anywhere in it."""

import json
import logging
import secrets
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from deployments import (
    checking,
    describing,
    events,
    evidence,
    failures,
    golden,
    measured,
    placing,
    preflight,
    probe,
    run_log,
    run_secrets,
    stalls,
)
from deployments.checklist import engine as checked
from deployments.diagnosis import failure, phases, serving_log
from deployments.engines.base import EngineRefusal, masked_env
from deployments.models import Deployment, Run
from deployments.moves import LeaseLost, move, spec_of
from deployments.probe import PAUSE_S
from deployments.probe import lease as probe_lease
from deployments.states import Desired, State
from deployments.steps import HOST_RESTARTED, retry_delay
from panel.accounts.secret_store import NoSecret
from panel.core import queue
from panel.core.claims import Claim
from panel.core.crypto import CannotUnseal, seal
from panel.fleet import logstore, wire
from panel.fleet import services as fleet

log = logging.getLogger(__name__)

RESTARTS, RESTARTS_IN = 3, timedelta(hours=1)  # of a machine: more in that time may be this deployment's doing
GOOD_RUN = timedelta(minutes=10)  # a run that was ready this long makes earlier failures forgotten
READ_BYTES = 4 << 20  # log bytes parsed in one step


# --- preparing and ordering -----------------------------------------------------------------------------------------


def describe(claim: Claim, row: Deployment) -> None:
    """Have the host describe the model's file for the engine, or take what became of that."""
    run = Run.objects.select_related("host", "runtime", "copy").defer("runtime__flags").get(pk=row.run_id)
    folder, reason = describing.outcome(run)
    if reason:
        end_with(claim, row, State.FAILED, reason)
        return
    try:
        with transaction.atomic():
            _still_ours(claim, row)
            describing.keep(run, {"folder": folder}) if folder else describing.order(run)
    except fleet.HostGone as exc:
        end_with(claim, row, State.FAILED, {"code": exc.code, "params": {"host": run.host_name}})


def ask(claim: Claim, row: Deployment) -> None:
    """Have the host ask its engine what it thinks of the settings, or take what it said; a sure refusal ends the start.

    No process was started for it then. Any other answer, and none, lets the start go on: it tells the truth.
    """
    known = Run.objects.select_related("host", "runtime", "copy__artifact__model").defer("runtime__flags")
    run, now = known.get(pk=row.run_id), timezone.now()
    if not checking.job_id_of(run):
        with transaction.atomic():
            _still_ours(claim, row)
            checking.begin(run, spec_of(row), row.name, now)
        return
    over, refused = checking.answer(run, spec_of(row))
    seen, kept = evidence.gathered(run, {}) if refused is not None else (None, {})
    ending = checked.ending_of(refused, seen) if refused is not None else None
    with transaction.atomic():
        _still_ours(claim, row)
        checking.keep(run, {"over": over})
        if ending is not None:
            ending = replace(ending, diagnosis={**ending.diagnosis, **kept})
            end_with(claim, row, State.FAILED, ending.reason, ending)


def order(claim: Claim, row: Deployment) -> None:
    """Order the engine on the host. The job's id is the run's: a repeated order is the same job."""
    known = Run.objects.select_related("host", "runtime", "copy__artifact__model").defer("runtime__flags")
    run = known.get(pk=row.run_id)
    spec = spec_of(row)
    key = secrets.token_urlsafe(32)
    try:
        given = run_secrets.values(row.revision)
        launch = preflight.launch_of(spec, run, name=row.name, api_key=key, secrets=given)
    except EngineRefusal as exc:
        end_with(claim, row, State.FAILED, preflight.refused(exc))
        return
    except (NoSecret, CannotUnseal) as exc:  # deleted since it was placed, or sealed with another key
        why = run_secrets.reason(row.revision) or {"code": exc.code, "params": exc.params}
        end_with(claim, row, State.FAILED, why)
        return
    task = wire.EngineTask.model_validate(preflight.command_of(launch, run.copy))
    try:
        with transaction.atomic():
            job = fleet.order_job(host=run.host, task=task, job_id=run.pk, grace_s=spec.grace_s)
            Run.objects.filter(pk=run.pk).update(
                job=job, command=launch.argv, env=masked_env(launch), secrets=seal(json.dumps({"api_key": key}))
            )
            if not move(claim, row, State.STARTING):
                raise LeaseLost
    except LeaseLost:
        log.info("another worker ordered run %s", run.pk)
    except fleet.HostGone as exc:  # forgotten between placing and this
        end_with(claim, row, State.FAILED, {"code": exc.code, "params": {"host": run.host_name}})


# --- watching -------------------------------------------------------------------------------------------------------


def read_log(row: Deployment) -> None:
    """Let the phase parser read what arrived since; two workers never count the same bytes twice."""
    run = row.run
    offset = run.log_parsed
    state = run.parser or phases.new_state(_started(run))
    part = logstore.read(run.job_id, offset, logstore.MAX_READ)
    budget = READ_BYTES
    now = timezone.now().timestamp()
    while part.data and budget > 0:
        state = _fed(part.data, state, now, run)
        budget -= len(part.data)
        offset = part.end
        part = logstore.read(run.job_id, offset, logstore.MAX_READ)
    if offset == run.log_parsed:  # only a gap was left
        offset = part.size
    found = phases.phases_of(state)
    said = measured.measured(state["facts"])
    changed = Run.objects.filter(pk=run.pk, log_parsed=run.log_parsed).update(
        log_parsed=offset,
        parser=state,
        phases=found,
        measured=said,
        residual_gib=measured.residual_gib(run.foreseen, said),
    )
    if changed and found != run.phases:
        events.announce(row.pk, state=row.state, name=row.name)


def _fed(data: bytes, state: dict[str, Any], now: float, run: Run) -> dict[str, Any]:
    """The parser's next state. Phases are for people: a log that the parser stumbles over must not hold up the run."""
    try:
        fed = phases.feed(data, state, now)
        if run.ready_at is not None:  # what fails from now on are requests, until it ends
            begun = state.get("partial", "").encode("latin-1")
            fed["classes"] = serving_log.count(begun + data, state.get("classes") or {}, "vllm", now)
        return fed
    except Exception:
        log.exception("a part of the log of run %s was passed over", run.pk)
        return state


def _started(run: Run) -> float:
    """When the process began, by our clock (fleet.reports put it right); the order's time until that is known."""
    return float((run.job.status if run.job else {}).get("started_at") or run.created_at.timestamp())


def probe_state(run: Run, now: datetime) -> tuple[str, float]:
    """(idle, asked, answered or failed; seconds until the next try may begin, or until who asks counts as gone)."""
    if run.answer:
        return "answered", 0.0
    probe = run.probe
    if probe.get("failed"):
        return "failed", 0.0
    if left := probe_lease(probe, now.timestamp()):
        return "asked", left
    return "idle", min(PAUSE_S, max(0.0, probe.get("next_at", 0.0) - now.timestamp()))


def ask_later(row: Deployment) -> None:
    """Hand the test question to the probe queue; asked once, by whoever marks it first."""
    run = row.run
    now = timezone.now().timestamp()
    asked = {**run.probe, "asked_at": now, "done_at": None, "alive_at": None}
    if not Run.objects.filter(pk=run.pk, probe=run.probe).update(probe=asked):
        return
    if queue.send("deployments.tasks.probe", str(run.pk)):
        return
    # Without the broker a start still gets ready: the question is asked beside the loop, once, as it is marked.
    threading.Thread(target=_ask_here, args=(str(run.pk),), name="probe", daemon=True).start()


def _ask_here(run_id: str) -> None:
    try:
        probe.ask_run(run_id)
        golden.ask_later(run_id)
    finally:
        connection.close()


# --- ending ---------------------------------------------------------------------------------------------------------


def stop_run(claim: Claim, row: Deployment, failing: dict[str, Any] | None) -> None:
    """Ask the host to end the run; with a reason when the run failed before its process did."""
    run = row.run
    failing = stalls.hung(run, failing)
    with transaction.atomic():
        _still_ours(claim, row)
        if failing:
            Run.objects.filter(pk=run.pk, ended_at=None).update(reason=failing)
        fleet.stop_job(run.job_id, grace_s=spec_of(row).grace_s)
        if row.state != State.STOPPING:
            move(claim, row, State.STOPPING, failing or {})


def _still_ours(claim: Claim, row: Deployment) -> None:
    """Lock the row, or raise LeaseLost: a worker that slept through its lease must not act on what was true before."""
    if not claim.rows().select_for_update().filter(state=row.state, run=row.run_id).exists():
        raise LeaseLost


def restarted(status: dict[str, Any]) -> bool:
    """Whether the host says that its own restart ended the process."""
    return (status.get("refusal") or {}).get("code") == HOST_RESTARTED


def restarts_too_often(run: Run, now: datetime) -> bool:
    """A machine that goes down each time this is started must not be sent into it for ever."""
    earlier = Run.objects.filter(
        deployment=run.deployment_id, reason__code=HOST_RESTARTED, ended_at__gt=now - RESTARTS_IN
    )
    return earlier.count() >= RESTARTS


def end_run(claim: Claim, row: Deployment, to: State) -> None:
    """Write the end of the run: why, exit, first error, memory given back, and whether it is tried again."""
    run = row.run
    if run is None or run.ended_at is not None:
        if row.state != to:
            move(claim, row, to)
        return
    status = run.job.status if run.job is not None else {}
    failed = to == State.FAILED or bool(run.reason) or (to == State.QUEUED and restarted(status))
    ending = _explain(run, status) if failed else None
    reason = ending.reason if ending else {}
    with transaction.atomic():
        _still_ours(claim, row)
        Run.objects.filter(pk=run.pk, ended_at=None).update(
            ended_at=timezone.now(),
            outcome="failed" if failed else "stopped",
            reason=reason,
            error_block=ending.error_block if ending else {},
            diagnosis=ending.diagnosis if ending else {},
            exit_code=status.get("exit_code"),
            signal=status.get("signal"),
            command=status.get("argv") or run.command,
        )
        if ending:
            failures.keep(run, reason, ending.error_block)
        describing.stop(run)  # it locks the host, as do the next: one order everywhere
        checking.stop(run)
        fleet.release(str(run.pk))
        changes = _retry(row, run, bool(ending and ending.curable)) if to == State.FAILED else {}
        if row.state != to:
            move(claim, row, to, reason, **changes)
    events.room_changed()


def fail(claim: Claim, row: Deployment, reason: dict[str, Any]) -> None:
    """End a start that has no process, whether or not it had a place yet."""
    if row.run is None or row.run.ended_at is not None:
        placing.never_began(claim, row, reason)
    else:
        end_with(claim, row, State.FAILED, reason)


def end_with(
    claim: Claim, row: Deployment, to: State, reason: dict[str, Any], ending: failure.Ending | None = None
) -> None:
    """End a run that never got a process, for a reason of the panel's own, or for what its engine said when asked."""
    block, known = (ending.error_block, ending.diagnosis) if ending is not None else ({}, {})
    with transaction.atomic():
        _still_ours(claim, row)
        Run.objects.filter(pk=row.run_id, ended_at=None).update(
            ended_at=timezone.now(), outcome="failed", reason=reason, error_block=block, diagnosis=known
        )
        failures.keep(row.run, reason, block)
        describing.stop(row.run)
        checking.stop(row.run)
        fleet.release(str(row.run_id))
        move(claim, row, to, reason)
    events.room_changed()


def _explain(run: Run, status: dict[str, Any]) -> failure.Ending:
    """The diagnosis: how it ended, how far it got, why, and what might help."""
    known, kept = evidence.gathered(run, status)
    try:
        read = run_log.through(run.job_id) if run.job_id is not None else run_log.Whole()
        found = _explained(read, run, status, known)
        run_log.place(found.error_block, read)
    except Exception:  # an end must be written, whatever the log holds
        log.exception("the log of run %s could not be explained", run.pk)
        found = _explained(run_log.Whole(), run, status)
    return replace(found, diagnosis={**found.diagnosis, **kept})


def _explained(
    read: run_log.Whole, run: Run, status: dict[str, Any], known: evidence.Evidence | None = None
) -> failure.Ending:
    return failure.explain(
        log=read.reader,
        phases=run.phases,
        exit_code=status.get("exit_code"),
        signal=status.get("signal"),
        refusal=status.get("refusal"),
        own_reason=run.reason,
        probe=run.probe.get("last"),
        was_ready=run.ready_at is not None,
        evidence=known,
    )


def _retry(row: Deployment, run: Run, curable: bool) -> dict[str, Any]:
    """When the restart policy tries again, and how often it has."""
    attempts = row.attempts
    if run.ready_at is not None and timezone.now() - run.ready_at > GOOD_RUN:
        attempts = 0
    delay = retry_delay(
        spec_of(row).restart,
        attempts,
        first_s=settings.BERTH_RESTART_FIRST_S,
        longest_s=settings.BERTH_RESTART_MAX_S,
    )
    wanted = row.desired == Desired.RUNNING and curable and delay is not None
    return {
        "attempts": attempts,
        "next_attempt_at": timezone.now() + timedelta(seconds=delay or 0) if wanted else None,
    }
