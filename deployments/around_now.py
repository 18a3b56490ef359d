"""The place of a start as it is now, for the fixes that fit it (mending/around.py). Reads only.

Of a start that failed, and of one that is only checked: what is known of the place is put together in one function,
from one reading of the fleet.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deployments import preflight
from deployments.engines import parsers
from deployments.engines.base import RuntimeFacts, version_key
from deployments.mending.around import Around, Engine, Form, Holder
from deployments.models import Run
from deployments.placement import Claim, HostView
from deployments.spec import DeploymentSpec
from models_catalog import code_at_start, repairs
from models_catalog.models import Copy
from panel.fleet.models import Host, Runtime
from panel.fleet.runtimes import packages

MOST_FORMS = 3


@dataclass(frozen=True)
class _Place:
    """Where something was started or would be. `gpu_uuids` empty: whichever."""

    host: Host
    runtime: Runtime | None
    copy: Copy | None
    on_gpu: bool
    gpu_uuids: frozenset[str] = frozenset()
    kv_cache_gib: int | None = None
    port_holder: str = ""


def of_run(run: Run | None, spec: DeploymentSpec, fleet: preflight.Fleet, *, own: int | None) -> Around:
    """Where the run was; before any run the chosen host, or the one that has the model. `own`: the deployment."""
    host = _host(run, spec, fleet)
    if host is None:
        return Around(model=fleet.artifact.model_id)
    placed = run.placement if run is not None else {}
    uuids = frozenset(placed.get("gpu_uuids") or [])
    on_gpu = bool(uuids) or (run is None and bool(_view(fleet, host).gpus))
    place = _Place(
        host, _runtime(run, spec, _engines(host, spec)), _copy(run, host), on_gpu, uuids, placed.get("kv_cache_gib"),
        str((run.diagnosis if run is not None else {}).get("port_holder") or ""),
    )  # fmt: skip
    return _around(place, spec, fleet, own)


def of_check(
    check: preflight.Check, spec: DeploymentSpec, fleet: preflight.Fleet | None, *, own: int | None, whole: bool = True
) -> Around:
    """Where the planner would start it. Without `whole` only what costs no query: enough where nothing was refused."""
    if fleet is None or check.host is None or check.runtime is None or check.copy is None:
        return Around(model=fleet.artifact.model_id if fleet is not None else None)
    kv_gib = check.placement.kv_cache_gib if check.placement is not None else None
    uuids = frozenset(gpu.uuid for gpu in check.gpus)
    place = _Place(check.host, check.runtime, check.copy, bool(uuids), uuids, kv_gib)
    return _around(place, spec, fleet, own) if whole else _seen(place, fleet)


def _seen(place: _Place, fleet: preflight.Fleet) -> Around:
    """What is known without a query."""
    host, runtime, copy, facts = place.host, place.runtime, place.copy, fleet.artifact.facts
    flags = preflight.runtime_facts(runtime) if runtime is not None else None
    return Around(
        host=host.pk,
        host_name=host.name,
        on_gpu=place.on_gpu,
        kv_cache_gib=place.kv_cache_gib,
        runtime=Engine(runtime.pk, runtime.version, runtime.device) if runtime is not None else None,
        python=f"{runtime.executable.rpartition('/')[0]}/python" if runtime is not None else "",
        copy=copy.pk if copy is not None else None,
        copy_path=copy.path if copy is not None else "",
        model=fleet.artifact.model_id,
        dtype=str(facts.get("dtype") or ""),
        method=_method(facts),
        kinds=parsers.kinds_of(fleet.artifact.model.name, facts),
        parsers=_parsers(flags),
        tasks=tuple(map(str, facts.get("tasks") or ())),
        port_holder=place.port_holder,
        flags=frozenset(flags.schema.by_name) if flags is not None else frozenset(),
    )


def _around(place: _Place, spec: DeploymentSpec, fleet: preflight.Fleet, own: int | None) -> Around:
    """With what the database knows of the place: engines that worked, forms of the model, who holds memory."""
    host, runtime, copy = place.host, place.runtime, place.copy
    runtimes = _engines(host, spec)
    others = [r for r in runtimes if runtime is None or (r.pk != runtime.pk and r.device == runtime.device)]
    worked = _worked(host, runtimes) if others else set()
    return replace(
        _seen(place, fleet),
        engines=tuple(Engine(r.pk, r.version, r.device, r.pk in worked) for r in others),
        plugin=_plugin(runtime),
        repairable=copy is not None and repairs.possible(copy),
        own_code=_own_code(copy),
        ggufs=tuple(_ggufs(copy)),
        twins=tuple(_twins(fleet, host))[:MOST_FORMS],
        holders=tuple(_holders(_view(fleet, host), place.gpu_uuids, own, fleet.actor)),
    )


# --- where ------------------------------------------------------------------------------------------------------------


def _host(run: Run | None, spec: DeploymentSpec, fleet: preflight.Fleet) -> Host | None:
    wanted = run.host_id if run is not None else spec.host_id
    if wanted is not None:
        return next((host for host in fleet.hosts if host.pk == wanted), None)
    with_model = (host for host in fleet.hosts if any(copy.present for copy in host.copies_here))
    return next(with_model, None)


def _view(fleet: preflight.Fleet, host: Host) -> HostView:
    return next(view for view in fleet.seen if view.id == host.pk)


def _engines(host: Host, spec: DeploymentSpec) -> list[Runtime]:
    return [r for r in host.runtimes.all() if r.engine == spec.engine and r.present and not r.refusal]


def _runtime(run: Run | None, spec: DeploymentSpec, there: list[Runtime]) -> Runtime | None:
    """The run's own, or that which a start would take."""
    wanted = run.runtime_id if run is not None else spec.runtime_id
    if wanted is not None:
        return next((row for row in there if row.pk == wanted), None)
    return max(there, key=lambda row: version_key(row.version), default=None) if run is None else None


def _copy(run: Run | None, host: Host) -> Copy | None:
    here = list(host.copies_here)
    own = [copy for copy in here if run is not None and copy.pk == run.copy_id]
    return next(iter([*own, *here]), None)


# --- what is there ----------------------------------------------------------------------------------------------------


def _worked(host: Host, runtimes: list[Runtime]) -> set[int | None]:
    ready = Run.objects.filter(host=host, runtime__in=runtimes, ready_at__isnull=False)
    return set(ready.values_list("runtime_id", flat=True).distinct())


def _plugin(runtime: Runtime | None) -> str:
    if runtime is None or not packages.lacks_plugin(runtime):
        return ""
    return "click" if packages.can_add(runtime) else "command"


def _parsers(facts: RuntimeFacts | None) -> dict[str, tuple[str, ...]]:
    """The parsers of tool calls and thoughts that the engine has, as far as its host told."""
    found = {name: facts.schema.get(name) for name in parsers.OPTIONS} if facts is not None else {}
    return {name: option.known for name, option in found.items() if option is not None and option.known}


def _own_code(copy: Copy | None) -> bool:
    return copy is not None and bool(copy.artifact.facts.get("needs_remote_code")) and not code_at_start.may_run(copy)


def _ggufs(copy: Copy | None) -> Iterator[Form]:
    """GGUF files below the model's folder, which the catalog knows as models of their own."""
    if copy is None or copy.artifact.format == "gguf":
        return
    rows = Copy.objects.filter(host=copy.host_id, present=True, usable=True, artifact__format="gguf")
    rows = rows.filter(path__startswith=f"{copy.path.rstrip('/')}/").select_related("artifact__model")
    for row in rows.order_by("path")[:MOST_FORMS]:
        yield Form(row.artifact_id, row.path.rpartition("/")[2])


def _twins(fleet: preflight.Fleet, host: Host) -> Iterator[Form]:
    for twin in fleet.twins:
        if host.pk in twin.copies:
            yield Form(twin.artifact_id, twin.name, _method(twin.model_facts))


def _method(facts: Mapping[str, Any]) -> str:
    return str((facts.get("quantisation") or {}).get("method") or "")


def _holders(view: HostView, uuids: frozenset[str], own: int | None, actor: Any) -> Iterator[Holder]:
    """What holds memory there now, but for the deployment itself: on the place's GPUs, and the machine's.

    A deployment that the `actor` may not see has no name and no number.
    """
    claims: list[tuple[Claim, int | None]] = [(claim, None) for claim in view.ram_claims]
    for gpu in view.gpus:
        if not uuids or gpu.uuid in uuids:
            claims += [(claim, gpu.index) for claim in gpu.claims]
            for user in gpu.others:
                yield Holder(user.name or str(user.pid), user.used_mib or 0, gpu.index, None, user.pid, user.user)
    owners = _owners({claim.holder for claim, _gpu in claims if claim.name}, own)
    for claim, index in claims:
        if claim.holder in owners:
            mib, owner = claim.mib if claim.used_mib is None else claim.used_mib, owners[claim.holder]
            seen = actor is None or actor.reaches(owner)
            yield Holder(claim.name, mib, index, owner) if seen else Holder("", mib, index)


def _owners(runs: set[str], own: int | None) -> dict[str, int]:
    rows = Run.objects.filter(pk__in=runs).values_list("pk", "deployment_id") if runs else ()
    return {str(pk): owner for pk, owner in rows if owner != own}
