"""Hosts for programs: what the pages read, and the acts of hosts.py."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema

from panel.core.api import Page, Paging, Token, answers, page_of
from panel.core.errors import NotFound
from panel.fleet import hosts, queries
from panel.fleet.models import Host
from panel.fleet.queries import GpuRow, HostRow

router = Router(tags=["hosts"])


# --- shapes -----------------------------------------------------------------------------------------------------------


class GpuOut(Schema):
    """Memory in MiB: `used_mib` is measured, `reserved_mib` is what runs have claimed."""

    uuid: str
    index: int
    name: str
    total_mib: int
    used_mib: int
    reserved_mib: int
    free_mib: int
    schedulable: bool = Field(description=_("False: set aside, no new run takes it."))
    measured_at: datetime | None


class HostOut(Schema):
    id: int
    name: str
    state: Literal["connected", "silent"] = Field(description=_("Silent: the agent has not called for too long."))
    is_local: bool = Field(description=_("The panel's own machine."))
    schedulable: bool = Field(description=_("False: nothing new starts here."))
    agent_version: str
    last_seen_at: datetime | None
    os: str
    machine: str
    cpu_model: str
    cpu_count: int
    ram_total_mib: int
    ram_used_mib: int
    ram_reserved_mib: int
    gpus: list[GpuOut]
    runtimes: list[int] = Field(description=_("Ids of the engines that are there."))


class HostFilter(Paging):
    q: str = Field("", max_length=100, description=_("Part of the name."))
    state: Literal["", "connected", "silent"] = ""


class HostChange(Schema):
    """What is left out stays."""

    model_config = {"extra": "forbid"}

    name: str | None = Field(None, max_length=64, description=_("Another name; runs keep the one that the host had."))
    schedulable: bool | None = Field(None, description=_("False: nothing new starts here; what runs goes on."))
    note: str = Field("", max_length=200, description=_("Why it is set aside."))


# --- rows into shapes -------------------------------------------------------------------------------------------------


def host_out(view: HostRow) -> dict[str, Any]:
    row, facts = view.host, view.facts
    return {
        **{name: getattr(row, name) for name in ("id", "name", "is_local", "schedulable", "agent_version")},
        "state": "silent" if view.silent else "connected",
        "last_seen_at": row.last_seen_at,
        "os": facts.get("os", ""),
        "machine": facts.get("machine", ""),
        "cpu_model": facts.get("cpu_model", ""),
        "cpu_count": facts.get("cpu_count", 0),
        "ram_total_mib": row.ram_total_mib,
        "ram_used_mib": view.ram_used_mib,
        "ram_reserved_mib": row.ram_reserved_mib,
        "gpus": [_gpu_out(gpu) for gpu in view.gpus],
        "runtimes": [runtime.pk for runtime in view.runtimes if runtime.present],
    }


def _gpu_out(view: GpuRow) -> dict[str, Any]:
    row = view.gpu
    names = ("uuid", "index", "name", "total_mib", "used_mib", "reserved_mib", "schedulable", "measured_at")
    return {**{name: getattr(row, name) for name in names}, "free_mib": view.free_mib}


def _known() -> QuerySet[Host]:
    return Host.objects.filter(forgotten_at=None)


def _hosts(rows: Iterable[Host]) -> list[dict[str, Any]]:
    return [host_out(view) for view in queries.views(rows)]


# --- operations -------------------------------------------------------------------------------------------------------


@router.get("/hosts", response=answers({200: Page[HostOut]}), auth=Token("hosts.view"), summary=_("List hosts"))
def list_hosts(request: HttpRequest, asked: Query[HostFilter]) -> Any:
    rows = _known()
    if asked.q:
        rows = rows.filter(name__icontains=asked.q)
    if asked.state:
        silent = queries.silent()
        rows = rows.filter(silent) if asked.state == "silent" else rows.exclude(silent)
    return page_of(queries.whole(rows), asked, _hosts)


@router.get(
    "/hosts/{int:host_id}", response=answers({200: HostOut}, 404), auth=Token("hosts.view"), summary=_("One host")
)
def get_host(request: HttpRequest, host_id: int) -> Any:
    found = _hosts(queries.whole(_known().filter(pk=host_id)))
    if not found:
        raise NotFound
    return found[0]


@router.patch(
    "/hosts/{int:host_id}",
    response=answers({200: HostOut}, 404, 413),
    auth=Token("hosts.manage"),
    summary=_("Rename a host, or set it aside"),
)
def change_host(request: HttpRequest, host_id: int, body: HostChange) -> Any:
    row = _known().filter(pk=host_id).first()
    if row is None:
        raise NotFound
    with transaction.atomic():
        if body.name is not None:
            hosts.rename(row, body.name, actor=request.auth)
        if body.schedulable is False:
            hosts.drain(row, actor=request.auth, note=body.note)
        elif body.schedulable:
            hosts.undrain(row, actor=request.auth)
    return _hosts(queries.whole(_known().filter(pk=host_id)))[0]
