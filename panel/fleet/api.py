"""Hosts and the engines on them, for programs. Reads what the pages read; changes are made on the pages."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema

from panel.core.api import Page, Paging, Reason, Token, answers, page_of
from panel.core.errors import NotFound
from panel.core.wording import said
from panel.fleet import queries
from panel.fleet.models import Host, Runtime
from panel.fleet.queries import GpuView, HostView
from panel.fleet.wording import ENGINE_REFUSALS

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


class RuntimeOut(Schema):
    """An engine on a host."""

    id: int
    host: str
    host_id: int
    engine: str
    version: str
    device: str
    python: str
    executable: str
    plugins: list[str]
    origin: str = Field(description=_("How it came there: found, or installed by the panel."))
    works: bool
    reason: Reason | None = Field(description=_("Why it does not work."))
    found_at: datetime


class HostFilter(Paging):
    q: str = Field("", max_length=100, description=_("Part of the name."))
    state: Literal["", "connected", "silent"] = ""


class RuntimeFilter(Paging):
    host: str = Field("", max_length=64, description=_("Name of the host."))
    engine: str = Field("", max_length=16, description=_("vllm, sglang, llamacpp or ollama."))


# --- rows into shapes -------------------------------------------------------------------------------------------------


def host_out(view: HostView) -> dict[str, Any]:
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


def _gpu_out(view: GpuView) -> dict[str, Any]:
    row = view.gpu
    names = ("uuid", "index", "name", "total_mib", "used_mib", "reserved_mib", "schedulable", "measured_at")
    return {**{name: getattr(row, name) for name in names}, "free_mib": view.free_mib}


def runtime_out(row: Runtime) -> dict[str, Any]:
    names = ("id", "host_id", "engine", "version", "device", "python", "executable", "plugins", "origin")
    return {
        **{name: getattr(row, name) for name in names},
        "host": row.host.name,
        "works": row.refusal is None,
        "reason": Reason.of(said(ENGINE_REFUSALS, row.refusal)) if row.refusal else None,
        "found_at": row.created_at,
    }


def _known() -> QuerySet[Host]:
    return Host.objects.filter(forgotten_at=None)


def _hosts(rows: Iterable[Host]) -> list[dict[str, Any]]:
    return [host_out(view) for view in queries.views(rows)]


def _runtimes() -> QuerySet[Runtime]:
    """Those that the newest search found, on hosts that are not forgotten."""
    rows = Runtime.objects.filter(present=True, removed_at=None, host__forgotten_at=None)
    return rows.select_related("host").defer("flags")


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


@router.get(
    "/runtimes", response=answers({200: Page[RuntimeOut]}), auth=Token("runtimes.view"), summary=_("List engines")
)
def list_runtimes(request: HttpRequest, asked: Query[RuntimeFilter]) -> Any:
    rows = _runtimes()
    if asked.host:
        rows = rows.filter(host__name=asked.host)
    if asked.engine:
        rows = rows.filter(engine=asked.engine)
    return page_of(rows, asked, lambda found: map(runtime_out, found))


@router.get(
    "/runtimes/{int:runtime_id}",
    response=answers({200: RuntimeOut}, 404),
    auth=Token("runtimes.view"),
    summary=_("One engine"),
)
def get_runtime(request: HttpRequest, runtime_id: int) -> Any:
    row = _runtimes().filter(pk=runtime_id).first()
    if row is None:
        raise NotFound
    return runtime_out(row)
