"""Deleting a copy of a model on its host: what stands in the way, what comes back, the order, and what became of it.

Whoever writes several rows locks the host first (fleet services.lock_host), as reports do.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from pydantic import ValidationError

from models_catalog import events, uses
from models_catalog.models import Copy
from models_catalog.uses import Use
from panel import audit
from panel.accounts.access import require
from panel.accounts.actor import name_of
from panel.audit import codes
from panel.core.errors import Conflict
from panel.fleet import services, wire
from panel.fleet.models import LOST_RESULT, Job
from panel.fleet.wire_base import is_absurd

RIGHT = "models.delete"
LIMIT_S = 3600.0
STRANGERS = {"ollama": "Ollama", "lmstudio": "LM Studio"}  # programs that keep these files in order themselves


class InUse(Conflict):
    code = "model.in_use"
    message: Any = _("%(names)s runs from these files now.")
    hint: Any = _("Stop it first, then delete this copy.")


class Chosen(Conflict):
    code = "model.chosen"
    message: Any = _("The settings of %(names)s name this model, and this is its last copy.")
    hint: Any = _("It could not be started any more. Confirm to delete the copy all the same.")


@dataclass(frozen=True)
class Outlook:
    """What deleting a copy would do. `bytes` is what comes back at most; `shared` are bytes that others need too.

    `inside` are copies of other models in its folder, which go with it; `stranded` are those that name their last copy.
    """

    bytes: int
    shared: int
    running: list[Use] = field(default_factory=list)
    chosen: list[Use] = field(default_factory=list)
    last: bool = False  # no other copy of this form would be left
    inside: list[Copy] = field(default_factory=list)
    stranded: list[Use] = field(default_factory=list)

    @property
    def strands(self) -> list[Use]:
        """Those that could not be started any more."""
        mine = self.chosen if self.last else []
        return [*mine, *(use for use in self.stranded if use not in mine)]


def outlooks(copies: Iterable[Copy], used: dict[int, list[Use]] | None = None) -> dict[int, Outlook]:
    """By copy. `copies` are all copies of their artifacts; `used` what uses.of says of them, when it is known."""
    rows = [copy for copy in copies if copy.present]
    used = uses.of({copy.artifact_id for copy in rows}) if used is None else used
    count: dict[int, int] = {}
    for copy in rows:
        if copy.usable and copy.delete_job_id is None:
            count[copy.artifact_id] = count.get(copy.artifact_id, 0) + 1
    return {copy.pk: _outlook(copy, used.get(copy.artifact_id, []), count.get(copy.artifact_id, 0)) for copy in rows}


def _outlook(copy: Copy, used: list[Use], whole: int) -> Outlook:
    own = copy.extra.get("own_bytes")
    freed = copy.artifact.size_bytes if own is None else min(int(own), copy.artifact.size_bytes)
    return Outlook(
        bytes=freed,
        shared=copy.artifact.size_bytes - freed,
        running=[use for use in used if use.kind == "running" and copy.pk in use.copy_ids],
        chosen=[use for use in used if use.kind in ("running", "chosen")],
        last=whole - (copy.usable and copy.delete_job_id is None) <= 0,
    )


def outlook(copy: Copy) -> Outlook:
    """The same of one copy, with what else lies in its folder."""
    inside = list(_inside(copy).select_related("artifact__model"))
    artifacts = {copy.artifact_id, *(other.artifact_id for other in inside)}
    found = outlooks(Copy.objects.filter(artifact__in=artifacts, present=True).select_related("artifact"))
    mine, others = found[copy.pk], [found[other.pk] for other in inside]
    running = [use for other in others for use in other.running if use not in mine.running]
    return replace(
        mine,
        bytes=mine.bytes + sum(other.bytes for other in others),
        running=[*mine.running, *dict.fromkeys(running)],
        inside=inside,
        stranded=list(dict.fromkeys(use for other in others for use in other.strands)),
    )


def _inside(copy: Copy) -> QuerySet[Copy]:
    """Copies of other models below its folder: a GGUF file beside the weights that it was made of, say."""
    return Copy.objects.filter(host=copy.host_id, present=True, path__startswith=f"{copy.path.rstrip('/')}/")


def delete(copy: Copy, *, actor: Any, confirmed: bool = False) -> Job:
    """Have it deleted on its host. Pressed twice, the first order is the answer.

    Raises InUse while a run reads it, and Chosen until the loss of a deployment's last copy is confirmed. The host
    refuses by itself what lies outside its model folders or belongs to another program.
    """
    require(actor, RIGHT, copy.artifact.model)
    with transaction.atomic():
        services.lock_host(copy.host_id)
        rows = Copy.objects.select_for_update(of=("self",)).select_related("host", "artifact__model")
        row = rows.get(pk=copy.pk)
        if row.delete_job is not None:
            return row.delete_job
        _refuse(row, confirmed)
        job = services.order_job(host=row.host, task=wire.DeleteTask(paths=[row.path]))
        row.delete_job, row.delete_refusal = job, None
        row.deleted_by = name_of(actor)
        row.save(update_fields=["delete_job", "delete_refusal", "deleted_by", "updated_at"])
        audit.record("model.delete_asked", row.artifact.model, actor=actor, host=row.host.name, path=row.path)
        transaction.on_commit(events.announce, robust=True)
    return job


def _refuse(row: Copy, confirmed: bool) -> None:
    if not row.present:
        raise Conflict("model.gone", _("This copy is gone already."), _("Load the page again."))
    if row.host.lost_at is not None:
        text = _("%(host)s has no contact with the panel, so nothing can be deleted there now.")
        raise Conflict("host.away", text, _("Start the agent on that host again."), params={"host": row.host.name})
    if (program := row.extra.get("source")) in STRANGERS and program == "ollama":
        text = _("%(program)s keeps these files in order itself.")
        hint = _("Delete the model there, then look for models again.")
        raise Conflict("delete.of_ollama", text, hint, params={"program": STRANGERS[program]})
    found = outlook(row)
    if found.running:
        raise InUse(params={"names": ", ".join(use.text for use in found.running)})
    if found.strands and not confirmed:
        raise Chosen(params={"names": ", ".join(use.text for use in found.strands)})


# --- what became of it ------------------------------------------------------------------------------------------------


@transaction.atomic
def take(job: Job) -> bool:
    """Write the end of a deletion. False when there is nothing to write yet."""
    services.lock_host(job.host_id)
    rows = Copy.objects.select_for_update(of=("self",)).select_related("host", "artifact__model")
    row = rows.filter(delete_job_id=job.pk).first()
    if row is None:
        return False
    refusal, freed = _ending(job, row.path)
    if refusal is None and freed is None:
        return False
    row.delete_job, row.delete_refusal = None, refusal
    facts: dict[str, Any] = {"host": row.host.name, "path": row.path}
    if refusal is None:
        row.present, row.deleted_at = False, timezone.now()
        _inside(row).update(present=False, deleted_at=row.deleted_at, updated_at=row.deleted_at)
        audit.record("model.deleted", row.artifact.model, actor=None, **facts, freed_bytes=freed)
    else:
        audit.record("model.delete_failed", row.artifact.model, actor=None, **facts, **codes.facts_of(refusal))
    row.save(update_fields=["delete_job", "delete_refusal", "present", "deleted_at", "updated_at"])
    transaction.on_commit(events.announce, robust=True)
    return True


def _ending(job: Job, path: str) -> tuple[dict[str, Any] | None, int | None]:
    """(why it stays, None) or (None, bytes that came back); (None, None) while nothing is known."""
    failed = {"code": "delete.no_answer", "params": {}}
    if job.result is not None:
        result = wire.JobResult.model_validate(job.result)
        item = next((item for item in result.items if item.get("path") == path), None)
        if item is None:
            return (result.refusal.model_dump(mode="json") if result.refusal else failed), None
        if item.get("refusal"):
            return _refusal(item["refusal"]) or failed, None
        freed = item.get("freed_bytes")
        return None, freed if isinstance(freed, int) and not is_absurd(freed) else 0
    if job.never_ran:
        return job.status.get("refusal") or {"code": "delete.stopped", "params": {}}, None
    now = timezone.now()
    silent = job.ended_at is not None and job.ended_at < now - LOST_RESULT
    late = job.state != "ended" and job.created_at < now - timedelta(seconds=LIMIT_S)
    return (failed, None) if silent or late else (None, None)


def _refusal(said: Any) -> dict[str, Any] | None:
    """The host's reason, None where it is no reason at all."""
    try:
        return wire.Refusal.model_validate(said).model_dump(mode="json")
    except ValidationError:
        return None


def untaken() -> list[str]:
    """Ids of deletions whose end nobody wrote, because a nudge was lost."""
    now = timezone.now()
    rows = Job.objects.filter(pk__in=Copy.objects.exclude(delete_job=None).values("delete_job"))
    ended = Q(state="refused") | Q(result__isnull=False) | Q(ended_at__lt=now - LOST_RESULT)
    late = Q(created_at__lt=now - timedelta(seconds=LIMIT_S))
    return [str(pk) for pk in rows.filter(ended | late).values_list("pk", flat=True)[:100]]
