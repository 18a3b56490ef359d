"""Engines on hosts: install, cancel, try again, remove, look for them. Each act and its audit row are one transaction.

Acts order jobs; what became of them is written by outcomes.py. Whoever writes several rows locks the host first
(fleet services.lock_host), as reports do.
"""

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar, cast

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts.access import require
from panel.accounts.actor import name_of
from panel.core.errors import Conflict, Invalid, PanelError
from panel.fleet import live, services, wire
from panel.fleet.agent.install_plan import VERSION, base_name
from panel.fleet.models import Host, InstallState, Job, Runtime, RuntimeInstall
from panel.fleet.runtimes import install_checks, sources, users, wording

RIGHT = "runtimes.manage"
ENGINES = ("vllm",)
EXTRAS = ("gguf", "flashinfer")
ACTIVE = (InstallState.WAITING, InstallState.RUNNING, InstallState.CANCELLING)
REMOVABLE = ("managed", "cache")  # the host itself deletes only what an install of its own made
MAX_FOLDERS = 20
STOP_GRACE_S = 20.0


class CannotInstall(PanelError):
    """The host would refuse it; `code` is the host's own."""

    code = "install.refused"
    message = _("This cannot be installed there.")
    status = 409


def _refuse_early(host: Host, variant: str, version: str) -> None:
    """Raises CannotInstall for what the host would refuse, Conflict when it is no host of this panel any more."""
    if host.forgotten_at is not None:
        raise Conflict("host.forgotten", _("This host does not belong to the panel any more."), "")
    for check in install_checks.refusals(host, variant, version):
        words = wording.failure(check.refusal())
        raise CannotInstall(check.code, words.text, words.hint)


Act = TypeVar("Act", bound=Callable[..., Any])


def admins_only(act: Act) -> Act:
    """Before the transaction, so that the record of a refusal outlives it. The actor None is the loop itself."""

    @functools.wraps(act)
    def guarded(*args: Any, actor: Any, **kwargs: Any) -> Any:
        if actor is not None:
            require(actor, RIGHT)
        return act(*args, actor=actor, **kwargs)

    return cast(Act, guarded)


# --- install --------------------------------------------------------------------------------------------------------


@admins_only
@transaction.atomic
def install(
    host: Host, *, engine: str = "vllm", variant: str, version: str = "", extras: Iterable[str] = (), actor: Any
) -> RuntimeInstall:
    """Have an engine installed on a host, beside those that are there. The same again while it goes on is the same one.

    Raises Invalid for an impossible wish and CannotInstall when the host's facts say that it would be refused.
    """
    version, wanted = _checked(engine, variant, version, extras)
    services.lock_host(host.pk)
    host.refresh_from_db()
    _refuse_early(host, variant, version)
    same = host.installs.filter(engine=engine, variant=variant, version=version, extras=wanted, state__in=ACTIVE)
    if twin := same.exclude(state=InstallState.CANCELLING).first():
        return twin
    row = RuntimeInstall.objects.create(
        host=host,
        engine=engine,
        variant=variant,
        version=version,
        extras=wanted,
        name=_free_name(host, variant, version),
        asked_by=name_of(actor),
        asked_by_id=getattr(actor, "id", None),
    )
    _order(row)
    facts = {"host": host.name, "version": version or "newest", **({"extras": wanted} if wanted else {})}
    audit.record("runtime.install_asked", row, actor=actor, **facts)
    return row


def _checked(engine: str, variant: str, version: str, extras: Iterable[str]) -> tuple[str, list[str]]:
    """Version and extras as they are kept. Raises Invalid with a sentence per field."""
    version = version.strip().removeprefix("v")
    wanted = [extra for extra in EXTRAS if extra in set(extras)]
    bad: dict[str, Any] = {}
    if engine not in ENGINES:
        bad["engine"] = _("This engine cannot be installed by Berth.")
    if variant not in install_checks.VARIANTS:
        bad["variant"] = _("Choose CPU or CUDA.")
    if version not in ("", sources.NIGHTLY) and not VERSION.fullmatch(version):
        bad["version"] = _("Give a version such as 0.32.0, the word nightly, or nothing for the newest.")
    if set(extras) - set(EXTRAS):
        bad["extras"] = _("There is no such addition.")
    elif "flashinfer" in wanted and variant != "cuda":
        bad["extras"] = _("FlashInfer works with CUDA only.")
    if bad:
        raise Invalid(bad)
    return version, wanted


def _free_name(host: Host, variant: str, version: str) -> str:
    """What it is called until the host has named the folder; numbered beside another that is being installed."""
    base = base_name(variant, version or "newest")
    taken = set(host.installs.filter(name__startswith=base, state__in=ACTIVE).values_list("name", flat=True))
    return next(name for n in range(1, 10_000) if (name := base if n == 1 else f"{base}-{n}") not in taken)


def _order(row: RuntimeInstall) -> None:
    """Order the newest try; the settings of now count."""
    now = timezone.now()
    task = wire.InstallTask.model_validate(
        {
            "engine": row.engine,
            "variant": row.variant,
            "version": row.version,
            "extras": row.extras,
            "verify_start": row.variant == "cpu",
            **sources.order_fields(row.version),
        }
    )
    row.job = services.order_job(host=row.host, task=task, grace_s=STOP_GRACE_S)
    row.state, row.steps, row.refusal, row.ended_at = InstallState.WAITING, [], None, None
    row.tries += 1
    row.began_at, row.deadline_at = now, now + timedelta(seconds=settings.BERTH_INSTALL_LIMIT_S)
    row.save()
    announce(row)


def announce(row: RuntimeInstall) -> None:
    live.publish_on_commit(live.install_topic(row.pk))
    live.publish_on_commit(live.RUNTIMES)


@admins_only
@transaction.atomic
def cancel(install: RuntimeInstall, *, actor: Any) -> RuntimeInstall:
    """End it. Pressed twice, or when it is over, it changes nothing."""
    row = _locked(install)
    if row.state in (InstallState.WAITING, InstallState.RUNNING):
        row.state = InstallState.CANCELLING
        row.save(update_fields=["state", "updated_at"])
        services.stop_job(row.job_id, grace_s=STOP_GRACE_S)
        audit.record("runtime.install_cancelled", row, actor=actor, host=row.host.name)
        announce(row)
    return row


@admins_only
@transaction.atomic
def try_again(install: RuntimeInstall, *, actor: Any) -> RuntimeInstall:
    """The same once more; what was fetched is used again. While it goes on it changes nothing."""
    row = _locked(install)
    if row.state not in (InstallState.FAILED, InstallState.CANCELLED):
        return row
    row.name = _free_name(row.host, row.variant, row.version)
    _refuse_early(row.host, row.variant, row.version)
    audit.record("runtime.install_tried_again", row, actor=actor, host=row.host.name)
    _order(row)
    return row


def _locked(install: RuntimeInstall) -> RuntimeInstall:
    services.lock_host(install.host_id)
    return RuntimeInstall.objects.select_for_update(of=("self",)).select_related("host").get(pk=install.pk)


# --- remove ---------------------------------------------------------------------------------------------------------


class InUse(Conflict):
    code = "runtime.in_use"
    message = _("%(names)s runs from this engine now.")
    hint = _("Stop it, or give it another engine in its settings, then remove this one.")


class Chosen(Conflict):
    code = "runtime.chosen"
    message = _("The settings of %(names)s name this engine.")
    hint = _("It could not be started any more until another engine is chosen. Confirm to remove it all the same.")


@admins_only
@transaction.atomic
def remove(runtime: Runtime, *, actor: Any, confirmed: bool = False) -> Job:
    """Have an installed engine deleted on its host. Raises InUse while anything runs from it, and Chosen until the loss
    of a stopped deployment's engine is confirmed. The host refuses by itself whatever was not made by an install.
    """
    services.lock_host(runtime.host_id)
    row = Runtime.objects.select_for_update(of=("self",)).select_related("host").get(pk=runtime.pk)
    if row.remove_job is not None:
        return row.remove_job
    refuse_removal(row, confirmed=confirmed)
    task = wire.RemoveTask(executable=row.executable)
    row.remove_job = services.order_job(host=row.host, task=task, grace_s=STOP_GRACE_S)
    row.remove_refusal = None
    row.save(update_fields=["remove_job", "remove_refusal", "updated_at"])
    audit.record("runtime.remove_asked", row, actor=actor, host=row.host.name, executable=row.executable)
    live.publish_on_commit(live.RUNTIMES)
    return row.remove_job


def refuse_removal(row: Runtime, *, confirmed: bool) -> None:
    """Raises Conflict when this engine cannot, or not yet, be removed."""
    if row.removed_at is not None:
        raise Conflict("runtime.gone", _("This engine was removed already."), "")
    if row.origin not in REMOVABLE:
        hint = _("It was found on the host and not installed by Berth. Whoever installed it can remove it there.")
        raise Conflict("runtime.not_managed", _("Berth removes only engines that it installed."), hint)
    uses = users.of([row.pk]).get(row.pk, [])
    running = [use.text for use in uses if use.kind == "running"]
    chosen = [use.text for use in uses if use.kind == "chosen"]
    if running:
        raise InUse(params={"names": ", ".join(running)})
    if chosen and not confirmed:
        raise Chosen(params={"names": ", ".join(chosen)})


# --- look -----------------------------------------------------------------------------------------------------------


@admins_only
def find(host: Host, *, actor: Any) -> Job:
    """Look for engines on a host again."""
    return services.find_runtimes(host, actor=actor)


@admins_only
@transaction.atomic
def name_folder(host: Host, folder: str, *, actor: Any) -> Job:
    """Tell a host of a folder with engines: a venv, a conda environment, or a folder that holds several."""
    folder = folder.strip().rstrip("/")
    parts = folder.split("/")
    if not folder.startswith("/") or ".." in parts or "\x00" in folder or len(folder) > 500:
        raise Invalid({"folder": _("Give the full path of the folder, such as /opt/engines.")})
    row = Host.objects.select_for_update().get(pk=host.pk)
    if folder in row.runtime_folders:
        raise Invalid({"folder": _("This folder is already on the list.")})
    if len(row.runtime_folders) >= MAX_FOLDERS:
        raise Invalid({"folder": _("A host can have %(n)s named folders at most.") % {"n": MAX_FOLDERS}})
    return _set_folders(row, [*row.runtime_folders, folder], "host.engine_folder_named", actor, folder)


@admins_only
@transaction.atomic
def forget_folder(host: Host, folder: str, *, actor: Any) -> Job | None:
    """Look there no more. Engines of it that are not found elsewhere are then shown as gone; no file is touched."""
    row = Host.objects.select_for_update().get(pk=host.pk)
    if folder not in row.runtime_folders:
        return None
    left = [known for known in row.runtime_folders if known != folder]
    return _set_folders(row, left, "host.engine_folder_forgotten", actor, folder)


def _set_folders(row: Host, folders: list[str], verb: str, actor: Any, folder: str) -> Job:
    row.runtime_folders = folders
    row.save(update_fields=["runtime_folders", "updated_at"])
    audit.record(verb, row, actor=actor, folder=folder)
    return services.order_job(host=row, task=services.look_task(row))
