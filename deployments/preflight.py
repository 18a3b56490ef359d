"""Would it start, where, and with which command: the one answer that the form, the API and the launch share.

Reads the fleet as plain values, asks the planner, then the engine's adapter. Writes nothing.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from deployments import describing
from deployments.engines.base import (
    EngineRefusal,
    Launch,
    LaunchContext,
    Reason,
    RuntimeFacts,
    command_preview,
)
from deployments.engines.registry import adapter_for
from deployments.evidence import before_of
from deployments.fleet_now import hosts_for, views, with_ram_use, without_flags
from deployments.measured_runs import lessons_for
from deployments.models import Run
from deployments.placement import Candidate, Change, HostView, NoPlacement, Placement
from deployments.planner import Estimator, Need, Outlook, Twin, length, nearest, outlook, plan
from deployments.spec import DeploymentSpec
from deployments.twins import twins_of
from models_catalog import code_at_start
from models_catalog.models import Artifact, Copy
from panel.fleet.models import Gpu, Host, Runtime
from panel.fleet.services import Share

RUNTIMES_KEPT = 8  # engines whose flags a process remembers: some 300 kB each
_known_runtimes: dict[tuple[int, datetime], RuntimeFacts] = {}
_keeping = threading.Lock()
UNMADE = "{description}"  # in a preview: the folder that the host makes before the start
NO_KEY = "shown-as-name-only"  # a preview never holds a real key; command_preview prints its name


@dataclass(frozen=True)
class Place:
    """A place that could take it; what it would be there, and why it comes first or after, is in `placement`."""

    placement: Placement
    host: Host
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Check:
    """The answer. Without a placement or launch, `reason` says why, with every candidate in its params."""

    placement: Placement | None = None
    launch: Launch | None = None
    reason: dict[str, Any] = field(default_factory=dict)
    retryable: bool = False
    host: Host | None = None
    runtime: Runtime | None = None
    copy: Copy | None = None
    gpus: tuple[Gpu, ...] = ()
    changes: tuple[Change, ...] = ()  # what would make it fit, where nothing does
    places: tuple[Place, ...] = ()  # the one that is taken, and the next that could take it
    outlook: Outlook | None = None  # for a page with sliders; None where nobody asked
    describes: bool = False  # the host has to describe the model's file for the engine before the start
    refusals: tuple[Reason, ...] = ()  # what the adapter has against this command, where there is a place for it
    before: dict[str, Any] = field(default_factory=dict)  # memory of the place now, see evidence.before_of

    @property
    def ok(self) -> bool:
        return self.launch is not None

    @property
    def shares(self) -> list[Share]:
        return [Share(uuid, mib) for uuid, mib in self.placement.reserve] if self.placement else []

    def facts(self) -> dict[str, Any]:
        """The placement as a run keeps it."""
        assert self.placement is not None
        known: dict[str, Any] = {**self.placement.as_dict(), "gpus": [gpu.index for gpu in self.gpus]}
        known |= {"before": self.before} if self.before else {}
        return {**known, describing.KEY: {}} if self.describes else known

    def preview(self) -> str:
        return command_preview(self.launch) if self.launch is not None else ""


@dataclass
class Fleet:
    """What checks read of the hosts for one model, at one moment. Several checks of one look may share it."""

    artifact: Artifact
    task: str
    hosts: list[Host]
    seen: list[HostView]
    estimator: Estimator
    own: UUID | None = None
    actor: Any = None
    _twins: list[Twin] | None = None

    @classmethod
    def of(cls, spec: DeploymentSpec, own: UUID | None = None, actor: Any = None) -> "Fleet | None":
        """None when the model is not in the catalog any more.

        `own` is the run that would be stopped for this start: the hosts are seen as they are when it has given back
        what it holds. `actor` is who looks: other forms of the model are those that this person may deploy; without
        one those that everybody may.
        """
        artifact = Artifact.objects.select_related("model").filter(pk=spec.artifact_id).first()
        if artifact is None:
            return None
        hosts = hosts_for(artifact)
        estimator = Estimator.of(artifact.facts, spec.task, lessons_for(artifact.facts))
        seen = views(hosts, artifact)
        if own is not None:
            seen = [host.without(frozenset({str(own)})) for host in with_ram_use(seen, own)]
        return cls(artifact, spec.task, hosts, seen, estimator, own, actor)

    def serves(self, spec: DeploymentSpec) -> bool:
        """Whether it was read for this model and use."""
        return (self.artifact.pk, self.task) == (spec.artifact_id, spec.task)

    @property
    def twins(self) -> list[Twin]:
        if self._twins is None:
            self._twins = twins_of(self.artifact, self.actor)
        return self._twins


def check(
    spec: DeploymentSpec, *, name: str, ahead: bool = False, fleet: Fleet | None = None, actor: Any = None
) -> Check:
    """Plan and build the command for a spec that may not be saved yet; `ahead`: with what lies around the plan."""
    if fleet is None or not fleet.serves(spec):
        own, who = (fleet.own, fleet.actor) if fleet is not None else (None, actor)
        fleet = Fleet.of(spec, own, who)
    if fleet is None:
        return Check(reason={"code": "artifact.gone", "params": {}})
    artifact, hosts, seen, need = fleet.artifact, fleet.hosts, fleet.seen, need_of(spec)
    found = plan(spec, seen, artifact.facts, need, estimator=fleet.estimator)
    around = outlook(spec, seen, artifact.facts, need, fleet.estimator) if ahead else None
    if isinstance(found, NoPlacement):
        changes = nearest(spec, seen, artifact.facts, found, need, twins=fleet.twins, estimator=fleet.estimator)
        return Check(reason=_no_place(found, changes), retryable=found.retryable, changes=changes, outlook=around)
    host = next(h for h in hosts if h.pk == found.host_id)
    runtime = next(r for r in host.runtimes.all() if r.pk == found.runtime_id)
    copy = next(c for c in host.copies_here if c.pk == found.copy_id)
    places = tuple(_place(placement, hosts) for placement in (found, *found.others))
    gpus = places[0].gpus
    where: dict[str, Any] = {"placement": found, "host": host, "runtime": runtime, "copy": copy, "gpus": gpus}
    where |= {"outlook": around, "places": places}
    needs = adapter_for(spec.engine).needs_sidecar(runtime_facts(runtime), {**artifact.facts, **copy.extra})
    folder = (describing.known_folder(host.pk, copy.path) or UNMADE) if needs else ""
    where |= {"describes": needs, "before": before_of(next(v for v in seen if v.id == host.pk), found.gpu_uuids)}
    try:
        launch = _launch(spec, name, host, runtime, copy, found.as_dict(), NO_KEY, detail=False, sidecar=folder)
    except EngineRefusal as exc:
        return Check(**where, reason=refused(exc), refusals=exc.reasons)
    return Check(**where, launch=launch)


def _place(placement: Placement, hosts: Iterable[Host]) -> Place:
    host = next(h for h in hosts if h.pk == placement.host_id)
    gpus = tuple(gpu for uuid in placement.gpu_uuids for gpu in host.gpus.all() if gpu.uuid == uuid)
    return Place(placement, host, gpus)


def command_of(launch: Launch, copy: Copy) -> dict[str, Any]:
    """A command as the host takes it, to run it or to have it checked (wire.Command)."""
    return {
        "argv": launch.argv,
        "env": launch.env,
        "secret_env": launch.secret_env,
        "gpu_uuids": launch.gpu_uuids,
        "model_path": launch.model_path,
        "needs_avx2": launch.needs_avx2,
        "allow_remote_code": launch.allow_remote_code,
        "code": code_at_start.files_for(copy) if launch.allow_remote_code else None,
    }


def launch_of(
    spec: DeploymentSpec, run: Run, *, name: str, api_key: str, secrets: Mapping[str, str] | None = None
) -> Launch:
    """The command of a run that was placed, by the same adapter. Raises EngineRefusal.

    `secrets` are the values of `env_secrets` by variable, for the order itself.
    """
    assert run.host is not None and run.runtime is not None and run.copy is not None
    sidecar = describing.folder_of(run.placement)
    return _launch(
        spec, name, run.host, run.runtime, run.copy, run.placement, api_key, detail=run.detail, sidecar=sidecar,
        secrets=secrets or {},
    )  # fmt: skip


def _launch(
    spec: DeploymentSpec,
    name: str,
    host: Host,
    runtime: Runtime,
    copy: Copy,
    placement: dict[str, Any],
    key: str,
    *,
    detail: bool,
    sidecar: str,
    secrets: Mapping[str, str] | None = None,
) -> Launch:
    return adapter_for(spec.engine).launch(
        LaunchContext(
            spec=spec,
            runtime=runtime_facts(runtime),
            served_name=name,
            api_key=key,
            model_path=copy.path,
            model_facts={**copy.artifact.facts, **copy.extra},
            roots=tuple({*host.facts.get("model_roots", []), *host.model_roots}),
            gpu_uuids=tuple(placement["gpu_uuids"]),
            utilisation=placement["utilisation"],
            kv_cache_gib=placement["kv_cache_gib"],
            sidecar=sidecar,
            secrets=secrets or {},
            machine=host.facts.get("machine", "x86_64"),
            cpu_flags=frozenset(host.facts.get("cpu_flags", [])),
            asked_paths=tuple(host.facts.get("asks_engines", [])),
            allow_remote_code=code_at_start.may_run(copy),
            detail=detail,
        )
    )


def need_of(spec: DeploymentSpec) -> Need:
    """What the person wants of it, as the planner reads it."""
    return Need(people=spec.people, priority=spec.priority)


def _no_place(found: NoPlacement, changes: Iterable[Change]) -> dict[str, Any]:
    """Every place is kept with its own reason, and what would make it fit; what is so at every place leads."""
    params: dict[str, Any] = {"candidates": named(found.reasons)}
    long = next((one.reason for one in found.reasons if one.reason.code == length.CODE), None)
    if long is not None:
        params = {**long.params, "candidates": []}
    if told := [change.as_dict() for change in changes]:
        params["changes"] = told
    return {"code": long.code if long is not None else "place.none", "params": params}


def named(candidates: Iterable[Candidate]) -> list[dict[str, Any]]:
    """Places with their names and reasons, as pages put them into words."""
    return [{"name": _place_name(c), **c.reason.as_dict()} for c in candidates]


def _place_name(candidate: Candidate) -> str:
    """ "lab-1", or "lab-1 GPU 2"; kept with reasons, so in no language."""
    index = candidate.reason.params.get("index")
    return f"{candidate.host_name} GPU {index}" if candidate.gpu_uuid and index is not None else candidate.host_name


def refused(exc: EngineRefusal) -> dict[str, Any]:
    """A refusal of the adapter as {code, params}; several are listed like candidates."""
    reasons = [{"name": reason.option, **reason.as_dict()} for reason in exc.reasons]
    if len(reasons) == 1:
        return {"code": exc.code, "params": dict(exc.params)}
    return {"code": "options.refused", "params": {"candidates": reasons}}


def runtime_facts(runtime: Runtime) -> RuntimeFacts:
    """The engine as its adapter wants it. Kept per row and its last change: the flags are the bulk of it."""
    key = (runtime.pk, runtime.updated_at)
    found = _known_runtimes.get(key)
    if found is None:
        found = replace(without_flags(runtime), flags=tuple(runtime.flags))
        with _keeping:
            while len(_known_runtimes) >= RUNTIMES_KEPT:
                del _known_runtimes[next(iter(_known_runtimes))]
            _known_runtimes[key] = found
    return found
