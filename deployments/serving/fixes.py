"""The change that would help against a finding: a patch of the settings that the planner accepts, or none.

Candidates stand in the order in which they cost least; the first that would start is offered.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments import patching, preflight
from deployments.diagnosis.serving import Finding
from deployments.models import Deployment, Run
from deployments.placement import DEFAULT_UTILISATION
from deployments.spec import DeploymentSpec

log = logging.getLogger(__name__)

MOST_SHARE, LEAST_SHARE, STEP_SHARE = 0.95, 0.5, 0.05
BLOCK = 1024  # tokens to which a longer context is rounded up


@dataclass(frozen=True)
class Fix:
    """A change: its words as a code with numbers, and the fields of the spec that it sets."""

    code: str
    params: Mapping[str, Any] = field(default_factory=dict)
    patch: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As a row keeps it."""
        return {"code": self.code, "params": dict(self.params), "patch": dict(self.patch)}


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
        told = self.spec.options.get("gpu_memory_utilization") or self.placement.get("utilisation")
        return float(told or DEFAULT_UTILISATION)

    @property
    def kv_gib(self) -> int:
        return int(self.spec.kv_cache_gib or self.placement.get("kv_cache_gib") or 0)

    def options(self, **changed: Any) -> dict[str, Any]:
        """The options whole, as a patch has them."""
        return {"options": {**self.spec.options, **changed}}


def _more_cache(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    """More room for conversations."""
    if not now.on_gpu:
        if now.kv_gib:
            more = max(now.kv_gib + 1, math.ceil(now.kv_gib * 1.5))
            yield Fix("fix.more_kv", {"before": now.kv_gib, "after": more}, {"kv_cache_gib": more})
        return
    share = round(min(MOST_SHARE, now.share + STEP_SHARE), 2)
    if share > now.share:
        yield Fix("fix.more_share", {"before": now.share, "after": share}, now.options(gpu_memory_utilization=share))
    if now.spec.options.get("kv_cache_dtype") in (None, "auto"):
        yield Fix("fix.kv_fp8", {}, now.options(kv_cache_dtype="fp8"))


def _fewer_at_once(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    """Fewer requests in one step: each that waits is better off than one that starts over."""
    most = int(params.get("most") or 0)
    few = max(1, int(most * 0.75))
    before = now.spec.options.get("max_num_seqs")
    if most > 1 and (before is None or few < before):
        yield Fix("fix.fewer_sequences", {"after": few}, now.options(max_num_seqs=few))


def _preempting(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    yield from _more_cache(now, params)
    yield from _fewer_at_once(now, params)


def _more_at_once(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    limit = now.spec.options.get("max_num_seqs")
    if isinstance(limit, int):
        yield Fix("fix.more_sequences", {"before": limit, "after": 2 * limit}, now.options(max_num_seqs=2 * limit))


def _less_memory(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    share = round(max(LEAST_SHARE, now.share - STEP_SHARE), 2)
    if now.on_gpu and share < now.share:
        yield Fix("fix.less_share", {"before": now.share, "after": share}, now.options(gpu_memory_utilization=share))
    if not now.on_gpu and now.kv_gib > 1:
        less = max(1, int(now.kv_gib * 0.75))
        yield Fix("fix.less_kv", {"before": now.kv_gib, "after": less}, {"kv_cache_gib": less})
    yield from _fewer_at_once(now, params)


def _longer(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    asked, before = params.get("asked"), now.spec.options.get("max_model_len")
    if asked and isinstance(before, int) and asked > before:
        longer = math.ceil(asked / BLOCK) * BLOCK
        yield Fix("fix.longer", {"before": before, "after": longer}, now.options(max_model_len=longer))


def _graphs(now: Now, params: Mapping[str, Any]) -> Iterator[Fix]:
    if now.spec.options.get("enforce_eager"):
        kept = {name: value for name, value in now.spec.options.items() if name != "enforce_eager"}
        yield Fix("fix.graphs", {}, {"options": kept})


HELPS: dict[str, Callable[[Now, Mapping[str, Any]], Iterator[Fix]]] = {
    "serve.kv_full": _more_cache,
    "serve.preempting": _preempting,
    "serve.waiting_memory": _more_cache,
    "serve.waiting_limit": _more_at_once,
    "serve.memory_short": _less_memory,
    "serve.long": _longer,
    "serve.slow": _graphs,
}


def fix_for(row: Deployment, finding: Finding) -> dict[str, Any] | None:
    """The first change that would help and that the planner accepts. Never raises: a finding is worth saying alone."""
    if finding.code not in HELPS:
        return None
    try:
        now = Now(DeploymentSpec.model_validate(row.revision.spec), row.run.placement)
        fleet = preflight.Fleet.of(now.spec, row.run_id)  # the change starts it anew
        for fix in HELPS[finding.code](now, finding.params):
            check = patching.tried(now.spec, fix.patch, row.name, fleet=fleet)
            if check is not None and check.ok:
                return fix.as_dict()
    except Exception:
        log.exception("no change could be checked for %s of %s", finding.code, row.name)
    return None


def still_helps(row: Deployment, family: str, fix: Mapping[str, Any]) -> bool:
    """Whether the planner accepts a kept change now as well: what serves is not stopped for a start that could only
    fail. One that it does not accept is offered no more.
    """
    spec = DeploymentSpec.model_validate(row.revision.spec)
    check = patching.tried(spec, fix["patch"], row.name, fleet=preflight.Fleet.of(spec, row.run_id))
    if check is not None and check.ok:
        return True
    kept = row.run.findings
    without = [{**each, "fix": None} if each["family"] == family else each for each in kept["found"]]
    Run.objects.filter(pk=row.run_id, findings=kept).update(findings={**kept, "found": without})
    return False
