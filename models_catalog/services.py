"""What people and finished scans change in the catalog. Each act is one transaction with its audit row."""

import logging
from datetime import timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from django.db import DataError, transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from models_catalog import events
from models_catalog.models import Copy, ScannedRoot
from models_catalog.record import WHOLE, Outcome, record_scan
from models_catalog.shelf import set_remote_code
from panel import audit
from panel.core.errors import Conflict, Invalid, NotFound
from panel.fleet import wire
from panel.fleet.models import Host, Job
from panel.fleet.services import order_job, share_folders

__all__ = ["Outcome", "add_root", "record_scan", "remove_root", "request_scan", "roots_of", "set_remote_code", "take"]

log = logging.getLogger(__name__)

MAX_ROOTS = 50
MAX_PATH = 500  # characters; agents cut longer ones in their answers
PATIENCE = timedelta(seconds=15)  # how long a nudge may take before the sweep looks
NEWEST = timedelta(days=1)


class HostAway(Conflict):
    code = "host.away"
    message = _("%(host)s has no contact with the panel, so it cannot look for models now.")
    hint = _("Start the agent on that host again; the folders are looked through as soon as it is back.")


class NoSuchFolder(NotFound):
    code = "folder.unknown"
    message = _("This folder is not on the list of that host.")
    hint = _("Load the page again: someone may have removed it.")


def roots_of(host: Host) -> list[str]:
    """The folders that a scan looks through: the ones its agent always takes, then the ones that admins added."""
    own = host.facts.get("model_roots") or []
    return list(dict.fromkeys(str(path) for path in [*own, *host.model_roots]))


def running_scan(host: Host) -> Job | None:
    """The scan that a host still has to finish, if any."""
    return (
        host.jobs.filter(kind="scan", open=True, desired="run")
        .exclude(state__in=wire.JOB_OVER)
        .order_by("created_at")
        .last()
    )


@transaction.atomic
def request_scan(host: Host, *, actor: Any) -> Job:
    """Look through the folders of a host. While such a scan runs, that one is the answer. Raises HostAway."""
    row = Host.objects.select_for_update().get(pk=host.pk)
    if row.lost_at is not None:
        raise HostAway(params={"host": row.name})
    running = running_scan(row)
    if running is not None and set(row.model_roots) <= set(running.order.get("roots", [])):
        return running
    audit.record("host.models_searched", row, actor=actor)
    return _order(row)


def look_again(host: Host) -> Job:
    """A look that begins from now on, for a reason of the panel's own. Part of the caller's transaction."""
    running = running_scan(host)
    return running if running is not None and running.state == "ordered" else _order(host)


def _order(host: Host) -> Job:
    job = order_job(host=host, task=wire.ScanTask(roots=host.model_roots))
    transaction.on_commit(events.announce, robust=True)
    return job


@transaction.atomic
def add_root(host: Host, path: str, *, actor: Any) -> Job:
    """Add a folder to a host's list and look through it. Raises Invalid or Conflict.

    The agent has the last word: a folder that its own settings do not allow comes back as a problem of the folder.
    """
    folder = checked_folder(path)
    row = Host.objects.select_for_update().get(pk=host.pk)
    if folder in roots_of(row):
        raise Conflict("folder.known", _("This folder is already on the list."), "")
    if len(row.model_roots) >= MAX_ROOTS:
        raise Invalid({"path": _("A host can have %(n)s added folders at most.") % {"n": MAX_ROOTS}})
    before = list(row.model_roots)
    row.model_roots = [*before, folder]
    row.save(update_fields=["model_roots", "updated_at"])
    facts = {"before": {"folders": before}, "after": {"folders": row.model_roots}}
    audit.record("host.folder_added", row, actor=actor, **facts)
    transaction.on_commit(partial(share_folders, row))
    return _order(row)


def checked_folder(path: str) -> str:
    """The folder in its plain spelling. Raises Invalid: it must be absolute, without "..", and not the whole disk."""
    text = path.strip()
    parts = PurePosixPath(text).parts
    if not text.startswith("/") or ".." in parts or len(text) > MAX_PATH or not text.isprintable():
        raise Invalid({"path": _("Give the full path of the folder, such as /data/models.")})
    folder = "/" + "/".join(parts[1:])
    if folder == "/":
        raise Invalid({"path": _("Name a folder, not the whole disk.")})
    return folder


@transaction.atomic
def remove_root(host: Host, path: str, *, actor: Any) -> int:
    """Take an added folder off the list; its models leave the catalog, the files stay. Returns how many copies left.

    Copies that another folder of the list holds stay. Raises NoSuchFolder.
    """
    row = Host.objects.select_for_update().get(pk=host.pk)
    if path not in row.model_roots:
        raise NoSuchFolder
    before = list(row.model_roots)
    row.model_roots = [folder for folder in before if folder != path]
    row.save(update_fields=["model_roots", "updated_at"])
    ScannedRoot.objects.filter(host=row, path=path).delete()
    still = tuple(folder.rstrip("/") + "/" for folder in roots_of(row))
    rows = Copy.objects.filter(host=row, present=True, path__startswith=path.rstrip("/") + "/")
    left = [pk for pk, place in rows.values_list("pk", "path") if not place.startswith(still)]
    Copy.objects.filter(pk__in=left).update(present=False)
    facts = {"before": {"folders": before}, "after": {"folders": row.model_roots}}
    audit.record("host.folder_removed", row, actor=actor, copies=len(left), **facts)
    transaction.on_commit(partial(share_folders, row))
    transaction.on_commit(events.announce, robust=True)
    return len(left)


@transaction.atomic
def take(job: Job) -> Outcome | None:
    """Write the result of a finished scan. None when there is nothing to write yet."""
    if job.kind != "scan":
        return None
    items = _items(job)
    if items is None:
        return None
    at = job.ended_at or job.status_at
    try:
        with transaction.atomic():
            outcome = record_scan(job.host, items, seen_at=at)
    except DataError:  # a value that no column takes: else the sweep would try the same for ever
        log.exception("the scan of %s cannot be written down", job.host)
        outcome = record_scan(job.host, [{} for _item in items], seen_at=at)
    transaction.on_commit(events.announce, robust=True)
    return outcome


def _items(job: Job) -> list[dict[str, Any]] | None:
    """What the scan says; a scan that failed as a whole becomes a problem of each of its folders."""
    if job.result is not None:
        result = wire.JobResult.model_validate(job.result)
        refusal = result.refusal
        if result.items or refusal is None:
            return result.items
    elif job.state == "refused":
        status = wire.JobStatus.model_validate(job.status)
        refusal = status.refusal or wire.Refusal(code="scan_failed")
    elif job.state == "ended" and _is_hopeless(job):
        refusal = wire.Refusal(code="scan_failed")
    else:
        return None
    # "not_scanned" keeps the known copies as they are: a scan that did not run says nothing about them.
    problems = [refusal.model_dump(mode="json"), {"code": "not_scanned", "params": {}}]
    folders = dict.fromkeys([*roots_of(job.host), *job.order.get("roots", [])])
    empty = {"format": "folder", "name": "", "size_bytes": 0, "files": 0, "problems": problems}
    return [{**empty, "path": path, "root": path} for path in folders]


def _is_hopeless(job: Job) -> bool:
    """An ended scan whose result will not come: it ended badly, or long ago."""
    failed = bool(job.status.get("exit_code") or job.status.get("signal"))
    return failed or (job.ended_at is not None and job.ended_at < timezone.now() - 4 * PATIENCE)


def untaken() -> list[str]:
    """Ids of finished scans whose result was not written, because a nudge was lost. The ticker sends them again."""
    now = timezone.now()
    written = ScannedRoot.objects.filter(host=OuterRef("host"), path=WHOLE, scanned_at__gte=OuterRef("ended_at"))
    rows = Job.objects.filter(kind="scan", state__in=wire.JOB_OVER, ended_at__range=(now - NEWEST, now - PATIENCE))
    rows = rows.filter(Q(state="refused") | Q(result__isnull=False) | Q(ended_at__lt=now - 4 * PATIENCE))
    return [str(pk) for pk in rows.exclude(Exists(written)).values_list("pk", flat=True)[:100]]
