"""The plugin with which vLLM reads GGUF files, added to an engine that Berth installed. The act and its audit row are
one transaction; how it goes is told by the newest job for that engine, which needs no row of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.audit import codes
from panel.core.errors import Conflict
from panel.fleet import live, services, wire
from panel.fleet.agent.install_plan import GGUF_LEFT_THE_CORE, GGUF_PLUGIN, release
from panel.fleet.models import Host, Job, Runtime
from panel.fleet.runtimes import sources
from panel.fleet.runtimes.services import REMOVABLE, STOP_GRACE_S, CannotInstall, admins_only

SHOWN = timedelta(days=2)  # how long a failure is worth showing


class NotManaged(Conflict):
    code = "package.not_managed"
    message = _("Berth adds packages only to engines that it installed itself.")
    hint = _("Whoever installed this one can run there: %(command)s")


@dataclass(frozen=True)
class Adding:
    """The newest try for an engine: it goes on, or `refusal` says why it failed."""

    going: bool
    refusal: dict[str, Any] | None = None


def lacks_plugin(runtime: Runtime) -> bool:
    """Whether the plugin would let this engine read GGUF files: those without a GPU cannot use it."""
    known = any("gguf" in str(plugin).lower() for plugin in runtime.plugins)
    return (
        runtime.engine == "vllm"
        and runtime.device != "cpu"
        and not known
        and not runtime.refusal
        and release(runtime.version) >= GGUF_LEFT_THE_CORE
    )


def can_add(runtime: Runtime) -> bool:
    return lacks_plugin(runtime) and runtime.origin in REMOVABLE


def command(runtime: Runtime) -> str:
    """What whoever owns the engine runs on the host."""
    python = f"{runtime.executable.rpartition('/')[0]}/python"
    return sources.quoted([python, "-m", "pip", "install", "--no-deps", GGUF_PLUGIN, "gguf"])


@admins_only
@transaction.atomic
def add_plugin(runtime: Runtime, *, actor: Any) -> Job:
    """Have it added on the host. Pressed twice, the first order is the answer. Raises Conflict, CannotInstall."""
    services.lock_host(runtime.host_id)
    row = Runtime.objects.select_for_update(of=("self",)).select_related("host").get(pk=runtime.pk)
    if (
        running := _jobs(row.host_id, [row.executable]).filter(open=True).exclude(state__in=wire.JOB_OVER).first()
    ) is not None:
        return running
    _refuse(row)
    task = wire.PackageTask.model_validate({"executable": row.executable, **sources.order_fields(row.version)})
    job = services.order_job(host=row.host, task=task, grace_s=STOP_GRACE_S)
    facts = {"host": row.host.name, "executable": row.executable, "package": GGUF_PLUGIN}
    audit.record("runtime.package_asked", row, actor=actor, **facts)
    live.publish_on_commit(live.RUNTIMES)
    return job


def _refuse(row: Runtime) -> None:
    host: Host = row.host
    if host.forgotten_at is not None:
        raise Conflict("host.forgotten", _("This host does not belong to the panel any more."), "")
    if not row.present or row.remove_job_id is not None:
        raise Conflict("runtime.gone", _("This engine was removed already."), "")
    if not lacks_plugin(row):
        raise Conflict(
            "package.not_needed",
            _("The plugin would not help this engine."),
            _("It has the plugin already, reads GGUF files without it, or works on a CPU, where they need llama.cpp."),
        )
    if row.origin not in REMOVABLE:
        raise NotManaged(params={"command": command(row)})
    if host.facts.get("allow_install") is False:
        raise CannotInstall(
            "install.forbidden",
            _("The owner of this host does not allow Berth to install engines."),
            _("Set allow_install to true in the agent's settings (agent.json) on the host, and start the agent again."),
        )


def _jobs(host_id: int, executables: Iterable[str]) -> Any:
    rows = Job.objects.filter(host_id=host_id, kind="package", order__executable__in=list(executables), desired="run")
    return rows.order_by("-created_at")


def adding(runtimes: Iterable[Runtime]) -> dict[int, Adding]:
    """By engine: the newest try of the last days, unless it went well. One query."""
    wanted = {(row.host_id, row.executable): row.pk for row in runtimes}
    if not wanted:
        return {}
    since = timezone.now() - SHOWN
    rows = Job.objects.filter(kind="package", host_id__in={host for host, _path in wanted}, created_at__gt=since)
    found: dict[int, Adding] = {}
    for job in rows.order_by("created_at"):
        pk = wanted.get((job.host_id, str(job.order.get("executable"))))
        if pk is not None:
            told = _told(job)
            found.pop(pk, None)
            if told is not None:
                found[pk] = told
    return found


def _told(job: Job) -> Adding | None:
    """None: it went well."""
    if job.result is not None:
        refusal = wire.JobResult.model_validate(job.result).refusal
        return Adding(False, refusal.model_dump(mode="json")) if refusal is not None else None
    if job.never_ran:
        return Adding(False, job.status.get("refusal") or {"code": "stopped", "params": {}})
    return Adding(False, {"code": "task_failed", "params": {}}) if job.lost_result else Adding(True)


def take_result(job: Job, result: wire.JobResult) -> None:
    """In the transaction that keeps the result; the host's row is locked."""
    rows = Runtime.objects.filter(host=job.host, executable=str(job.order.get("executable")))
    row = rows.select_related("host").first()
    facts: dict[str, Any] = {"host": job.host.name, "package": str(job.order.get("package"))}
    if result.refusal is not None:
        if row is not None and result.refusal.code != "stopped":
            facts |= codes.facts_of(result.refusal.model_dump(mode="json"))
            audit.record("runtime.package_failed", row, actor=None, **facts)
    else:
        for item in result.items[:1]:
            row = services.keep_runtime(job.host, wire.FoundRuntime.model_validate(item))
            audit.record("runtime.package_added", row, actor=None, **facts)
    live.publish_on_commit(live.RUNTIMES)
    live.publish_on_commit(live.HOSTS)
