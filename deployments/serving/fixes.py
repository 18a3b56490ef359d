"""What would help against a finding: changes of the settings that the planner accepts, a restart, or what people do.

Candidates stand in the order in which they cost least; of the changes those are offered that would start.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deployments import around_now, patching, preflight, remedies
from deployments.diagnosis import offers
from deployments.diagnosis.reader import match
from deployments.diagnosis.result import Evidence
from deployments.diagnosis.serving_window import Symptom
from deployments.mending import edits, turn
from deployments.mending.fix import Fix
from deployments.mending.making import patch_fix
from deployments.models import Deployment, Run
from deployments.placement import DEFAULT_UTILISATION
from deployments.planner.asked import flags_of
from deployments.spec import DeploymentSpec

log = logging.getLogger(__name__)

MOST_SHARE, LEAST_SHARE, STEP_SHARE = 0.95, 0.5, 0.05
BLOCK = 1024  # tokens to which a longer context is rounded up
CHANCE = 60  # of all alike: their order says which comes first
MOST, MOST_TRIED = 3, 6  # that are offered, and changes of which the planner is asked


@dataclass(frozen=True)
class Now:
    """What the run was started with."""

    spec: DeploymentSpec
    placement: Mapping[str, Any]

    @property
    def on_gpu(self) -> bool:
        return self.placement.get("device") == "gpu"

    @property
    def share(self) -> float:
        told = self.said("gpu_memory_utilization") or self.placement.get("utilisation")
        return float(told or DEFAULT_UTILISATION)

    @property
    def kv_gib(self) -> int:
        return int(self.spec.kv_cache_gib or self.placement.get("kv_cache_gib") or 0)

    def said(self, name: str) -> Any:
        """A number that the settings say of an option, wherever it stands; None where they say none."""
        value = edits.value_of(self.spec, name)
        if not isinstance(value, str):
            return value
        try:
            return float(value) if "." in value else int(value)
        except ValueError:
            return value

    def option(self, name: str, to: Any, cost: str, before: Any = None) -> list[Fix]:
        return patch_fix(self.spec, name, edits.with_option(self.spec, name, to), to, chance=CHANCE, cost=cost,
                         before=before)  # fmt: skip

    def cache(self, gib: int, cost: str) -> list[Fix]:
        """Memory for conversations on a CPU."""
        return patch_fix(self.spec, "kv_cache_gib", {"kv_cache_gib": gib}, gib, chance=CHANCE, cost=cost,
                         before=self.kv_gib)  # fmt: skip


def _more_cache(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    """More room for conversations."""
    if not now.on_gpu:
        if now.kv_gib:
            yield from now.cache(max(now.kv_gib + 1, math.ceil(now.kv_gib * 1.5)), "memory")
        return
    share = round(min(MOST_SHARE, now.share + STEP_SHARE), 2)
    if share > now.share:
        yield from now.option("gpu_memory_utilization", share, "", now.share)
    if now.said("kv_cache_dtype") in (None, "auto"):
        yield from now.option("kv_cache_dtype", "fp8", "quality")


def _fewer_at_once(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    """Fewer requests in one step: each that waits is better off than one that starts over."""
    most, before = int(params.get("most") or 0), now.said("max_num_seqs")
    few = max(1, int(most * 0.75))
    if most > 1 and (not isinstance(before, int) or few < before):
        yield from now.option("max_num_seqs", few, "")


def _preempting(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    yield from _more_cache(now, params)
    yield from _fewer_at_once(now, params)


def _more_at_once(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    limit = now.said("max_num_seqs")
    if isinstance(limit, int):
        yield from now.option("max_num_seqs", 2 * limit, "speed")


def _less_memory(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    share = round(max(LEAST_SHARE, now.share - STEP_SHARE), 2)
    if now.on_gpu and share < now.share:
        yield from now.option("gpu_memory_utilization", share, "context", now.share)
    if not now.on_gpu and now.kv_gib > 1:
        yield from now.cache(max(1, int(now.kv_gib * 0.75)), "context")
    yield from _fewer_at_once(now, params)


def _longer(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    asked, before = params.get("asked"), now.said("max_model_len")
    if asked and isinstance(before, int) and asked > before:
        yield from now.option("max_model_len", math.ceil(asked / BLOCK) * BLOCK, "memory")


def _graphs(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    patch = edits.without_option(now.spec, "enforce_eager") if now.said("enforce_eager") else None
    if patch is not None:
        yield Fix("patch", "fix.graphs", patch=patch, option="enforce_eager", chance=CHANCE)


def _own_template(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    """The model's own chat template, where another was set."""
    patch = edits.without_option(now.spec, "chat_template")
    if patch is not None:
        yield Fix("patch", "fix.drop", {"names": ["chat_template"]}, patch=patch, option="chat_template", chance=CHANCE)


HELPS: dict[str, Callable[[Now, Mapping[str, Any]], Iterator[Fix]]] = {
    "serve.kv_full": _more_cache,
    "serve.preempting": _preempting,
    "serve.waiting_memory": _more_cache,
    "serve.waiting_limit": _more_at_once,
    "serve.memory_short": _less_memory,
    "serve.long": _longer,
    "serve.slow": _graphs,
    "serve.role_markers": _own_template,
}
RESTART = Fix("again", "fix.restart")
# What no setting does, after the changes.
BESIDE: dict[str, tuple[Fix, ...]] = {
    "serve.silent": (RESTART,),
    "serve.dead": (RESTART,),
    "serve.mute": (RESTART,),
    "serve.creeping": (RESTART,),
    "serve.creeping_gpu": (RESTART,),
    "serve.role_markers": (
        Fix("model", "fix.instruct", link="models"),
        Fix("settings", "fix.template", option="chat_template", link="settings"),
    ),
}


def _of_class(now: Now, row: Deployment, symptom: Symptom, fleet: preflight.Fleet) -> list[Fix]:
    """What helps against the class that its log tells of. Whose memory it is concerns nobody who looks at the page."""
    rule, log = match(now.spec.engine, str(symptom.params.get("line") or ""))
    if rule is None or rule.code != symptom.params.get("cause"):
        return []
    options = {name.replace("-", "_"): value for name, value in flags_of(now.spec).items()}
    made = offers.offers(rule, log, {}, Evidence(options=options))
    around = replace(around_now.of_run(row.run, now.spec, fleet, own=row.pk), holders=())
    return [RESTART if fix.kind == "again" else fix for fix in turn.fixes_of(rule.code, made, now.spec, around)]


def _candidates(now: Now, row: Deployment, symptom: Symptom, fleet: preflight.Fleet | None) -> Iterator[Fix]:
    if symptom.code in HELPS:
        yield from HELPS[symptom.code](now, symptom.params)
    if symptom.code == "serve.logged" and fleet is not None:  # None: the model left the catalog
        yield from _of_class(now, row, symptom, fleet)
    if symptom.code == "serve.waiting":
        yield Fix("settings", "fix.second", link="second", target=now.spec.artifact_id)
    yield from BESIDE.get(symptom.code, ())


def fixes_for(row: Deployment, symptom: Symptom) -> dict[str, Any]:
    """{fix: the first change that would help and that the planner accepts, more: what helps as well}, as a row keeps
    them. Never raises: a finding is worth saying alone.
    """
    found: list[Fix] = []
    try:
        now = Now(DeploymentSpec.model_validate(row.revision.spec), row.run.placement)
        found = _accepted(now, row, symptom)
    except Exception:
        log.exception("no change could be checked for %s of %s", symptom.code, row.name)
    first = next((fix for fix in found if fix.kind == "patch"), None)
    return {"fix": first and first.kept(), "more": [fix.kept() for fix in found if fix is not first]}


def _accepted(now: Now, row: Deployment, symptom: Symptom) -> list[Fix]:
    if symptom.code not in {*HELPS, *BESIDE, "serve.logged", "serve.waiting"}:
        return []
    fleet = preflight.Fleet.of(now.spec, row.run_id)  # the change starts it anew
    found: list[Fix] = []
    tried = 0
    for fix in _candidates(now, row, symptom, fleet):
        if len(found) >= MOST:
            break
        if fix.kind != "patch":
            found.append(fix)
        elif tried < MOST_TRIED:
            tried += 1
            check = patching.tried(now.spec, fix.patch, row.name, fleet=fleet)
            if check is not None and check.ok:
                found.append(fix.told(*remedies.effects(check, fix.option, now.spec)))
    return found


def still_helps(row: Deployment, fix: Mapping[str, Any]) -> bool:
    """Whether the planner accepts a kept change now as well: what serves is not stopped for a start that could only
    fail. Asks, and writes nothing.
    """
    spec = DeploymentSpec.model_validate(row.revision.spec)
    check = patching.tried(spec, fix["patch"], row.name, fleet=preflight.Fleet.of(spec, row.run_id))
    return check is not None and check.ok


def offered(run: Run | None, family: str, key: str = "") -> dict[str, Any] | None:
    """The change of this key that a kept finding offers; without one its first."""
    found = run.findings.get("found", []) if run is not None else []
    changes = [fix for each in found if each["family"] == family for fix in all_of(each) if _is_change(fix)]
    return next((fix for fix in changes if not key or Fix.of_kept(fix).key == key), None)


def all_of(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that a kept finding offers; rows of earlier have one at most."""
    return [fix for fix in (kept.get("fix"), *kept.get("more", ())) if fix]


def _is_change(fix: Mapping[str, Any]) -> bool:
    return fix.get("kind", "patch") == "patch"


def take_back(run: Run, family: str, fix: Mapping[str, Any]) -> None:
    """Offer a change of a finding no more. Holds only while the row says what was read."""
    kept = run.findings
    without = [_without(each, fix) if each["family"] == family else each for each in kept["found"]]
    Run.objects.filter(pk=run.pk, findings=kept).update(findings={**kept, "found": without})


def _without(kept: dict[str, Any], fix: Mapping[str, Any]) -> dict[str, Any]:
    left = [each for each in all_of(kept) if each != fix]
    first = next((each for each in left if _is_change(each)), None)
    return {**kept, "fix": first, "more": [each for each in left if each is not first]}
