"""What another value of one setting would do to memory at the same place: the words beside it. Pure.

Everything else stays as it is, the share of the GPU too, so that the difference is that of the setting alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.placement import HostView, Placement
from deployments.planner.asked import LORA_RANK, Asked, Need, asked_of, flags_of, typed_among_flags
from deployments.planner.fit import Estimator
from deployments.planner.ranking import plan
from deployments.planner.search import Spot
from deployments.spec import DeploymentSpec
from models_catalog.estimate import Plan
from models_catalog.estimate.need import Fit

FEW_REQUESTS, MANY_REQUESTS = 64, 256
FEW_TOKENS, MANY_TOKENS = 2048, 8192
SMALL_BLOCK, LARGE_BLOCK = 16, 64
MOST_LORAS, HIGH_RANK = 4, 64
LEAST_GIB = 0.05  # less is not told
TOO_MUCH = ("no", "unlikely")
SWITCHES = ("enforce_eager", "disable_hybrid_kv_cache_manager", "language_model_only", "enable_lora")


@dataclass(frozen=True)
class Effect:
    """With `value` instead of `now` (None: not known). `parts` are GiB more on a GPU by kind, as bars name them.

    `people` are requests at once now and then, None where they are not known. `fits` is false where that value alone
    is too much, `helps` is true where what is asked for fits with it and not without.
    """

    name: str
    value: Any
    now: Any = None
    parts: Mapping[str, float] = field(default_factory=dict)
    people: tuple[int, int] | None = None
    fits: bool = True
    helps: bool = False


def effects(
    spec: DeploymentSpec,
    hosts: Sequence[HostView],
    model_facts: Mapping[str, Any],
    need: Need,
    spot: Spot,
    estimator: Estimator,
) -> tuple[Effect, ...]:
    """One for each setting whose effect the estimate knows here; none where it has no numbers."""
    asked = asked_of(spec, need)
    now = estimator.fit(asked, spot.setting, spot.share)  # that of the spot is of less, where less alone would fit
    if now.plan is None or not now.plan.ranks or now.plan.ranks[0].kv.value is None:
        return ()
    if spot.setting.gpu.cpu:
        more = estimator.fit(asked, spot.setting, spot.share + 1)
        return _known([_effect("kv_cache_gib", round(spot.share + 1), round(spot.share), now, more)])
    found = []
    for name, (value, old) in _others(spec, now.plan).items():
        if not typed_among_flags(spec, name):
            changed = _with(spec, need, name, value)
            found.append(_effect(name, value, old, now, estimator.fit(changed, spot.setting, spot.share)))
    found.append(_other_count(spec, hosts, model_facts, need, spot, estimator, now))
    return _known(found)


def _known(found: Sequence[Effect | None]) -> tuple[Effect, ...]:
    return tuple(effect for effect in found if effect is not None)


def _with(spec: DeploymentSpec, need: Need, name: str, value: Any) -> Asked:
    return asked_of(spec.model_copy(update={"options": {**spec.options, name: value}}), need)


def _others(spec: DeploymentSpec, now: Plan) -> dict[str, tuple[Any, Any]]:
    """{option: (another sensible value, the one that counts now)}."""
    flags, batch = flags_of(spec), now.ranks[0].activation.reason.params
    found: dict[str, tuple[Any, Any]] = {name: (not (on := _is_on(flags.get(name))), on) for name in SWITCHES}
    narrow = str(flags.get("kv_cache_dtype") or "auto").startswith("fp8")
    found["kv_cache_dtype"] = ("auto", "fp8") if narrow else ("fp8", "auto")
    requests, tokens = batch.get("sequences"), batch.get("tokens")
    if requests:
        found["max_num_seqs"] = (FEW_REQUESTS if requests > FEW_REQUESTS else MANY_REQUESTS, requests)
    if tokens:
        found["max_num_batched_tokens"] = (FEW_TOKENS if tokens > FEW_TOKENS else MANY_TOKENS, tokens)
    block = flags.get("block_size")
    found["block_size"] = (SMALL_BLOCK if block == LARGE_BLOCK else LARGE_BLOCK, block)
    if _is_on(flags.get("enable_lora")):
        loras, rank = flags.get("max_loras") or 1, flags.get("max_lora_rank") or LORA_RANK
        found["max_loras"] = (1 if loras == MOST_LORAS else MOST_LORAS, loras)
        found["max_lora_rank"] = (LORA_RANK if rank == HIGH_RANK else HIGH_RANK, rank)
    return found


def _is_on(value: Any) -> bool:
    return value is True or str(value).lower() in ("true", "1")


def _effect(name: str, value: Any, now: Any, before: Fit, after: Fit) -> Effect | None:
    if before.plan is None or after.plan is None or not after.plan.ranks:
        return None
    parts: dict[str, float] = {}
    pair = (before.plan.ranks[0], after.plan.ranks[0])
    for kind, part in zip("wagok", ("weights", "activation", "graphs", "overhead", "kv"), strict=True):
        old, new = (getattr(rank, part).value for rank in pair)
        if old is None or new is None:
            return None
        if abs(new - old) >= LEAST_GIB:
            parts[kind] = new - old
    fitted, fits = before.level not in TOO_MUCH, after.level not in TOO_MUCH
    return Effect(name, value, now, parts, _people(before, after), fits or not fitted, fits and not fitted)


def _people(before: Fit, after: Fit) -> tuple[int, int] | None:
    """Whole requests of the same length."""
    if before.people is None or after.people is None or before.context != after.context:
        return None
    if before.people.value is None or after.people.value is None:
        return None
    return int(before.people.value), max(0, int(after.people.value))


def _other_count(
    spec: DeploymentSpec,
    hosts: Sequence[HostView],
    model_facts: Mapping[str, Any],
    need: Need,
    spot: Spot,
    estimator: Estimator,
    now: Fit,
) -> Effect | None:
    """Two GPUs of the same host, or one where there are several; planned, since others may hold them."""
    wanted = len(spot.gpus)
    count = 1 if wanted > 1 else 2
    if spec.gpu_uuids or count > sum(gpu.present for gpu in spot.host.gpus):
        return None
    if any(name in flags_of(spec) for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")):
        return None
    there = [host for host in hosts if host.id == spot.host.id]
    other = spec.model_copy(update={"gpu_count": count, "host_id": spot.host.id})
    found = plan(other, there, model_facts, need, estimator=estimator)
    if not isinstance(found, Placement):
        return None if now.level in TOO_MUCH else Effect("gpu_count", count, wanted, fits=False)
    after = Fit(found.level, found.plan, found.context, found.people)
    return _effect("gpu_count", count, wanted, now, after)
