"""Starts that failed, as the team's memory of them: kept at the end of a run, told apart by class, judged by people.

One narrow row a failed run (models.Failure), so that thousands are counted in a moment. The run's own record stays
with the run; a run that ended before there were such rows gets its own when somebody judges it.
"""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from deployments.diagnosis.alike import key_of
from deployments.models import Failure, Run
from deployments.spec import DeploymentSpec, diff
from panel import audit
from panel.accounts.actor import name_of
from panel.core.errors import Conflict, Invalid

# Ends that only say how, not why.
UNEXPLAINED = frozenset({"exit.code", "exit.signal", "exit.zero", "exit.unknown"})
SAME = "same"  # nothing was changed, and it went well all the same
LONGEST_NOTE = 500
_ENGINE, _HOST = "engine", "host"
# What the planner looks at, in its order; whatever is no such reason is about the model on the device that was found.
_STAGES: tuple[tuple[str, ...], ...] = (("host.",), ("copy.",), ("runtime.", "cpu."))
_NO_ROOM = ("host.ram_too_small", "host.kv_too_small")
HEAVY = ("secrets", "command", "env", "parser", "error_block", "foreseen", "measured", "golden")  # for nothing here


def class_of(reason: Mapping[str, Any]) -> str:
    """The class of a failure: the diagnosis's, else the panel's own reason; "" where the cause is not known.

    Where several places or settings were refused, the one that came farthest tells why: a host without the model says
    less than the one that has it and whose GPU is too small.
    """
    params = reason.get("params") or {}
    refused = [str(each.get("code") or "") for each in params.get("candidates") or []]
    code = str(params.get("cause") or max(refused, key=_how_far, default="") or reason.get("code") or "")
    return "" if code in UNEXPLAINED else code[:80]


def _how_far(code: str) -> int:
    """How far the planner came with a place before it gave this reason."""
    if code in _NO_ROOM:
        return len(_STAGES)
    return next((stage for stage, kinds in enumerate(_STAGES) if code.startswith(kinds)), len(_STAGES))


def root_of(block: Mapping[str, Any]) -> str:
    """The text of an error block's root line, its last line where it names none; "" without a block."""
    lines, numbers = block.get("lines") or [], block.get("numbers") or []
    root = block.get("root_line")
    if root in numbers and len(numbers) == len(lines):
        return str(lines[numbers.index(root)])
    return str(lines[-1]) if lines else ""


def keep(run: Run, reason: Mapping[str, Any], block: Mapping[str, Any] | None = None) -> Failure:
    """The row of a run that failed; kept once, whoever comes again."""
    facts = {
        "deployment_id": run.deployment_id,
        "at": run.ended_at or timezone.now(),
        "code": class_of(reason),
        "phase": str((reason.get("params") or {}).get("phase") or "")[:20],
        "engine": run.runtime.engine if run.runtime is not None else "",
        "engine_version": run.engine_version,
        "host_name": run.host_name,
        "model_name": run.model_name,
        "alike": key_of(root_of(block or {})),
    }
    return Failure.objects.get_or_create(run=run, defaults=facts)[0]


# --- mended by the next start -----------------------------------------------------------------------------------------


def mended(run_id: Any) -> None:
    """A start got ready: the failure of the very start before it was mended, by what this one did differently."""
    run = Run.objects.select_related("revision").filter(pk=run_id).defer(*HEAVY).first()
    if run is None:
        return
    before = Run.objects.filter(deployment=run.deployment_id, number=run.number - 1, outcome="failed")
    old = before.filter(failure__mended_by=None).select_related("revision").defer(*HEAVY).first()
    if old is not None:
        Failure.objects.filter(run=old, mended_by=None).update(mended_by=run, mended_change=change_between(old, run))


def change_between(old: Run, new: Run) -> str:
    """Names of what the later start did differently, or "same"."""
    names: list[str] = []
    if old.revision_id != new.revision_id:
        before, after = (DeploymentSpec.model_validate(each.revision.spec) for each in (old, new))
        names = [name.removeprefix("options.") for name in diff(before, after)]
    if old.engine_version and (old.engine_version, old.runtime_id) != (new.engine_version, new.runtime_id):
        names = [name for name in names if name != "runtime_id"] + [_ENGINE]
    if old.host_id is not None and old.host_id != new.host_id:
        names = [name for name in names if name != "host_id"] + [_HOST]
    return _joined(names) or SAME


def _joined(names: list[str]) -> str:
    """Whole names, as many as there is room for."""
    said = ""
    for name in dict.fromkeys(names):
        longer = f"{said},{name}" if said else name
        if len(longer) > 200:
            break
        said = longer
    return said


# --- was this right? --------------------------------------------------------------------------------------------------


@transaction.atomic
def judge(run: Run, *, right: bool | None, note: str, actor: Any) -> Failure:
    """What a person says of the explanation of a failed start; None takes it back. Raises Invalid, Conflict."""
    if run.outcome != "failed":
        raise Conflict("run.not_failed", _("This start did not fail."), _("Only a failure is explained."))
    text = " ".join(note.replace("\0", " ").encode("utf-8", "replace").decode().split())
    if len(text) > LONGEST_NOTE:
        raise Invalid({"note": _("At most 500 characters.")})
    row = Failure.objects.select_for_update().get(pk=keep(run, run.reason, run.error_block).pk)
    text = text if right is not None else ""
    before = {"right": row.right, "note": row.note}
    after = {"right": right, "note": text}
    if before == after:
        return row
    row.right, row.note = right, text
    row.judged_by, row.judged_by_id, row.judged_at = "", None, None
    if right is not None:
        row.judged_by, row.judged_by_id, row.judged_at = (
            name_of(actor)[:150],
            getattr(actor, "id", None),
            timezone.now(),
        )
    row.save(update_fields=["right", "note", "judged_by", "judged_by_id", "judged_at"])
    target = ("run", str(run.pk), run.deployment.name)
    story = f"deployment:{run.deployment_id}"
    audit.record("run.judged", target, actor=actor, story=story, before=before, after=after, reason=row.code)
    return row
