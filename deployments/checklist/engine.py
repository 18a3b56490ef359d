"""The engine's own validation: ordered as a job of the host, kept by what was checked, read back as a finding.

Nothing of its own is stored. The job's `order` holds the key, its `result` the engine's words, and what they mean is
decided when they are read, by the diagnosis that reads the log of a failed start.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from deployments import run_log
from deployments.checklist import whole
from deployments.checklist.findings import Finding
from deployments.diagnosis import failure
from deployments.diagnosis.result import Diagnosis, Evidence
from deployments.mending import turn
from deployments.mending.around import Around
from deployments.models import Transition
from deployments.preflight import UNMADE, Check, command_of
from deployments.spec import DeploymentSpec
from models_catalog import code_at_start
from panel import audit
from panel.core.mask import mask, mask_text
from panel.fleet import services as fleet
from panel.fleet import wire
from panel.fleet.models import Job

log = logging.getLogger(__name__)

CODE = "check.refused"  # of a refusal whose class is known
FORMAT = 2  # raise it when a check comes to look at more: then all are asked anew
KEPT = timedelta(days=7)  # a verdict; files, command and engine are in its key, drivers and limits of the host are not
HOLDS = timedelta(days=1)  # a refusal ends a start so long
OVERDUE = timedelta(seconds=330)  # the host's own limit and the way there and back
AT_ONCE = 4  # checks that one host has in hand; each waits for the one before
MOST_NAMED = 300  # characters of a line that is shown
# What differs from minute to minute or from name to name, and is nothing to the engine's validation.
_LEFT_OUT = ("--served-model-name", "--gpu-memory-utilization", "--port")
_ENV_LEFT_OUT = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")
NOWHERE = Around()
_OLD = ("kind_unknown", "order_unreadable")


@dataclass(frozen=True)
class Outcome:
    """`state`: none (nobody asked), running, passed, refused, or unknown (with a note that says why)."""

    state: str = "none"
    finding: Finding | None = None
    host: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    sure: bool = False  # a refusal whose class is proven by a line and does not go away by itself
    files: tuple[Finding, ...] = ()  # weights that do not lie there as they were found


def can_be_asked(check: Check) -> bool:
    """Whether there is a whole command to show to the engine."""
    return check.launch is not None and not any(UNMADE in word for word in check.launch.argv)


def key_of(check: Check) -> str:
    """Names what is checked: the engine, its command, the model's files and the kind of device."""
    assert check.launch is not None and check.runtime is not None and check.copy is not None
    env = {name: value for name, value in check.launch.env.items() if name not in _ENV_LEFT_OUT}
    facts = [
        FORMAT, check.runtime.pk, check.runtime.version, sorted(map(str, check.runtime.plugins)),
        _flags(check.launch.argv), env,
        check.copy.artifact.fingerprint, sorted(gpu.name for gpu in check.gpus), check.launch.allow_remote_code,
        code_at_start.files_for(check.copy) if check.launch.allow_remote_code else None,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _flags(argv: list[str]) -> list[list[str]]:
    """Each flag with its values, in one order: settings that were kept come back in another than they were written."""
    groups: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(_plain(word))
    return sorted(group for group in groups if group[:1] not in ([flag] for flag in _LEFT_OUT))


def _plain(word: str) -> str:
    """JSON within a command, its keys in one order."""
    if not word.startswith("{"):
        return word
    try:
        return json.dumps(json.loads(word), sort_keys=True)
    except (ValueError, RecursionError):
        return word


def known(check: Check) -> Job | None:
    """The newest job that checked the same, but for one that was stopped before it said anything."""
    assert check.host is not None
    rows = Job.objects.filter(host=check.host, kind="check", created_at__gt=timezone.now() - KEPT)
    rows = rows.exclude(desired="stop", result__isnull=True)
    return rows.filter(order__key=key_of(check)).order_by("-created_at").first()


def order(check: Check, *, name: str = "", actor: Any = None) -> Job | None:
    """Have the host ask its engine; None where it has enough in hand or is gone. A start asks without a name.

    Of two who want to know the same at the same time the second gets the job of the first.
    """
    assert check.launch is not None and check.host is not None and check.copy is not None
    key = key_of(check)
    artifact = check.copy.artifact
    files = whole.inventory(check.copy.path, artifact.format, artifact.facts)
    what = {**command_of(check.launch, check.copy), "secret_env": {}, "key": key, "files": files}
    task = wire.CheckTask.model_validate(what)
    waiting = Job.objects.filter(host=check.host, kind="check", open=True, created_at__gt=timezone.now() - OVERDUE)
    try:
        with transaction.atomic():
            fleet.lock_host(check.host.pk)
            if same := waiting.filter(order__key=key).exclude(desired="stop").first():
                return same
            if waiting.count() >= AT_ONCE:
                return None
            job = fleet.order_job(host=check.host, task=task, grace_s=5.0)
            if name:
                what = {"host": check.host.name, "model": str(check.copy.artifact)}
                audit.record("deployment.checked", name, actor=actor, **what)
    except fleet.HostGone:
        return None
    return job


def is_running(job: Job) -> bool:
    """Whether its answer may still come."""
    lost = job.lost_result or job.created_at < timezone.now() - OVERDUE
    return job.result is None and not job.never_ran and not lost


def of_use(check: Check) -> Job | None:
    """The job whose answer a start takes: one that is being asked, one that passed, any answer of the last day.

    None where it has to be asked: what was stopped or got lost says nothing, and of a refusal of some time ago nobody
    knows whether it still holds.
    """
    job = known(check)
    if job is None or is_running(job):
        return job
    items = (job.result or {}).get("items") or []
    new = job.created_at >= timezone.now() - HOLDS
    if items:
        return job if new or items[0].get("verdict") == "passed" else None
    return job if new and (job.status.get("refusal") or {}).get("code") in _OLD else None


@dataclass(frozen=True)
class Kept:
    """What earlier questions say of a start with the very same command."""

    refused: Job | None = None  # its refusal ends this start
    ask: bool = False  # nobody knows yet what the engine thinks of it


def kept(check: Check, spec: DeploymentSpec, deployment: int) -> Kept:
    """One query, a second one where it was refused. Only what is sure counts: a class that is known, and that does not
    go away by itself. It ends one start: who starts it once more may have mended on the host what no key can tell.
    """
    if not can_be_asked(check):  # its engine can be asked once the host has described the model's file
        return Kept(ask=check.launch is not None)
    job = of_use(check)
    if job is None or is_running(job):
        return Kept(ask=True)
    found = outcome(job, spec)
    sure = found.state == "refused" and found.sure and not was_told(job, deployment)
    return Kept(refused=job if sure else None)


def ending_of(job: Job, evidence: Evidence | None = None) -> failure.Ending:
    """A refusal as the end of a start: told, proven and offered fixes for as if the engine had been started."""
    said = wire.JobResult.model_validate(job.result).items[0]
    read = run_log.through(job.pk) if job.log.size else run_log.of_text(_output(said))
    code, signal = _number(said.get("exit_code")), _number(said.get("signal"))
    found, _more = _refused(said, DeploymentSpec(artifact_id=0), NOWHERE)
    try:
        ending = failure.explain(log=read.reader, exit_code=code, signal=signal, evidence=evidence)
        run_log.place(ending.error_block, read)
    except Exception:  # a refusal must be told, whatever the engine wrote
        log.exception("the output of check %s could not be explained", job.pk)
        ending = failure.Ending({})
    params = {**(ending.reason.get("params") or {}), **found.params}
    block = {**ending.error_block}
    if block:
        block["lines"] = [mask_text(line) for line in block["lines"]]
    return replace(ending, reason={"code": CODE, "params": params}, error_block=block, curable=False)


def _output(said: dict[str, Any]) -> bytes:
    return str(said.get("output") or "").encode()


def outcome(job: Job | None, spec: DeploymentSpec, around: Around = NOWHERE) -> Outcome:
    """What the engine said of a command."""
    if job is None:
        return Outcome()
    if job.never_ran:
        refusal = job.status.get("refusal") or {}
        return _unknown("check.old_agent" if refusal.get("code") in _OLD else "check.not_made", refusal)
    if job.result is None:
        over = job.lost_result or job.created_at < timezone.now() - OVERDUE
        return _unknown("check.not_finished", {}) if over else Outcome("running")
    result = wire.JobResult.model_validate(job.result)
    if result.refusal is not None or not result.items:
        return _unknown("check.not_finished", result.refusal.model_dump() if result.refusal else {})
    return outcome_of(result.items[0], spec, around)


def _unknown(code: str, refusal: dict[str, Any]) -> Outcome:
    return Outcome("unknown", Finding("note", code, {"cause": str(refusal.get("code") or "")[:100]}))


def outcome_of(said: dict[str, Any], spec: DeploymentSpec, around: Around = NOWHERE) -> Outcome:
    """The host's words, which may be anything, as an outcome."""
    given = said.get("host")
    host: dict[str, Any] = given if isinstance(given, dict) else {}
    took = said.get("seconds")
    seconds = float(took) if isinstance(took, int | float) and 0 <= took < 1e6 else None
    files = tuple(whole.findings(said, around))
    if said.get("verdict") == "passed":
        return Outcome("passed", None, host, seconds, files=files)
    if said.get("verdict") != "refused":
        return Outcome("unknown", Finding("note", "check.cannot_be_asked"), host, seconds, files=files)
    finding, sure = _refused(said, spec, around)
    return Outcome("refused", finding, host, seconds, sure, files)


def diagnosis_of(check: Check) -> Diagnosis | None:
    """Why the engine refused the very same command; None where it did not. One query."""
    job = known(check) if can_be_asked(check) else None
    if job is None or job.result is None:
        return None
    items = wire.JobResult.model_validate(job.result).items
    return _diagnosed(items[0])[0] if items and items[0].get("verdict") == "refused" else None


def _diagnosed(said: dict[str, Any]) -> tuple[Diagnosis, str]:
    """What its words mean, and the line that says so."""
    output = _output(said)
    code, signal = _number(said.get("exit_code")), _number(said.get("signal"))
    try:
        found = failure.diagnosed(output, exit_code=code, signal=signal)
        return found, found.root
    except Exception:  # a verdict must be shown, whatever the engine wrote
        log.exception("the output of a check could not be explained")
        return Diagnosis(), ""


def _refused(said: dict[str, Any], spec: DeploymentSpec, around: Around) -> tuple[Finding, bool]:
    found, root = _diagnosed(said)
    signal = _number(said.get("signal"))
    params: dict[str, Any] = {"root": str(mask(root.strip()[:MOST_NAMED]))}
    if not found.recognised:
        ended = signal is not None and not root  # killed from outside, more likely than not
        return Finding("warning" if ended else "error", "check.refused_unknown", params), False
    params |= {"title": found.title, "why": found.why, "cause": found.code}
    fixes = turn.fixes_of(found.code, found.fixes, spec, around)
    return Finding("error", CODE, params, "", tuple(fixes)), not found.curable and found.root_line is not None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1000 else None


def refusal_of(check: Check, spec: DeploymentSpec) -> dict[str, Any]:
    """Why a start would fail at once, as the engine has said of the very same command; {} where it has not.

    One query. Only what is sure counts: a class that is known, and that does not go away by itself.
    """
    if not can_be_asked(check):
        return {}
    job = known(check)
    if job is None or job.result is None or job.created_at < timezone.now() - HOLDS:
        return {}
    found = outcome(job, spec)
    return found.finding.reason if found.state == "refused" and found.sure and found.finding is not None else {}


def was_told(job: Job, deployment: int) -> bool:
    """Whether a start of this deployment has failed by this refusal already."""
    told = Transition.objects.filter(deployment=deployment, new="failed", at__gt=job.created_at)
    return told.filter(reason__code=CODE).exists()
