"""Where the disks of the hosts go: models, copies that lie there twice, and what nobody ever used. Reads only."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, DecimalField, F, Func, Max, Q, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from models_catalog import uses
from models_catalog.models import Copy
from panel.fleet.models import Host


@dataclass(frozen=True)
class Duplicate:
    """The same files several times on one host; `bytes` are those of all but one."""

    model_id: int
    name: str
    label: str
    paths: tuple[str, ...]
    bytes: int


@dataclass
class HostDisk:
    """`total_mib` and `free_mib` are of all disks that hold model folders; None where the host did not say."""

    host: Host
    models: int = 0
    bytes: int = 0
    unused: int = 0
    unused_bytes: int = 0
    total_mib: int | None = None
    free_mib: int | None = None
    duplicates: list[Duplicate] = field(default_factory=list)

    @property
    def duplicate_bytes(self) -> int:
        return sum(one.bytes for one in self.duplicates)


def room() -> Func:
    """What a copy takes of its disk, for SQL: its own bytes where the agent told them, else those of its form."""
    own = Func(KT("extra__own_bytes"), template="(%(expressions)s)::numeric", output_field=DecimalField())
    return Coalesce(own, F("artifact__size_bytes"), output_field=DecimalField())


def by_host() -> list[HostDisk]:
    """All hosts by name, in a number of queries that does not grow; the database does the sums."""
    unused = ~Q(artifact_id__in=uses.ever_used())
    sums = Copy.objects.filter(present=True).order_by().values("host_id").annotate(
        models=Count("pk"), bytes=Sum(room()), unused=Count("pk", filter=unused), freed=Sum(room(), filter=unused)
    )  # fmt: skip
    held = {row["host_id"]: row for row in sums}
    twice = _duplicates()
    return [_of_host(host, held.get(host.pk), twice.get(host.pk, [])) for host in Host.objects.order_by("name")]


def _of_host(host: Host, held: dict[str, Any] | None, duplicates: list[Duplicate]) -> HostDisk:
    total, free = _room(host.facts.get("disks") or [])
    found = HostDisk(host=host, total_mib=total, free_mib=free, duplicates=duplicates)
    if held is not None:
        found.models, found.bytes, found.unused = held["models"], int(held["bytes"]), held["unused"]
        found.unused_bytes = int(held["freed"] or 0)
    return found


def _room(disks: Iterable[dict[str, Any]]) -> tuple[int | None, int | None]:
    rows = [disk for disk in disks if isinstance(disk.get("total_mib"), int) and isinstance(disk.get("free_mib"), int)]
    if not rows:
        return None, None
    return sum(disk["total_mib"] for disk in rows), sum(disk["free_mib"] for disk in rows)


def _duplicates() -> dict[int, list[Duplicate]]:
    """By host, the largest first. Copies that really take their room: what links or a cache share counts once."""
    rows = Copy.objects.filter(present=True).annotate(room=room()).filter(room__gt=0).order_by()
    groups = rows.values("host_id", "artifact_id").annotate(n=Count("pk"), all=Sum("room"), most=Max("room"))
    spare = {(one["host_id"], one["artifact_id"]): int(one["all"] - one["most"]) for one in groups.filter(n__gt=1)}
    named = rows.filter(artifact_id__in={artifact for _host, artifact in spare}).order_by("path")
    paths: dict[tuple[int, int], list[str]] = {}
    of: dict[tuple[int, int], tuple[int, str, str]] = {}
    fields = ("host_id", "artifact_id", "path", "artifact__model_id", "artifact__model__name", "artifact__label")
    for host, artifact, path, *model in named.values_list(*fields) if spare else ():
        if (key := (host, artifact)) in spare:
            paths.setdefault(key, []).append(path)
            of[key] = tuple(model)
    found: dict[int, list[Duplicate]] = {}
    for key in sorted(paths, key=lambda key: -spare[key]):
        found.setdefault(key[0], []).append(Duplicate(*of[key], tuple(paths[key]), spare[key]))
    return found
