"""Where the disks of the hosts go: models, copies that lie there twice, and what nobody ever used. Reads only."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class _Held:
    artifact: int
    model: int
    name: str
    label: str
    path: str
    bytes: int


def by_host() -> list[HostDisk]:
    """All hosts by name, in a number of queries that does not grow."""
    fields = (
        "host_id", "artifact_id", "artifact__model_id", "artifact__model__name", "artifact__label", "path",
        "extra__own_bytes", "artifact__size_bytes",
    )  # fmt: skip
    held: dict[int, list[_Held]] = {}
    for host_id, *rest, own, size in Copy.objects.filter(present=True).order_by("path").values_list(*fields):
        held.setdefault(host_id, []).append(_Held(*rest, bytes=size if own is None else own))
    used = uses.ever_used()
    return [_of_host(host, held.get(host.pk, []), used) for host in Host.objects.order_by("name")]


def _of_host(host: Host, held: list[_Held], used: set[int]) -> HostDisk:
    total, free = _room(host.facts.get("disks") or [])
    unused = [one for one in held if one.artifact not in used]
    return HostDisk(
        host=host,
        models=len(held),
        bytes=sum(one.bytes for one in held),
        unused=len(unused),
        unused_bytes=sum(one.bytes for one in unused),
        total_mib=total,
        free_mib=free,
        duplicates=_duplicates(held),
    )


def _room(disks: Iterable[dict[str, Any]]) -> tuple[int | None, int | None]:
    rows = [disk for disk in disks if isinstance(disk.get("total_mib"), int) and isinstance(disk.get("free_mib"), int)]
    if not rows:
        return None, None
    return sum(disk["total_mib"] for disk in rows), sum(disk["free_mib"] for disk in rows)


def _duplicates(held: Iterable[_Held]) -> list[Duplicate]:
    """Copies that really take their room: what links or a cache share counts once already."""
    by_artifact: dict[int, list[_Held]] = {}
    for one in held:
        if one.bytes > 0:
            by_artifact.setdefault(one.artifact, []).append(one)
    found = [
        Duplicate(
            rows[0].model,
            rows[0].name,
            rows[0].label,
            tuple(one.path for one in rows),
            sum(one.bytes for one in rows) - max(one.bytes for one in rows),
        )
        for rows in by_artifact.values()
        if len(rows) > 1
    ]
    return sorted(found, key=lambda one: -one.bytes)
