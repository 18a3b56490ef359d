"""Reads for the hosts' page: rows with what it shows, in a number of queries that does not grow with the rows."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db.models import F, Max, Prefetch, Q, QuerySet, Sum

from panel.core.errors import NotFound
from panel.fleet import labels, samples
from panel.fleet.labels import Label
from panel.fleet.models import Gpu, Host, Job, Runtime
from panel.fleet.wire import JOB_OVER

OPEN_FIELDS = ("id", "host_id", "kind", "state", "desired", "status", "ended_at")
UNKNOWN_MIB = 128  # below this, memory that no process accounts for is the driver's own and not worth a word


@dataclass(frozen=True)
class Use:
    """Who uses memory. `label` is None for processes that are not Berth's; then `user` and `names` say whose."""

    mib: int
    label: Label | None = None
    user: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuRow:
    """One GPU with the uses of its memory; MiB. `free_mib` is what nobody uses now, measured."""

    gpu: Gpu
    ours: list[Use]
    others: list[Use]
    unknown_mib: int
    free_mib: int

    @property
    def measured(self) -> dict[str, Any]:
        return self.gpu.measured


@dataclass(frozen=True)
class Running:
    """One engine run that should be on the host: its name for people, its state and what it uses (MiB)."""

    label: Label
    state: str
    since: datetime | None
    ram_mib: int
    gpu_mib: int


@dataclass(frozen=True)
class HostRow:
    host: Host
    gpus: list[GpuRow]
    runtimes: list[Runtime]
    searching: bool  # a search for engines is under way
    runs: list[Running]  # engine runs of ours that should be on the host
    silent: bool  # no contact: lost, or it never called

    @property
    def jobs(self) -> list[Label]:
        return [run.label for run in self.runs]

    @property
    def facts(self) -> dict[str, Any]:
        return self.host.facts

    @property
    def ram_used_mib(self) -> int:
        return max(0, self.host.ram_total_mib - int(self.host.facts.get("ram_available_mib", 0)))


@dataclass(frozen=True)
class Memory:
    """GPU memory of all connected hosts; MiB. `at` is the oldest of their newest measurements."""

    used_mib: int
    total_mib: int
    hosts: int
    at: datetime | None


def host(pk: int) -> Host:
    """Raises NotFound."""
    row = Host.objects.filter(pk=pk).first()
    if row is None:
        raise NotFound
    return row


def gpu(pk: int) -> Gpu:
    """A GPU of a host that is known. Raises NotFound."""
    row = Gpu.objects.select_related("host").filter(pk=pk, host__forgotten_at=None).first()
    if row is None:
        raise NotFound
    return row


def host_view(pk: int) -> HostRow:
    """One host with everything its page shows; also one that was forgotten. Raises NotFound."""
    found = views(whole(Host.everyone.filter(pk=pk)))
    if not found:
        raise NotFound
    return found[0]


def hosts() -> list[HostRow]:
    """All hosts, the lost ones first."""
    return views(whole(Host.objects.order_by(F("lost_at").desc(nulls_last=True), "name")))


def whole(rows: QuerySet[Host]) -> QuerySet[Host]:
    """The hosts with all that `views` needs."""
    return rows.prefetch_related(
        Prefetch("gpus", Gpu.objects.filter(present=True).order_by("index")),
        Prefetch("runtimes", _engines()),
        Prefetch("jobs", Job.objects.filter(open=True).only(*OPEN_FIELDS)),
    )


def _engines() -> QuerySet[Runtime]:
    """Without those that were removed, and without the long schemas of their parsers."""
    return Runtime.objects.filter(removed_at=None).defer("flags").order_by("engine", "-version", "executable")


def views(found: Iterable[Host]) -> list[HostRow]:
    """What pages and the API show of hosts."""
    rows = list(found)
    samples.onto(rows)
    late = samples.overdue(rows, 2 * settings.BERTH_HOST_LOST_S)  # the ticker has not said so yet: it may be away
    names = labels.of(_job_ids(rows))
    return [_view(row, names, silent=row.lost_at is not None or row.pk in late) for row in rows]


def memory() -> Memory | None:
    """For the menu; None while no host has called."""
    heard = Host.objects.filter(lost_at=None).exclude(last_seen_at=None)
    count = heard.count()
    if not count:
        return None
    sums = Gpu.objects.filter(present=True, host__in=heard).aggregate(
        used=Sum("used_mib"), total=Sum("total_mib"), at=Max("measured_at")
    )
    return Memory(sums["used"] or 0, sums["total"] or 0, count, sums["at"])


def _job_ids(rows: list[Host]) -> set[uuid.UUID]:
    found = {job.pk for row in rows for job in row.jobs.all() if job.kind == "engine"}
    for row in rows:
        for gpu in row.gpus.all():
            for process in gpu.measured.get("processes", []):
                if job_id := _uuid(process.get("job_id")):
                    found.add(job_id)
    return found


def _uuid(text: object) -> uuid.UUID | None:
    """An agent's word for a job; None when it is none, so that no agent can break the page."""
    try:
        return uuid.UUID(str(text)) if text else None
    except ValueError:
        return None


def _view(row: Host, names: dict[uuid.UUID, Label], *, silent: bool) -> HostRow:
    open_jobs = list(row.jobs.all())
    running = [job for job in open_jobs if job.kind == "engine" and job.state not in JOB_OVER]
    return HostRow(
        host=row,
        gpus=[_gpu(gpu, names) for gpu in row.gpus.all()],
        runtimes=list(row.runtimes.all()),
        searching=any(searches(job) for job in open_jobs),
        runs=[_running(job, names) for job in running],
        silent=silent or row.last_seen_at is None,
    )


def searches(job: Job) -> bool:
    """What a search found comes after the word that it ended; until then nobody may read "nothing found"."""
    if job.kind != "runtimes" or job.never_ran:
        return False
    return job.state not in JOB_OVER or (job.result is None and not job.lost_result)


def _running(job: Job, names: dict[uuid.UUID, Label]) -> Running:
    status = job.status
    started = status.get("started_at")
    return Running(
        label=names.get(job.pk, Label(str(job.pk)[:8])),
        state=job.state,
        since=datetime.fromtimestamp(started, UTC) if started else None,
        ram_mib=int(status.get("rss_mib") or 0),
        gpu_mib=int(status.get("gpu_used_mib") or 0),
    )


def silent() -> Q:
    """The hosts whose view is `silent`, as a condition."""
    calling = Host.objects.filter(lost_at=None).exclude(last_seen_at=None).only("pk", "last_seen_at")
    late = samples.overdue(calling, 2 * settings.BERTH_HOST_LOST_S)
    return Q(last_seen_at=None) | Q(lost_at__isnull=False) | Q(pk__in=late)


def _gpu(gpu: Gpu, names: dict[uuid.UUID, Label]) -> GpuRow:
    ours: dict[Label, int] = {}
    others: dict[str, tuple[int, list[str]]] = {}
    for process in gpu.measured.get("processes", []):
        mib = int(process.get("used_mib") or 0)
        if job_id := _uuid(process.get("job_id")):
            label = names.get(job_id) or Label(str(job_id)[:8])
            ours[label] = ours.get(label, 0) + mib
        else:
            user = str(process.get("user") or "")
            used, programs = others.get(user, (0, []))
            program = str(process.get("name") or "")
            others[user] = (used + mib, programs if not program or program in programs else [*programs, program])
    known = sum(ours.values()) + sum(used for used, _names in others.values())
    unknown = max(0, gpu.used_mib - known)
    return GpuRow(
        gpu=gpu,
        ours=[Use(mib, label) for label, mib in ours.items()],
        others=[Use(mib, None, user, tuple(programs[:4])) for user, (mib, programs) in others.items()],
        unknown_mib=unknown if unknown >= UNKNOWN_MIB else 0,
        free_mib=max(0, gpu.total_mib - max(gpu.used_mib, known)),
    )
