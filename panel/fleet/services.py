"""What changes hosts and their work: orders, stops, reservations, joining. Everything here is one transaction."""

import hashlib
import json
import re
import secrets
import socket
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.core import trace
from panel.core.crypto import seal, unseal
from panel.core.errors import Conflict, Invalid, PanelError
from panel.fleet import doors, live, samples, wire
from panel.fleet.models import Gpu, Host, Job, JobLog, Reservation, Runtime

MAX_EXECUTABLES = 50


class NoRoom(PanelError):
    """A reservation that does not fit; `params` names the device and the MiB."""

    code = "reserve.no_room"
    message = _("%(device)s has no room for %(mib)s MiB more.")
    status = 409


def digest(secret: str) -> str:
    """How host tokens and join codes are stored: SHA-256, hexadecimal. They are random, so no salt is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


# --- work -----------------------------------------------------------------------------------------------------------


def lock_host(host_id: int) -> None:
    """Hold the host's row until the commit. Whoever writes several kinds of its rows takes it first, then GPUs, then
    jobs: reports, stops and releases come at the same time, and in two orders they would deadlock.
    """
    list(Host.objects.select_for_update(no_key=True).filter(pk=host_id).values_list("pk"))


class HostGone(PanelError):
    """A host that was forgotten: nobody would ever do what is ordered there."""

    code = "host_forgotten"
    message = _("This host does not belong to the panel any more.")
    status = 409


def takes_new(host_id: int, runtime_id: int, gpu_uuids: Iterable[str]) -> bool:
    """Whether a start may go there now: neither set aside nor forgotten, and the engine stays.

    Holds the host's row until the commit, as do all who change one of these; so what a look found a moment ago is true
    when the start is written.
    """
    lock_host(host_id)
    wanted = set(gpu_uuids)
    return (
        Host.objects.filter(pk=host_id, schedulable=True, forgotten_at=None).exists()
        and Runtime.objects.filter(pk=runtime_id, present=True, remove_job=None).exists()
        and Gpu.objects.filter(host_id=host_id, uuid__in=wanted, schedulable=True).count() == len(wanted)
    )


def bump(host_id: int) -> None:
    """A host's work changed: grow its revision and wake its long-poll after the commit."""
    Host.objects.filter(pk=host_id).update(work_rev=F("work_rev") + 1)
    live.publish_on_commit(live.work_topic(host_id))


@transaction.atomic
def order_job(*, host: Host, task: wire.Message, job_id: uuid.UUID | None = None, grace_s: float = 30.0) -> Job:
    """Order one job. The same id twice is one job, so that a repeated step orders nothing new. Raises HostGone."""
    lock_host(host.pk)
    if not Host.objects.filter(pk=host.pk, forgotten_at=None).exists():
        raise HostGone
    order = task.model_dump(mode="json")
    secret_env = order.pop("secret_env", None)
    job, made = Job.objects.get_or_create(
        pk=job_id or uuid.uuid4(),
        defaults={
            "host": host,
            "kind": order["kind"],
            "order": order,
            "grace_s": grace_s,
            "secrets": seal(json.dumps(secret_env)) if secret_env else None,
            "trace": trace.current(),
        },
    )
    if made:
        JobLog.objects.create(job=job)
        bump(host.pk)
    return job


@transaction.atomic
def stop_job(job_id: uuid.UUID, *, grace_s: float | None = None) -> bool:
    """Ask for the end of a job; False when that was asked already or it has ended."""
    changes: dict[str, Any] = {"desired": "stop"} | ({"trace": trace.current()} if trace.current() else {})
    if grace_s is not None:
        changes["grace_s"] = grace_s
    job = Job.objects.filter(pk=job_id, open=True).exclude(desired="stop")
    host_id = job.values_list("host_id", flat=True).first()
    if host_id is None:
        return False
    lock_host(host_id)
    if not job.update(**changes):
        return False
    bump(host_id)
    return True


def work_of(host: Host) -> wire.Work:
    """All that should be on the host now."""
    jobs = [
        {
            "id": str(job.pk),
            "desired": job.desired,
            "grace_s": job.grace_s,
            "begun": _begun(job),
            "trace": job.trace,
            "task": {**job.order, **({"secret_env": json.loads(unseal(job.secrets))} if job.secrets else {})},
        }
        for job in host.jobs.filter(open=True).select_related("log").defer("log__tail").order_by("created_at")
    ]
    return wire.Work.model_validate({"rev": host.work_rev, "jobs": jobs, "door": doors.order_for(host)})


def _begun(job: Job) -> bool:
    """Whether an engine's process was seen here. A scan or an install may well be done anew."""
    return job.kind == "engine" and (job.state in wire.JOB_OVER or bool(job.status.get("pid") or job.log.size))


# --- reservations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """MiB of one GPU (by uuid), or of the host's RAM when `gpu_uuid` is None."""

    gpu_uuid: str | None
    mib: int


@transaction.atomic
def reserve(holder: str, host: Host, shares: Iterable[Share]) -> None:
    """Claim memory for a holder, all or nothing. Reserving again for the same holder changes nothing.

    Raises NoRoom when a device would be overcommitted: the CHECK of the database decides, not a sum read earlier.
    """
    if Reservation.objects.filter(holder=holder).exists():
        return
    for share in sorted(shares, key=lambda s: s.gpu_uuid or ""):  # one order everywhere, so that no two deadlock
        gpu = Gpu.objects.get(host=host, uuid=share.gpu_uuid) if share.gpu_uuid else None
        try:
            with transaction.atomic():
                if gpu is not None:
                    Gpu.objects.filter(pk=gpu.pk).update(reserved_mib=F("reserved_mib") + share.mib)
                else:
                    Host.objects.filter(pk=host.pk).update(ram_reserved_mib=F("ram_reserved_mib") + share.mib)
                Reservation.objects.create(host=host, gpu=gpu, holder=holder, mib=share.mib)
        except IntegrityError as exc:
            raise NoRoom(params={"device": str(gpu or host), "mib": share.mib}) from exc


@transaction.atomic
def release(holder: str) -> None:
    """Give back all that a holder claimed; a second call finds nothing."""
    rows = Reservation.objects.select_for_update().filter(holder=holder)
    for row in rows.order_by(F("gpu_id").asc(nulls_first=True)):  # the host's RAM first, as in `reserve`
        if row.gpu_id:
            Gpu.objects.filter(pk=row.gpu_id).update(reserved_mib=F("reserved_mib") - row.mib)
        else:
            Host.objects.filter(pk=row.host_id).update(ram_reserved_mib=F("ram_reserved_mib") - row.mib)
        row.delete()


# --- hosts ------------------------------------------------------------------------------------------------------------


@transaction.atomic
def ensure_local_host(folder: Path) -> Host:
    """The panel's own machine as a host: its row, and the agent's settings with the token in `folder` (0700/0600).

    A lost or foreign token file is replaced by a new token, so that a copied data folder still works.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    token_file = folder / "token"
    token = token_file.read_text(encoding="ascii").strip() if token_file.exists() else ""
    host = Host.objects.filter(is_local=True).first()
    if host is None or not token or host.token_hash != digest(token):
        token = secrets.token_urlsafe(32)
        _write_private(token_file, token)
        if host is None:
            host = Host.objects.create(name=free_name(socket.gethostname()), is_local=True, token_hash=digest(token))
            audit.record("host.joined", host, actor=None, local=True)
            first_look(host)
        else:
            # Whoever had the old token has no seat any more: a restored folder need not wait for its silence.
            Host.objects.filter(pk=host.pk).update(token_hash=digest(token), agent_instance="")
    write_local_settings(host, folder)
    if not host.runtimes.filter(present=True).exists():  # perhaps one was prepared while the panel was away
        look_here()
    return host


def write_local_settings(host: Host, folder: Path) -> None:
    """The local agent's agent.json: where its panel is, and the folders that admins added; the rest of it is kept."""
    config = folder / "agent.json"
    known = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    wanted = {
        **known,
        "panel": settings.BERTH_INTERNAL_URL,
        "token_file": str(folder / "token"),
        "engine_cache": str(settings.BERTH_ENGINE_CACHE),
        "added_roots": host.model_roots,
    }
    if wanted != known:
        _write_private(config, json.dumps(wanted, indent=2) + "\n")


def share_folders(host: Host) -> None:
    """Tell the local agent of added folders, in its own settings; another host's owner decides there."""
    folder = settings.BERTH_DATA / "agent"
    if host.is_local and (folder / "agent.json").exists():
        write_local_settings(host, folder)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, never half."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def free_name(wish: str) -> str:
    """A name that no host has: the first part of this one, numbered where that is taken."""
    base = re.sub(r"[^a-z0-9_-]+", "-", wish.split(".")[0][:50].lower()).strip("-_") or "host"
    taken = set(Host.objects.filter(name__startswith=base, forgotten_at=None).values_list("name", flat=True))
    return next(name for n in range(1, 10_000) if (name := base if n == 1 else f"{base}-{n}") not in taken)


def look_task(host: Host) -> wire.RuntimesTask:
    """A search for engines in all places that admins named on this host."""
    return wire.RuntimesTask(executables=host.runtime_executables, folders=host.runtime_folders)


def first_look(host: Host) -> None:
    """What a new host is asked at once: which engines it has and which models lie in its usual folders."""
    order_job(host=host, task=look_task(host))
    order_job(host=host, task=wire.ScanTask(roots=host.model_roots))


@transaction.atomic
def look_here() -> bool:
    """Look for engines and models on the panel's own machine, unless that goes on already. False: it is no host."""
    host = Host.objects.select_for_update().filter(is_local=True).first()
    if host is None:
        return False
    if not host.jobs.filter(kind__in=("runtimes", "scan"), open=True, desired="run").exists():
        first_look(host)
    return True


@transaction.atomic
def find_runtimes(host: Host, *, actor: Any) -> Job:
    """Look for engines on a host again."""
    running = host.jobs.filter(kind="runtimes", open=True, desired="run").first()
    if running is not None:
        return running
    audit.record("host.engines_searched", host, actor=actor)
    return order_job(host=host, task=look_task(host))


@transaction.atomic
def name_runtime(host: Host, executable: str, *, actor: Any) -> Job:
    """Tell a host about an engine that is not on its PATH; an absolute path without `..`."""
    path = Path(executable)
    if not path.is_absolute() or ".." in path.parts or "\x00" in executable or len(executable) > 500:
        raise Invalid({"executable": _("Give the full path of the executable, such as /opt/vllm/bin/vllm.")})
    row = Host.objects.select_for_update().get(pk=host.pk)
    if executable in row.runtime_executables:
        raise Conflict("runtime.named", _("This executable is already on the list."), "")
    if len(row.runtime_executables) >= MAX_EXECUTABLES:
        raise Invalid({"executable": _("A host can have %(n)s named executables at most.") % {"n": MAX_EXECUTABLES}})
    before = list(row.runtime_executables)
    row.runtime_executables = [*before, executable]
    row.save(update_fields=["runtime_executables", "updated_at"])
    audit.record(
        "host.engine_named",
        row,
        actor=actor,
        before={"executables": before},
        after={"executables": row.runtime_executables},
    )
    return order_job(host=row, task=look_task(row))


def mark_lost_hosts() -> list[int]:
    """Hosts whose agent was silent too long; each is reported once. Called by the ticker."""
    rows = list(Host.objects.filter(lost_at=None).only("pk", "last_seen_at"))
    late = samples.overdue(rows, settings.BERTH_HOST_LOST_S)
    heard = samples.called(row for row in rows if row.pk in late)
    lost = []
    for pk, at in heard.items():
        limit = timezone.now() - timedelta(seconds=settings.BERTH_HOST_LOST_S)
        silent = Host.objects.filter(pk=pk, last_seen_at__lt=limit, lost_at=None)
        if silent.update(lost_at=timezone.now(), last_seen_at=at):
            lost.append(pk)
            live.publish_on_commit(live.HOSTS)
    return lost


def clock_moved() -> None:
    """Silences count from now on, and nobody has called in the future."""
    now = timezone.now()
    samples.clock_moved(now.timestamp())
    Host.objects.filter(last_seen_at__gt=now).update(last_seen_at=now)


@transaction.atomic
def take_runtimes(job: Job, result: wire.JobResult) -> None:
    """Write the engines that a discovery found; ones not found any more stay, marked as not present.

    An engine that came after the search began says nothing by its absence.
    """
    seen = [keep_runtime(job.host, wire.FoundRuntime.model_validate(item)).pk for item in result.items]
    if result.refusal is None:
        known = Runtime.objects.filter(host=job.host, present=True, updated_at__lt=job.created_at)
        known.exclude(pk__in=seen).update(present=False)
    live.publish_on_commit(live.HOSTS)


def keep_runtime(host: Host, found: wire.FoundRuntime) -> Runtime:
    """The row of an engine that is on a host, as it was just asked."""
    values = found.model_dump(mode="json", exclude={"executable"})
    row, _made = Runtime.objects.update_or_create(
        host=host, executable=found.executable, defaults={**values, "present": True, "removed_at": None}
    )
    return row
