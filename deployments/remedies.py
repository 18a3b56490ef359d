"""What can be done about a failure, as it is now: what the diagnosis offers as typed fixes, each patch tried.

Made when someone looks, not when the run ended: engines, memory and files change, and an offered fix is one that the
planner accepts in this moment. The fleet is read once, and at most so many patches are tried, so that a look costs the
same however much was proposed.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from deployments import around_now, patching, preflight, queries
from deployments.checklist import engine as checked
from deployments.diagnosis.offers import about_of
from deployments.diagnosis.result import Offer
from deployments.mending import planned, refusals, turn
from deployments.mending.fix import Effect, Fix
from deployments.mending.making import patch_fix, ranked
from deployments.models import Deployment, Run
from deployments.placement import Change
from deployments.planner import length
from deployments.spec import DeploymentSpec

MOST_TRIED, MOST_SHOWN = 8, 5
BACK_CHANCE = 60
RESTING = ("failed", "stopped")


def of(row: Deployment, actor: Any = None) -> list[Fix]:
    """Of a deployment whose newest start or placing failed, the most promising first; [] for any other. `actor` is who
    looks: what this person or token may not see is not named. None sees everything.

    None is offered where the settings were changed since: what failed was another start.
    """
    run = failed_run(row)
    if row.state not in RESTING or not row.reason or (run is not None and run.revision_id != row.revision_id):
        return []
    assert row.revision is not None
    spec = DeploymentSpec.model_validate(row.revision.spec)
    fleet = preflight.Fleet.of(spec, actor=actor)
    if fleet is None:
        return []
    placed = run if run is not None and run.was_placed else None
    around = around_now.of_run(placed, spec, fleet, own=row.pk)
    found = refusals.fixes_of(row.reason, spec, around)
    if run is not None:
        found += turn.fixes_of(str(run.diagnosis.get("class") or ""), offers(run), spec, around)
        found += _back(row, run, spec)
    asks = _Asks(spec, row.name, fleet)
    if row.reason.get("code") in ("place.none", length.CODE):
        found += asks.changes()
    kept = run is not None and run.diagnosis.get("class")
    told = checked.diagnosis_of(asks.unchanged()) if row.reason.get("code") == checked.CODE and not kept else None
    if told is not None:
        found += turn.fixes_of(told.code, told.fixes, spec, around)
    return asks.accepted(ranked(found))


def failed_run(row: Deployment) -> Run | None:
    """The run that the deployment's reason is about; None where that has ended otherwise."""
    run = row.run
    return run if run is not None and run.outcome == "failed" and run.reason == row.reason else None


def offers(run: Run) -> Iterator[Offer]:
    """What its diagnosis offers."""
    for raw in run.diagnosis.get("offers") or []:
        known = {key: value for key, value in raw.items() if key in Offer.__dataclass_fields__}
        if "about" not in known:  # kept before offers said it: as the rule says of the same one now
            known["about"] = about_of(str(run.diagnosis.get("class") or ""), known)
        yield Offer(**known)


def _back(row: Deployment, run: Run, spec: DeploymentSpec) -> list[Fix]:
    """Back to the settings with which it was ready last, where they differ in more than one value."""
    good = row.runs.filter(number__lt=run.number, ready_at__isnull=False).order_by("-number").only("number", "revision")
    best = good.select_related("revision").first()
    if best is None or best.revision_id == row.revision_id:
        return []
    revision = best.revision
    failed = row.runs.filter(revision=revision, number__gt=best.number, outcome="failed")
    if failed.exclude(placement={}).exists():  # that there was no place says nothing of the settings
        return []  # it has failed with these as well since
    before, now = (each.model_dump(mode="json") for each in (DeploymentSpec.model_validate(revision.spec), spec))
    patch = {name: value for name, value in before.items() if now[name] != value}
    if not patch:
        return []
    fix = Fix("patch", "fix.back_to", {"number": revision.number}, patch=patch, option="", chance=BACK_CHANCE)
    return [fix.told(Effect(True, "effect.worked_before"))]


class _Asks:
    """Patches asked of the planner, with one reading of the fleet."""

    def __init__(self, spec: DeploymentSpec, name: str, fleet: preflight.Fleet) -> None:
        self.spec, self.name, self.fleet = spec, name, fleet
        self.tried = 0

    def unchanged(self) -> preflight.Check:
        return preflight.check(self.spec, name=self.name, fleet=self.fleet)

    def changes(self) -> list[Fix]:
        """What the planner itself proposes: it has tried each of them."""
        return list(planned.fixes_of(self.unchanged().changes, may_name=queries.may_name(self.fleet.actor)))

    def accepted(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Those that need no patch, and of the others those that the planner takes, with what it says of them."""
        found: list[Fix] = []
        for fix in fixes:
            if len(found) >= MOST_SHOWN:
                break
            if fix.kind != "patch":
                found.append(fix)
            elif self.tried < MOST_TRIED:
                taken = self._taken(fix)
                found += [taken] if taken is not None and not _among(taken, found) else []
        return ranked(found)

    def _taken(self, fix: Fix) -> Fix | None:
        """The fix, or the nearest of its kind, that the planner accepts."""
        self.tried += 1
        check = patching.tried(self.spec, fix.patch, self.name, fleet=self.fleet)
        if check is None:
            return None
        if check.ok:
            if checked.refusal_of(check, self.spec):  # the engine has said already that it would not start so
                return None
            return fix.told(*effects(check, fix.option, self.spec))
        near = next(
            (change for change in check.changes if change.patch and planned.option_of(change) == fix.option), None
        )
        if near is None or self.tried >= MOST_TRIED:
            return None
        return self._nearest(fix, near)

    def _nearest(self, fix: Fix, near: Change) -> Fix | None:
        """The same change with the number that the planner found."""
        patch = {**fix.patch, **near.patch}
        self.tried += 1
        check = patching.tried(self.spec, patch, self.name, fleet=self.fleet)
        if check is None or not check.ok:
            return None
        to = patch.get(fix.option, (patch.get("options") or {}).get(fix.option))
        made = patch_fix(self.spec, fix.option, patch, to, chance=fix.chance, cost=fix.cost)
        return made[0].told(*effects(check, fix.option, self.spec)) if made else None


def _among(fix: Fix, found: Iterable[Fix]) -> bool:
    return any(dict(fix.patch) == dict(other.patch) for other in found if other.kind == "patch")


def effects(check: preflight.Check, option: str, spec: DeploymentSpec) -> list[Effect]:
    """What the estimate says of it, as far as memory is what it changes."""
    placed = check.placement
    memory = option in (*planned.OPTIONS.values(), "max_num_batched_tokens", "dtype", "")
    if placed is None or not memory or placed.plan is None:
        return []
    if placed.level == "fits":
        spare = _spare_gib(check, spec)
        return [Effect(True, "effect.fits_spare" if spare is not None else "effect.fits", {"gib": spare})]
    if placed.level in ("tight", "unlikely"):
        return [Effect(False, f"effect.{placed.level}")]
    return []


def _spare_gib(check: preflight.Check, spec: DeploymentSpec) -> float | None:
    """GiB of the cache beyond what the wanted conversations take, on each GPU."""
    placed = check.placement
    if placed is None or placed.plan is None or not placed.plan.ranks or placed.people is None:
        return None
    cache, people = placed.plan.ranks[0].kv.value, placed.people.value
    wanted = spec.people or 1
    if not cache or not people or people < wanted:
        return None
    return round(cache * (1 - wanted / people), 1)


def find(row: Deployment, key: str, actor: Any = None) -> Fix | None:
    """The fix of this key among those that are offered now."""
    return next((fix for fix in of(row, actor) if fix.key == key), None)


def as_dict(fix: Fix) -> dict[str, Any]:
    """What is kept of a fix that was applied."""
    return {"fix": fix.code, "params": dict(fix.params)}
