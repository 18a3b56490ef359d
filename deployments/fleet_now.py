"""The fleet as plain values, as the planner looks at it: rows in, views out. Writes nothing.

What is measured is of this moment (panel/fleet/samples.py); what runs hold comes with the names of their deployments.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from django.db.models import Prefetch

from deployments.engines.base import RuntimeFacts
from deployments.models import Run
from deployments.placement import Claim, CopyView, GpuUser, GpuView, HostView, RuntimeView
from models_catalog.estimate.kernels import capability_of
from models_catalog.models import Artifact, Copy
from panel.fleet import samples
from panel.fleet.models import Gpu, Host, Job, Reservation, Runtime
from panel.fleet.wire import JOB_OVER

Held = Mapping[tuple[int, int | None], list[Claim]]  # by host, and GPU or None for its RAM


def hosts_for(artifact: Artifact) -> list[Host]:
    copies = Copy.objects.filter(artifact=artifact).select_related("artifact__model")
    # What an engine's parser knows (100 kB of each) is fetched of the chosen one only: the planner does not ask.
    runtimes = Runtime.objects.defer("flags")
    hosts = list(
        Host.objects.prefetch_related(
            "gpus",
            Prefetch("runtimes", queryset=runtimes),
            Prefetch("copies", queryset=copies, to_attr="copies_here"),
        )
    )
    samples.onto(hosts)  # where something fits is decided by what is measured now
    return hosts


def views(hosts: Iterable[Host], artifact: Artifact) -> list[HostView]:
    """All hosts, with the copies of one artifact. Two queries."""
    held = _held()
    return [_host_view(host, artifact, held) for host in hosts]


def _held() -> Held:
    """What every run holds, by device."""
    rows = list(Reservation.objects.values_list("host_id", "gpu_id", "holder", "mib"))
    runs = Run.objects.filter(pk__in=[holder for _host, _gpu, holder, _mib in rows if _is_uuid(holder)])
    names = {str(pk): name for pk, name in runs.values_list("pk", "deployment__name")}
    found: dict[tuple[int, int | None], list[Claim]] = {}
    for host_id, gpu_id, holder, mib in rows:
        found.setdefault((host_id, gpu_id), []).append(Claim(holder, names.get(holder, ""), mib))
    return found


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _host_view(host: Host, artifact: Artifact, held: Held) -> HostView:
    return HostView(
        id=host.pk,
        name=host.name,
        ram_total_mib=host.ram_total_mib,
        ram_reserved_mib=host.ram_reserved_mib,
        ram_available_mib=host.facts.get("ram_available_mib", 0),
        ram_claims=tuple(held.get((host.pk, None), ())),
        lost=host.lost_at is not None or host.last_seen_at is None,
        schedulable=host.schedulable,
        aside_note=str((host.hold or {}).get("note", "")),
        has_door=host.is_local or bool(host.door.get("certificate")),
        machine=host.facts.get("machine", "x86_64"),
        cpu_flags=frozenset(host.facts.get("cpu_flags", [])),
        gpus=tuple(_gpu_view(gpu, held) for gpu in host.gpus.all()),
        runtimes=tuple(_runtime_view(r) for r in host.runtimes.all()),
        copies=tuple(
            copy_view(copy, artifact)
            for copy in host.copies_here
            if copy.delete_job_id is None  # nothing new starts from what is being deleted
        ),
    )


def copy_view(copy: Copy, artifact: Artifact) -> CopyView:
    problems = () if copy.usable else tuple(copy.problems)
    return CopyView(copy.pk, copy.path, artifact.size_bytes, copy.present, problems)


def _gpu_view(gpu: Gpu, held: Held) -> GpuView:
    others = tuple(
        GpuUser(p["pid"], p.get("name", ""), p.get("user", ""), p.get("used_mib"))
        for p in gpu.measured.get("processes", [])
        if not p.get("job_id")
    )
    return GpuView(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        total_mib=gpu.total_mib,
        used_mib=gpu.used_mib,
        reserved_mib=gpu.reserved_mib,
        present=gpu.present,
        schedulable=gpu.schedulable,
        aside_note=str((gpu.hold or {}).get("note", "")),
        others=others,
        claims=tuple(_with_use(claim, gpu) for claim in held.get((gpu.host_id, gpu.pk), ())),
        capability=capability_of(gpu.measured.get("compute_capability")),
        nvlink=frozenset(links) if (links := gpu.measured.get("nvlink")) is not None else None,
    )


def with_ram_use(hosts: Iterable[HostView], run: UUID) -> list[HostView]:
    """With what the processes of a run hold of its machine's RAM now, as its host measures it: an engine that was just
    begun has not taken what was reserved for it, and one that grew has taken more. One query.

    Never more than is in use there. An agent that is too old to tell what is a process's own tells all of it, and what
    several share then counts with each.
    """
    job = Job.objects.filter(run=run).only("host_id", "state", "status", "status_at").first()
    samples.freshen(job)
    if job is None or job.state in JOB_OVER:
        return list(hosts)
    held = job.status.get("own_mib") or job.status.get("rss_mib")
    if not held:
        return list(hosts)
    return [_with_ram(host, str(run), int(held)) if host.id == job.host_id else host for host in hosts]


def _with_ram(host: HostView, holder: str, held_mib: int) -> HostView:
    used = min(held_mib, max(0, host.ram_total_mib - host.ram_available_mib))
    claims = [replace(claim, used_mib=used) if claim.holder == holder else claim for claim in host.ram_claims]
    return replace(host, ram_claims=tuple(claims))


def _with_use(claim: Claim, gpu: Gpu) -> Claim:
    """With what the run's processes use of this GPU now; a run's job has the run's id."""
    ours = [p.get("used_mib") for p in gpu.measured.get("processes", []) if p.get("job_id") == claim.holder]
    if not ours or None in ours:
        return claim
    return replace(claim, used_mib=sum(ours))


def without_flags(runtime: Runtime) -> RuntimeFacts:
    """What the planner asks of an engine."""
    plugins = tuple(runtime.plugins)
    return RuntimeFacts(runtime.executable, version=runtime.version, device=runtime.device, plugins=plugins)


def _runtime_view(runtime: Runtime) -> RuntimeView:
    there = runtime.present and runtime.remove_job_id is None  # nothing new starts from what is being removed
    return RuntimeView(runtime.pk, runtime.engine, without_flags(runtime), there, runtime.refusal)
