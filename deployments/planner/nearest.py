"""What would make it fit, when nothing does: the nearest changes, each checked by planning with it. Pure.

A change of the spec carries the fields to set; what must be done elsewhere (a run stops, another program ends) carries
none and is the second verdict: it fits if that stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.engines.base import Reason
from deployments.placement import Change, CopyView, GpuView, HostView, NoPlacement, Placement
from deployments.planner import length, rules
from deployments.planner.asked import Need, asked_of, typed_among_flags
from deployments.planner.fit import Estimator
from deployments.planner.inverse import longest_context
from deployments.planner.ranking import plan
from deployments.spec import DeploymentSpec
from models_catalog.estimate.need import ENOUGH, LEAST_CONTEXT

FEW_SEQUENCES, FEW_TOKENS = 16, 2048  # of one step: what little the engine's trial run then needs
COUNTS = (1, 2, 4, 8)  # GPUs
MOST_HOSTS, MOST_TWINS, MOST_STOPS, MOST_TRIES = 8, 5, 3, 200
HELD = frozenset({"gpu.busy", "gpu.reserved", "gpu.used_by_others", "host.ram_reserved", "host.ram_used"})
SIZE = frozenset(
    {"gpu.too_small", "gpu.too_small_each", "gpu.share_too_small", "host.ram_too_small", "host.kv_too_small"}
)
SHAPE = frozenset({"gpu.too_few", "parallel.heads", "parallel.vocabulary", "parallel.kv_heads", "parallel.groups"})
LENGTH = frozenset({length.CODE})
QUALITY_LAST = ("change.kv_fp8", "change.twin", "change.twin_away")
SLOW, TWIN = "change.gpus_slow", "change.twin"


@dataclass(frozen=True)
class Twin:
    """Another form of the same model, e.g. a quantised one; `copies` by host, none where no host has it yet."""

    artifact_id: int
    name: str
    model_facts: Mapping[str, Any]
    copies: Mapping[int, CopyView] = field(default_factory=dict)
    size_bytes: int = 0
    model_id: int = 0


@dataclass
class _Try:
    """The question as it was, and ways to ask it changed."""

    spec: DeploymentSpec
    hosts: Sequence[HostView]
    model_facts: Mapping[str, Any]
    need: Need
    estimator: Estimator
    codes: frozenset[str]

    def options(self, **values: Any) -> dict[str, Any] | None:
        """The patch that sets these options; None where one of them stands among the further flags."""
        if any(typed_among_flags(self.spec, name) for name in values):
            return None
        return {"options": {**self.spec.options, **values}}

    def change(self, code: str, patch: Mapping[str, Any] | None, **params: Any) -> Change | None:
        """The change, when planning with it finds a place that holds the need."""
        if patch is None:
            return None
        spec = self.spec.model_copy(update=dict(patch))
        found = plan(spec, self.hosts, self.model_facts, self.need, estimator=self.estimator)
        if not isinstance(found, Placement) or found.level not in ENOUGH:
            return None
        return Change(Reason(code, params), patch, found.host_id, found)


def nearest(
    spec: DeploymentSpec,
    hosts: Sequence[HostView],
    model_facts: Mapping[str, Any],
    found: NoPlacement,
    need: Need | None = None,
    *,
    twins: Sequence[Twin] = (),
    estimator: Estimator | None = None,
) -> tuple[Change, ...]:
    """Each single change that is enough, the nearest first; empty where memory is not what is missing."""
    codes = frozenset(candidate.reason.code for candidate in found.reasons)
    if not codes & (HELD | SIZE | SHAPE | LENGTH):
        return ()
    need = need or Need()
    asks = estimator or Estimator.of(model_facts, spec.task)
    question = _Try(spec, _likeliest(hosts), model_facts, need, asks, codes)
    if codes & LENGTH:  # whatever else were changed, the engine would refuse it
        shorter = _context(question)
        return (shorter,) if shorter is not None else ()
    makers: tuple[Callable[[_Try], Change | None], ...] = (
        _share, _kv_gib, _context, _fp8_cache, _sequences, _eager, _gpus,
    )  # fmt: skip
    changes = [change for make in makers if (change := make(question)) is not None]
    if not changes:
        changes = [change for change in (_together(question),) if change is not None]
    changes += _twins(question, twins, hosts)
    changes += _stops(question) if codes & HELD else []
    if need.priority == "quality":  # what changes answers comes after what changes only how much fits
        changes.sort(key=lambda change: change.reason.code in QUALITY_LAST)
    if need.priority == "speed":
        changes.sort(key=lambda change: change.reason.code == "change.eager")
    return tuple(_slow_behind_twins(changes))


def _slow_behind_twins(changes: list[Change]) -> list[Change]:
    """GPUs that no fast link joins wait for each other at every word: a smaller form of the model comes before them."""
    twins = [place for place, change in enumerate(changes) if change.reason.code == TWIN]
    slow = [change for change in changes if change.reason.code == SLOW]
    if not twins or not slow:
        return changes
    before, after = changes[: twins[-1] + 1], changes[twins[-1] + 1 :]
    return [change for change in before if change not in slow] + slow + [c for c in after if c not in slow]


def _likeliest(hosts: Sequence[HostView]) -> list[HostView]:
    return _largest([host for host in hosts if any(copy.present for copy in host.copies)])


def _largest(hosts: Sequence[HostView]) -> list[HostView]:
    """The hosts with most memory, on a GPU and then free: the search is short in a large fleet too."""

    def size(host: HostView) -> tuple[int, int, int]:
        cards = [gpu for gpu in host.gpus if gpu.present]
        largest = max((gpu.total_mib for gpu in cards), default=0)
        return largest, max((gpu.free_mib for gpu in cards), default=0), host.ram_total_mib

    there = [host for host in hosts if not host.lost]
    return sorted(there, key=size, reverse=True)[:MOST_HOSTS]


# --- of the spec -----------------------------------------------------------------------------------------------------


def _share(question: _Try) -> Change | None:
    """Another share than the chosen one."""
    if "gpu_memory_utilization" not in question.spec.options:
        return None
    options = {k: v for k, v in question.spec.options.items() if k != "gpu_memory_utilization"}
    free = question.change("change.share", {"options": options})
    if free is None or free.placement is None or free.placement.device != "gpu":
        return None
    share = free.placement.utilisation
    return question.change("change.share", question.options(gpu_memory_utilization=share), share=share)


def _kv_gib(question: _Try) -> Change | None:
    """Another size of the cache on a CPU than the chosen one."""
    if question.spec.kv_cache_gib is None:
        return None
    free = question.change("change.kv_gib", {"kv_cache_gib": None})
    if free is None or free.placement is None or free.placement.device != "cpu":
        return None
    size = free.placement.kv_cache_gib
    return question.change("change.kv_gib", {"kv_cache_gib": size}, kv_gib=size)


def _context(question: _Try) -> Change | None:
    """The longest context that fits, in steps of 1,024."""
    people = question.need.people or 1
    answer = longest_context(question.spec, question.hosts, question.model_facts, people, estimator=question.estimator)
    wanted = max(question.need.context or 0, asked_of(question.spec).context or 0)
    least = min(LEAST_CONTEXT, question.estimator.longest or LEAST_CONTEXT)
    if answer is None or answer.value < least or (wanted and answer.value >= wanted):
        return None
    shorter = replace(question, need=replace(question.need, context=None))
    patch = question.options(max_model_len=answer.value)
    return shorter.change("change.context", patch, context=answer.value, people=people)


def _fp8_cache(question: _Try) -> Change | None:
    """Keys and values in eight bits, where the cards are known to do that."""
    if asked_of(question.spec).options.kv_type != "auto":
        return None
    able = [replace(host, gpus=tuple(g for g in host.gpus if rules.can_fp8_cache([g]))) for host in question.hosts]
    there = replace(question, hosts=[host for host in able if host.gpus])
    return there.change("change.kv_fp8", question.options(kv_cache_dtype="fp8"))


def _sequences(question: _Try) -> Change | None:
    """Fewer requests in one step."""
    few = max(FEW_SEQUENCES, question.need.people or 0)
    now = asked_of(question.spec).options
    if (now.sequences or 10**6) <= few and (now.batched_tokens or 10**6) <= FEW_TOKENS:
        return None
    patch = question.options(max_num_seqs=few, max_num_batched_tokens=FEW_TOKENS)
    return question.change("change.sequences", patch, sequences=few, tokens=FEW_TOKENS)


def _eager(question: _Try) -> Change | None:
    """No CUDA graphs."""
    if asked_of(question.spec).options.eager:
        return None
    return question.change("change.eager", question.options(enforce_eager=True))


def _gpus(question: _Try) -> Change | None:
    """Another number of GPUs: more where the memory is short, fewer where there are not so many."""
    spec, asked = question.spec, asked_of(question.spec)
    if spec.gpu_uuids or spec.device == "cpu" or asked.pp * asked.dp > 1:
        return None
    now = max(asked.tp or 1, spec.gpu_count)
    counts = COUNTS if question.codes & SHAPE else [count for count in COUNTS if count > now]
    for count in sorted(counts, key=lambda count: abs(count - now)):
        patch: dict[str, Any] | None = {"gpu_count": count}
        if asked.tp is not None:
            patch = question.options(tensor_parallel_size=count)
            patch = {**patch, "gpu_count": count} if patch is not None else None
        if count != now and (change := question.change("change.gpus", patch, gpus=count)) is not None:
            return _linked(change)
    return None


def _linked(change: Change) -> Change:
    """Said otherwise where these GPUs have no fast link."""
    notes = change.placement.notes if change.placement is not None else ()
    slow = any(note.code == "gpu.slow_link" for note in notes)
    return replace(change, reason=replace(change.reason, code=SLOW)) if slow else change


def _together(question: _Try) -> Change | None:
    """All that costs only speed, and then a smaller cache as well, where no one change is enough."""
    few = max(FEW_SEQUENCES, question.need.people or 0)
    values: dict[str, Any] = {"max_num_seqs": few, "max_num_batched_tokens": FEW_TOKENS, "enforce_eager": True}
    found = question.change("change.together", question.options(**values), sequences=few)
    if found is not None:
        return found
    able = [host for host in question.hosts if rules.can_fp8_cache([gpu for gpu in host.gpus if gpu.present])]
    patch = question.options(**values, kv_cache_dtype="fp8")
    return replace(question, hosts=able).change("change.together_fp8", patch, sequences=few)


def _twins(question: _Try, twins: Sequence[Twin], all_hosts: Sequence[HostView]) -> list[Change]:
    """Other forms of the model that fit; those that lie on a host, else those that could be fetched."""
    here = [twin for twin in twins if twin.copies][:MOST_TWINS]
    found = [change for twin in here if (change := _twin(question, twin, all_hosts)) is not None]
    away = [] if found else [twin for twin in twins if not twin.copies][:MOST_TWINS]
    return found or [change for twin in away if (change := _twin(question, twin, all_hosts)) is not None]


def _twin(question: _Try, twin: Twin, all_hosts: Sequence[HostView]) -> Change | None:
    hosts = [replace(host, copies=(twin.copies[host.id],)) for host in all_hosts if host.id in twin.copies]
    if not twin.copies:  # as if each host had it
        hosts = [replace(host, copies=(CopyView(0, "", twin.size_bytes),)) for host in _largest(all_hosts)]
    asks = Estimator.of(twin.model_facts, question.spec.task)
    other = replace(question, hosts=hosts, model_facts=twin.model_facts, estimator=asks)
    change = other.change(TWIN, {"artifact_id": twin.artifact_id}, name=twin.name)
    if change is None or twin.copies:
        return change
    params = {"name": twin.name, "artifact": twin.artifact_id, "model": twin.model_id}
    return Change(Reason("change.twin_away", params), host_id=change.host_id)


# --- elsewhere -------------------------------------------------------------------------------------------------------


def _stops(question: _Try) -> list[Change]:
    """Runs of ours, each alone or all of a host, and programs of others: what would have to stop."""
    found: list[Change] = []
    tries = 0
    for host in question.hosts:
        for change, without in _stoppable(host):
            tries += 1
            if tries > MOST_TRIES or len(found) >= MOST_STOPS:
                return found
            placed = plan(question.spec, [without], question.model_facts, question.need, estimator=question.estimator)
            if isinstance(placed, Placement) and placed.level != "unlikely":
                found.append(replace(change, host_id=host.id, placement=placed))
                break  # one of each host, the one that holds least
    return found


def _stoppable(host: HostView) -> Iterator[tuple[Change, HostView]]:
    """What could stop on a host, and the host without it: what holds the least first, then everything of ours."""
    held: dict[str, int] = {}
    names: dict[str, str] = {}
    for claim in (*host.ram_claims, *(claim for gpu in host.gpus for claim in gpu.claims)):
        held[claim.holder] = held.get(claim.holder, 0) + claim.mib
        names[claim.holder] = claim.name
    ours = [holder for holder in sorted(held, key=held.__getitem__) if names[holder]]
    for holder in ours:
        reason = Reason("change.stop", {"names": [names[holder]], "host": host.name})
        yield Change(reason), host.without(frozenset({holder}))
    for gpu in host.gpus:
        if gpu.others:
            yield Change(_ended(host, gpu)), _with(host, gpu.without_others())
    if len(ours) > 1:
        reason = Reason("change.stop", {"names": sorted({names[holder] for holder in ours}), "host": host.name})
        yield Change(reason), host.without(frozenset(ours))


def _ended(host: HostView, gpu: GpuView) -> Reason:
    named = sorted({user.called for user in gpu.others})
    return Reason("change.end_process", {"processes": named[:5], "index": gpu.index, "host": host.name})


def _with(host: HostView, changed: GpuView) -> HostView:
    return replace(host, gpus=tuple(changed if gpu.uuid == changed.uuid else gpu for gpu in host.gpus))
