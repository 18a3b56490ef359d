"""What an admin does with a host: rename, set aside and take back (a whole host or one GPU), forget."""

import json
import re
import secrets
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts.actor import as_actor
from panel.core.crypto import seal
from panel.core.errors import Conflict, Invalid, NotFound
from panel.fleet import doors, live, signals
from panel.fleet.models import Gpu, Host, Job, Runtime
from panel.fleet.services import bump, lock_host
from panel.fleet.wire import JOB_OVER

MAX_NOTE = 200
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def _row(host: Host) -> Host:
    """The host's row, locked. Raises NotFound for one that was forgotten meanwhile."""
    lock_host(host.pk)
    row = Host.objects.filter(pk=host.pk, forgotten_at=None).first()
    if row is None:
        raise NotFound
    return row


@transaction.atomic
def rename(host: Host, name: str, *, actor: Any) -> Host:
    """Give a host another name. Runs keep the name that it had. Raises Invalid."""
    row = _row(host)
    if not NAME.fullmatch(name):
        raise Invalid({"name": _("Use letters, digits, dots, hyphens and underscores, at most 64.")})
    if name == row.name:
        return row
    if Host.objects.filter(name=name, forgotten_at=None).exclude(pk=row.pk).exists():
        raise Invalid({"name": _("There is another host of this name.")})
    before = row.name
    row.name = name
    row.save(update_fields=["name", "updated_at"])
    audit.record("host.renamed", row, actor=actor, before={"name": before}, after={"name": name})
    live.publish_on_commit(live.HOSTS)
    return row


def _hold(actor: Any, note: str) -> dict[str, str]:
    text = " ".join(note.split())
    if len(text) > MAX_NOTE:
        raise Invalid({"note": _("At most %(n)s characters.") % {"n": MAX_NOTE}})
    return {"by": as_actor(actor).name if actor else "", "at": timezone.now().isoformat(), "note": text}


@transaction.atomic
def drain(host: Host, *, actor: Any, note: str = "") -> Host:
    """Nothing new starts on this host; what runs goes on. Again: only the note changes."""
    row = _row(host)
    row.hold, row.schedulable = _hold(actor, note), False
    row.save(update_fields=["hold", "schedulable", "updated_at"])
    audit.record("host.drained", row, actor=actor, note=row.hold["note"])
    live.publish_on_commit(live.HOSTS)
    return row


@transaction.atomic
def undrain(host: Host, *, actor: Any) -> Host:
    """New starts may go to this host again."""
    row = _row(host)
    if row.schedulable:
        return row
    row.hold, row.schedulable = None, True
    row.save(update_fields=["hold", "schedulable", "updated_at"])
    audit.record("host.undrained", row, actor=actor)
    _room(row.pk)
    return row


@transaction.atomic
def set_gpu_schedulable(gpu: Gpu, schedulable: bool, *, actor: Any, note: str = "") -> Gpu:
    """Set one GPU aside, or take it back. What runs on it goes on."""
    host = _row(gpu.host)
    row = Gpu.objects.select_for_update().get(pk=gpu.pk)
    if schedulable and row.schedulable:
        return row
    row.schedulable, row.hold = schedulable, None if schedulable else _hold(actor, note)
    row.save(update_fields=["schedulable", "hold"])
    facts = {"gpu": row.index, "name": row.name}
    if row.hold:
        audit.record("host.gpu_set_aside", host, actor=actor, note=row.hold["note"], **facts)
    else:
        audit.record("host.gpu_taken_back", host, actor=actor, **facts)
    _room(host.pk)
    return row


def _room(host_id: int) -> None:
    """Pages look again, and so do those who wait for a place."""
    live.publish_on_commit(live.HOSTS)
    transaction.on_commit(partial(signals.host_back.send_robust, sender=Host, host_id=host_id), robust=True)


@transaction.atomic
def new_door_key(host: Host, *, actor: Any) -> None:
    """Replace the panel's key for a host's door. The old one goes on until the host takes the new one."""
    row = _row(host)
    if row.is_local:
        raise Conflict("door.none", _("This host has no door of its own."), "")
    keys = [secrets.token_urlsafe(32), *doors.keys_of(row)[:1]]
    Host.objects.filter(pk=row.pk).update(door_keys=seal(json.dumps(keys)))
    audit.record("host.door_key_replaced", row, actor=actor)
    bump(row.pk)


def living(host: Host) -> list[Job]:
    """Engines that should be, or may be, on the host."""
    return list(host.jobs.filter(kind="engine", open=True).exclude(state__in=JOB_OVER).order_by("created_at"))


@transaction.atomic
def forget(host: Host, *, actor: Any, sure: bool = False) -> None:
    """Take a host out of Berth. Its runs keep their history, its name is free, its token is worth nothing.

    Raises Conflict for the panel's own machine, and while engines run there; on a host without contact they are given
    up when `sure`: nobody can say whether they still run.
    """
    row = _row(host)
    if row.is_local:
        raise Conflict(
            "host.local",
            _("This is the machine that Berth runs on."),
            _("To use it for nothing, set it aside. Without its agent (BERTH_LOCAL_AGENT=0) it is silent."),
        )
    jobs = living(row)
    if jobs and row.lost_at is None:
        raise Conflict(
            "host.in_use",
            _("Deployments run on this host."),
            _("Stop them, or move them to another host by editing them; then forget it."),
        )
    if jobs and not sure:
        raise Conflict(
            "host.maybe_in_use",
            _("This host has no contact, and deployments may still run on it."),
            _("Confirm that you give them up."),
        )
    given_up = _give_up(row)
    Runtime.objects.filter(host=row).update(present=False)
    Gpu.objects.filter(host=row).update(present=False)
    row.forgotten_at = timezone.now()
    row.token_hash = f"forgotten {secrets.token_hex(16)}"
    row.schedulable, row.hold, row.door, row.door_keys = False, None, {}, None
    row.save()
    audit.record("host.forgotten", row, actor=actor, given_up=len(given_up))
    live.publish_on_commit(live.HOSTS)
    live.publish_on_commit(live.work_topic(row.pk))
    gone = partial(signals.host_forgotten.send_robust, sender=Host, host_id=row.pk)
    transaction.on_commit(gone, robust=True)
    for job in given_up:
        news = {"job_id": job.pk, "kind": job.kind, "state": "ended", "log_grew": False}
        transaction.on_commit(partial(signals.job_changed.send_robust, sender=Job, **news), robust=True)


def _give_up(host: Host) -> list[Job]:
    """End every open job on paper: nobody will ever report of it again."""
    now = timezone.now()
    jobs = list(host.jobs.filter(open=True))
    for job in jobs:
        if job.state not in JOB_OVER:
            gone = {"code": "host_forgotten", "params": {"host": host.name}}
            job.status = {**job.status, "id": str(job.pk), "kind": job.kind, "state": "ended", "refusal": gone}
            job.state, job.ended_at = "ended", now
        job.open, job.secrets = False, None
        job.save(update_fields=["status", "state", "ended_at", "open", "secrets"])
    return jobs
