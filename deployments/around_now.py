"""The place of a failed start as it is now, for the fixes that fit it (mending/around.py). Reads only."""

from collections.abc import Iterator, Mapping
from typing import Any

from deployments import preflight
from deployments.engines.base import version_key
from deployments.mending.around import Around, Engine, Form, Holder
from deployments.models import Deployment, Run
from deployments.placement import Claim, HostView
from deployments.spec import DeploymentSpec
from models_catalog import code_at_start, repairs
from models_catalog.models import Copy
from panel.fleet.models import Host, Runtime
from panel.fleet.runtimes import packages

MOST_FORMS = 3


def look(row: Deployment, run: Run | None, spec: DeploymentSpec, fleet: preflight.Fleet) -> Around:
    """Where the run was; before any run the chosen host, or the one that has the model."""
    host = _host(run, spec, fleet)
    if host is None:
        return Around(model=fleet.artifact.model_id)
    runtimes = [r for r in host.runtimes.all() if r.engine == spec.engine and r.present and not r.refusal]
    runtime = _runtime(run, spec, runtimes)
    copy = _copy(run, host)
    view = next(view for view in fleet.seen if view.id == host.pk)
    worked = set(
        Run.objects.filter(host=host, runtime__in=runtimes, ready_at__isnull=False).values_list("runtime_id", flat=True)
    )
    others = [r for r in runtimes if runtime is None or r.pk != runtime.pk]
    on_gpu = bool((run.placement if run is not None else {}).get("gpu_uuids"))
    return Around(
        host=host.pk,
        host_name=host.name,
        on_gpu=on_gpu or (run is None and bool(view.gpus)),
        kv_cache_gib=run.placement.get("kv_cache_gib") if run is not None else None,
        runtime=_engine(runtime, worked) if runtime is not None else None,
        engines=tuple(_engine(r, worked) for r in others if runtime is None or r.device == runtime.device),
        python=f"{runtime.executable.rpartition('/')[0]}/python" if runtime is not None else "",
        plugin=_plugin(runtime),
        copy=copy.pk if copy is not None else None,
        copy_path=copy.path if copy is not None else "",
        repairable=copy is not None and repairs.possible(copy),
        model=fleet.artifact.model_id,
        tasks=tuple(map(str, fleet.artifact.facts.get("tasks") or ())),
        own_code=_own_code(copy),
        ggufs=tuple(_ggufs(copy)),
        twins=tuple(_twins(fleet, host))[:MOST_FORMS],
        method=_method(fleet.artifact.facts),
        holders=tuple(_holders(view, run, row)),
        port_holder=str((run.diagnosis if run is not None else {}).get("port_holder") or ""),
        flags=_flags(runtime),
    )


def _host(run: Run | None, spec: DeploymentSpec, fleet: preflight.Fleet) -> Host | None:
    wanted = run.host_id if run is not None else spec.host_id
    if wanted is not None:
        return next((host for host in fleet.hosts if host.pk == wanted), None)
    with_model = (host for host in fleet.hosts if any(copy.present for copy in host.copies_here))
    return next(with_model, None)


def _runtime(run: Run | None, spec: DeploymentSpec, there: list[Runtime]) -> Runtime | None:
    """The run's own, or that which a start would take."""
    wanted = run.runtime_id if run is not None else spec.runtime_id
    if wanted is not None:
        return next((row for row in there if row.pk == wanted), None)
    return max(there, key=lambda row: version_key(row.version), default=None) if run is None else None


def _engine(row: Runtime, worked: set[int | None]) -> Engine:
    return Engine(row.pk, row.version, row.device, row.pk in worked)


def _plugin(runtime: Runtime | None) -> str:
    if runtime is None or not packages.lacks_plugin(runtime):
        return ""
    return "click" if packages.can_add(runtime) else "command"


def _copy(run: Run | None, host: Host) -> Copy | None:
    here = list(host.copies_here)
    own = [copy for copy in here if run is not None and copy.pk == run.copy_id]
    return next(iter([*own, *here]), None)


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


def _holders(view: HostView, run: Run | None, row: Deployment) -> Iterator[Holder]:
    """What holds memory there now, but for the deployment itself: on the run's GPUs, and the machine's."""
    wanted = set((run.placement if run is not None else {}).get("gpu_uuids") or [])
    claims: list[tuple[Claim, int | None]] = [(claim, None) for claim in view.ram_claims]
    for gpu in view.gpus:
        if not wanted or gpu.uuid in wanted:
            claims += [(claim, gpu.index) for claim in gpu.claims]
            for user in gpu.others:
                yield Holder(user.name or str(user.pid), user.used_mib or 0, gpu.index, None, user.pid, user.user)
    runs = Run.objects.filter(pk__in={claim.holder for claim, _gpu in claims if claim.name})
    owners = {str(pk): owner for pk, owner in runs.exclude(deployment=row).values_list("pk", "deployment_id")}
    for claim, index in claims:
        if claim.holder in owners:
            mib = claim.mib if claim.used_mib is None else claim.used_mib
            yield Holder(claim.name, mib, index, owners[claim.holder])


def _flags(runtime: Runtime | None) -> frozenset[str]:
    return frozenset(preflight.runtime_facts(runtime).schema.by_name) if runtime is not None else frozenset()
