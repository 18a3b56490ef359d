"""Engines on hosts for programs: which there are, having one installed, removing one."""

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema, Status

from panel.core.api import Page, Paging, Reason, Token, answers, page_of
from panel.core.errors import Invalid
from panel.core.idempotency import key_header, once
from panel.core.wording import said
from panel.fleet.models import Host, Runtime, RuntimeInstall
from panel.fleet.runtimes import packages, queries, services
from panel.fleet.runtimes.wording import failure
from panel.fleet.wording import ENGINE_REFUSALS

router = Router(tags=["hosts"])


# --- shapes -----------------------------------------------------------------------------------------------------------


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


class RuntimeFilter(Paging):
    host: str = Field("", max_length=64, description=_("Name of the host."))
    engine: str = Field("", max_length=16, description=_("vllm, sglang, llamacpp or ollama."))


class InstallIn(Schema):
    model_config = {"extra": "forbid"}

    host: str = Field(max_length=64, description=_("Name of the host."), examples=["quay"])
    engine: Literal["vllm"] = "vllm"
    variant: Literal["cpu", "cuda"]
    version: str = Field("", max_length=60, description=_("Such as 0.32.0; empty: the newest; nightly."))
    extras: list[Literal["gguf", "flashinfer"]] = Field([], max_length=2)


class InstallOut(Schema):
    """One install of an engine; its steps with their times."""

    id: uuid.UUID
    host: str
    host_id: int
    engine: str
    variant: str
    version: str
    extras: list[str]
    name: str
    state: Literal["waiting", "running", "cancelling", "done", "failed", "cancelled"]
    reason: Reason | None = Field(description=_("Why it failed."))
    runtime: int | None = Field(description=_("The engine that came of it."))
    tries: int
    steps: list[dict[str, Any]]
    asked_by: str
    created_at: datetime
    deadline_at: datetime | None
    ended_at: datetime | None


class InstallFilter(Paging):
    host: str = Field("", max_length=64, description=_("Name of the host."))
    state: Literal["", "waiting", "running", "cancelling", "done", "failed", "cancelled"] = ""


class RemoveFilter(Schema):
    confirmed: bool = Field(False, description=_("Also where a stopped deployment names this engine."))


class RemovalOut(Schema):
    job: uuid.UUID = Field(description=_("The removal that runs now."))


class PackageOut(Schema):
    job: uuid.UUID = Field(description=_("The work on the host that runs now."))


# --- rows into shapes -------------------------------------------------------------------------------------------------


def runtime_out(row: Runtime) -> dict[str, Any]:
    names = ("id", "host_id", "engine", "version", "device", "python", "executable", "plugins", "origin")
    return {
        **{name: getattr(row, name) for name in names},
        "host": row.host.name,
        "works": row.refusal is None,
        "reason": Reason.of(said(ENGINE_REFUSALS, row.refusal)) if row.refusal else None,
        "found_at": row.created_at,
    }


def install_out(row: RuntimeInstall) -> dict[str, Any]:
    names = ("id", "host_id", "engine", "variant", "version", "extras", "name", "state", "tries", "steps", "asked_by")
    more = ("created_at", "deadline_at", "ended_at")
    return {
        **{name: getattr(row, name) for name in names + more},
        "host": row.host.name,
        "runtime": row.runtime_id,
        "reason": Reason.of(failure(row.refusal)) if row.refusal else None,
    }


def _installs(rows: Iterable[RuntimeInstall]) -> Iterable[dict[str, Any]]:
    return map(install_out, rows)


# --- engines ----------------------------------------------------------------------------------------------------------


@router.get(
    "/runtimes", response=answers({200: Page[RuntimeOut]}), auth=Token("runtimes.view"), summary=_("List engines")
)
def list_runtimes(request: HttpRequest, asked: Query[RuntimeFilter]) -> Any:
    rows = queries.listed().filter(present=True)
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
    return runtime_out(queries.runtime(runtime_id))


@router.delete(
    "/runtimes/{int:runtime_id}",
    response=answers({202: RemovalOut}, 404, 409),
    auth=Token("runtimes.manage"),
    summary=_("Remove an engine that Berth installed"),
)
def remove_runtime(request: HttpRequest, runtime_id: int, asked: Query[RemoveFilter]) -> Any:
    row = queries.runtime(runtime_id)
    job = services.remove(row, actor=request.auth, confirmed=asked.confirmed)
    return Status(202, {"job": job.pk})


@router.post(
    "/runtimes/{int:runtime_id}/plugin",
    response=answers({202: PackageOut}, 404, 409),
    auth=Token("runtimes.manage"),
    summary=_("Add the plugin for GGUF files to an engine that Berth installed"),
)
def add_plugin(request: HttpRequest, runtime_id: int) -> Any:
    job = packages.add_plugin(queries.runtime(runtime_id), actor=request.auth)
    return Status(202, {"job": job.pk})


# --- installs ---------------------------------------------------------------------------------------------------------


@router.get(
    "/runtimes/installs",
    response=answers({200: Page[InstallOut]}),
    auth=Token("runtimes.view"),
    summary=_("List installs of engines"),
    description=_("Newest first."),
)
def list_installs(request: HttpRequest, asked: Query[InstallFilter]) -> Any:
    rows = RuntimeInstall.objects.filter(host__forgotten_at=None).select_related("host")
    if asked.host:
        rows = rows.filter(host__name=asked.host)
    if asked.state:
        rows = rows.filter(state=asked.state)
    return page_of(rows, asked, _installs, key="created_at", newest=True)


@router.post(
    "/runtimes/installs",
    response=answers({201: InstallOut}, 409, 413),
    auth=Token("runtimes.manage"),
    summary=_("Install an engine on a host"),
)
def install_runtime(request: HttpRequest, body: InstallIn, response: HttpResponse, key: str = key_header()) -> Any:
    host = Host.objects.filter(name=body.host, forgotten_at=None).first()
    if host is None:
        raise Invalid({"host": gettext("There is no host with this name.")})

    def make() -> InstallOut:
        wish = body.model_dump(exclude={"host"})
        row = services.install(host, **wish, actor=request.auth)
        return InstallOut(**install_out(row))

    return Status(201, once(request, response, key, make))


@router.get(
    "/runtimes/installs/{uuid:install_id}",
    response=answers({200: InstallOut}, 404),
    auth=Token("runtimes.view"),
    summary=_("One install"),
)
def get_install(request: HttpRequest, install_id: uuid.UUID) -> Any:
    return install_out(queries.install(install_id))


@router.post(
    "/runtimes/installs/{uuid:install_id}/cancel",
    response=answers({202: InstallOut}, 404, 409),
    auth=Token("runtimes.manage"),
    summary=_("Cancel an install"),
)
def cancel_install(request: HttpRequest, install_id: uuid.UUID) -> Any:
    row = queries.install(install_id)
    return Status(202, install_out(services.cancel(row, actor=request.auth)))
