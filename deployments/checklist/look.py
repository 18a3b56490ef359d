"""The list as a whole: static findings and the plan at once, the engine's own word when it comes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from deployments import around_now, patching, preflight, queries, remedies, run_secrets
from deployments.checklist import engine, failed_here, leads, on_host, static
from deployments.checklist.findings import Finding, Part, Verdict, verdict, warnings
from deployments.mending import turn
from deployments.mending.around import Around
from deployments.mending.fix import Fix
from deployments.models import Deployment, Run
from deployments.planner import length
from deployments.preflight import Check
from deployments.spec import DeploymentSpec
from models_catalog.models import Artifact
from panel.fleet.models import Job

AGAIN_AFTER_S = 20  # what the host could not say is asked once more, and not at every look


@dataclass(frozen=True)
class CheckList:
    """What was found, part by part, and the plan that it is about."""

    parts: tuple[Part, ...]
    check: Check

    @property
    def verdict(self) -> Verdict:
        return verdict(self.parts)

    @property
    def warnings(self) -> list[str]:
        return warnings(self.parts)


def look(
    spec: DeploymentSpec, *, name: str, actor: Any = None, ask: bool = True, again: bool = False, own: int | None = None
) -> CheckList:
    """The list now. With `ask` the host is asked what nobody asked yet, with `again` also what it answered before.

    `own` is the deployment that has the name by right, and gives back what its run holds before it starts anew.
    """
    fleet = preflight.Fleet.of(spec, queries.run_of(own) if own is not None else None, actor)
    check = preflight.check(spec, name=name, fleet=fleet)
    said, job = engine.Outcome(), None
    if engine.can_be_asked(check):
        said, job = _asked(check, spec, name=name, actor=actor, ask=ask, again=again)
    failed = failed_here.last(check) if engine.can_be_asked(check) else None
    fixes = bool(check.refusals) or said.state == "refused" or failed is not None
    around = around_now.of_check(check, spec, fleet, own=own, whole=fixes)
    if said.state == "refused" or said.files:
        said = engine.outcome(job, spec, around)
    if said.finding is not None and said.finding.fixes:
        said = replace(said, finding=replace(said.finding, fixes=_accepted(said.finding.fixes, spec, name, fleet)))
    before = _failed(failed, spec, around, name, fleet)
    notes = check.launch.notes if check.launch is not None else []
    settings = (
        _settings(check, spec, notes, around)
        + _length(check, spec, fleet)
        + _name(name, own)
        + _secrets(spec, actor, own)
    )
    plan = static.of_plan(
        check.placement, check.reason, check.changes, leads.surer(check, spec, name, fleet), queries.may_name(actor)
    )
    plan = [replace(one, fixes=leads.linked(one.fixes)) for one in plan]
    return CheckList(
        (
            Part("files", (*_files(check, spec, around), *said.files)),
            Part("settings", tuple(settings), skipped=check.runtime is None and not settings),
            Part("plan", tuple(plan), skipped=check.reason.get("code") == length.CODE),
            _engine_part(check, said, before),
            _host_part(check, spec, said, job),
        ),
        check,
    )  # fmt: skip


def _host_part(check: Check, spec: DeploymentSpec, said: engine.Outcome, job: Job | None) -> Part:
    """By what the host reports now; of an older agent by what it told with the engine's answer."""
    facts = check.host.facts if check.host is not None else {}
    told = on_host.told(facts, said.host, job.ended_at if job is not None else None, spec.env)
    found = on_host.findings(told, len(check.gpus), timezone.now())
    waits = said.state == "running" and not told.values
    if found:
        found = [one if one.level == "note" else leads.on_host((one,), check.host)[0] for one in found]
    return Part("host", tuple(found), waits=waits, skipped=not told.values)


def _accepted(fixes: Iterable[Fix], spec: DeploymentSpec, name: str, fleet: preflight.Fleet | None) -> tuple[Fix, ...]:
    """Those that are done elsewhere, and of the changes those whose result the planner would take now."""
    found: list[Fix] = []
    for fix in fixes:
        if len(found) >= static.MOST_FIXES:
            break
        if fix.kind != "patch" or _takes(fix, spec, name, fleet):
            found.append(fix)
    return tuple(found)


def _takes(fix: Fix, spec: DeploymentSpec, name: str, fleet: preflight.Fleet | None) -> bool:
    check = patching.tried(spec, fix.patch, name, fleet=fleet)
    return check is not None and check.ok


def _files(check: Check, spec: DeploymentSpec, around: Around) -> list[Finding]:
    """Of the copy that was chosen; where no place was found, the plan says of each copy what is wrong."""
    artifact = check.copy.artifact if check.copy is not None else Artifact.objects.filter(pk=spec.artifact_id).first()
    facts = {**artifact.facts, **(check.copy.extra if check.copy is not None else {})} if artifact else {}
    problems = check.copy.problems if check.copy is not None else []
    return static.of_files(facts, problems, check.refusals, spec, around)


def _settings(check: Check, spec: DeploymentSpec, notes: list[Any], around: Around) -> list[Finding]:
    if check.runtime is None:
        return []
    return static.of_settings(spec, preflight.runtime_facts(check.runtime), check.refusals, notes, around)


def _length(check: Check, spec: DeploymentSpec, fleet: preflight.Fleet | None) -> list[Finding]:
    if fleet is None:
        return []
    version = check.runtime.version if check.runtime is not None else ""
    return static.of_length(spec, fleet.artifact.facts, version, check.changes)


def _name(name: str, own: int | None) -> list[Finding]:
    """A name is one address at the door."""
    taken = Deployment.objects.filter(name=name, deleted_at=None).exclude(pk=own).exists()
    return [Finding("error", "check.name_taken", {"name": name}, "name", (leads.other_name(name),))] if taken else []


def _secrets(spec: DeploymentSpec, actor: Any, own: int | None) -> list[Finding]:
    """Whether whoever would save these settings may name the secrets in them, as saving them asks."""
    if actor is None or not spec.env_secrets:
        return []
    row = Deployment.objects.select_related("revision").filter(pk=own).first() if own is not None else None
    name = run_secrets.missing(spec, actor=actor, before=row.revision if row is not None else None)
    return [Finding("error", "secret.unknown", {"name": name}, "env_secrets")] if name else []


def _asked(
    check: Check, spec: DeploymentSpec, *, name: str, actor: Any, ask: bool, again: bool
) -> tuple[engine.Outcome, Job | None]:
    """What the engine said so far, and the job that it said it in."""
    job = engine.known(check)
    found = engine.outcome(job, spec)
    if not ask or found.state == "running":
        return found, job
    old = job is not None and (timezone.now() - job.created_at).total_seconds() > AGAIN_AFTER_S
    if job is None or again or (old and _may_change(found)):
        job = engine.order(check, name=name, actor=actor)
        if job is None:
            return engine.Outcome("unknown", Finding("note", "check.host_busy")), None
        return engine.outcome(job, spec), job
    return found, job


def _may_change(found: engine.Outcome) -> bool:
    """Files may be whole again; an agent that is too old, or an engine that cannot be asked, will say the same."""
    code = found.finding.code if found.finding is not None and found.state == "unknown" else ""
    return bool(found.files) or code in ("check.not_finished", "check.not_made")


def _failed(
    run: Run | None, spec: DeploymentSpec, around: Around, name: str, fleet: preflight.Fleet | None
) -> tuple[Finding, ...]:
    """A start of the very same that failed here."""
    if run is None:
        return ()
    fixes = turn.fixes_of(str(run.diagnosis["class"]), remedies.offers(run), spec, around)
    return (failed_here.finding(run, _accepted(fixes, spec, name, fleet)),)


def _engine_part(check: Check, said: engine.Outcome, before: tuple[Finding, ...]) -> Part:
    if check.launch is None:
        return Part("engine", (), skipped=True)
    if not engine.can_be_asked(check):
        return Part("engine", (Finding("note", "check.description_first"),), skipped=True)
    found = (said.finding,) if said.finding is not None else ()
    if found and found[0].code == "check.old_agent":
        found = leads.on_host(found, check.host)
    found += before if said.state != "refused" else ()
    skipped = said.state in ("none", "unknown")
    return Part("engine", found, waits=said.state == "running", skipped=skipped, seconds=said.seconds)
