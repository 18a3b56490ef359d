"""What people want: each act writes intent and its audit row in one transaction, then nudges the loop."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Max
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from pydantic import ValidationError

from deployments import events, run_secrets, startable
from deployments.conflicts import Edited, Moving
from deployments.hidden import still_hidden
from deployments.models import Deployment, Revision
from deployments.spec import NAME, DeploymentSpec, diff
from deployments.states import Desired
from models_catalog.models import Artifact
from models_catalog.shelf import check_approved
from panel import audit
from panel.accounts.actor import name_of
from panel.core import trace, validation
from panel.core.errors import Conflict, Invalid
from panel.core.mask import mask

PRESSED_TWICE = timedelta(minutes=1)
NAME_HINT = _("Use 1 to 63 small letters, digits, dots and dashes; begin and end with a letter or digit.")


def parse_spec(values: dict[str, Any]) -> DeploymentSpec:
    """A typed spec of what a form, API body or file says, its hidden secrets restored. Raises Invalid with a sentence
    per field.
    """
    try:
        spec = DeploymentSpec.model_validate(values)
    except ValidationError as exc:
        raise Invalid(validation.fields(exc.errors())) from exc
    text = _("A secret is hidden here and none is kept that it could stand for. Write the secret itself.")
    if wrong := {name: text for name, value in spec.model_dump(mode="json").items() if still_hidden(value)}:
        raise Invalid(wrong)
    return spec


def _check_name(name: str) -> None:
    if not NAME.match(name):
        raise Invalid({"name": NAME_HINT})


def _check_artifact(spec: DeploymentSpec, actor: Any) -> None:
    """Raises Invalid where the model is gone, NotApproved where this person may only deploy others."""
    artifact = Artifact.objects.select_related("model").filter(pk=spec.artifact_id).first()
    if artifact is None:
        raise Invalid({"artifact_id": _("This model is not in the catalog any more.")})
    check_approved(artifact.model, actor)


def _check_start(row: Deployment, actor: Any) -> None:
    """Raises NotApproved. A model that is gone is the planner's to tell."""
    spec = row.revision.spec if row.revision is not None else {}
    artifact = Artifact.objects.select_related("model").filter(pk=spec.get("artifact_id")).first()
    if artifact is not None:
        check_approved(artifact.model, actor)


def _who(actor: Any) -> dict[str, Any]:
    return {"wanted_by": name_of(actor), "wanted_by_id": _id(actor)}


def _id(actor: Any) -> int | None:
    return getattr(actor, "id", None)


def _revise(deployment: Deployment, spec: DeploymentSpec, actor: Any, why: dict[str, Any] | None = None) -> Revision:
    """The next settings. Raises Invalid where they name a secret that this person has not, whatever leads here."""
    run_secrets.check(spec, actor=actor, before=deployment.revision)
    last = deployment.revisions.aggregate(n=Max("number"))["n"] or 0
    who = _who(actor)
    return Revision.objects.create(
        deployment=deployment,
        number=last + 1,
        spec=spec.model_dump(mode="json"),
        created_by=who["wanted_by"],
        created_by_id=who["wanted_by_id"],
        why=why or {},
    )


def _locked(deployment: Deployment) -> Deployment:
    row = Deployment.objects.select_for_update().filter(pk=deployment.pk, deleted_at=None).first()
    if row is None:
        raise Conflict("deployment.gone", _("This deployment was deleted."), _("Go back to the list."))
    return row


@transaction.atomic
def create(
    *, name: str, spec: DeploymentSpec, actor: Any, start: bool = True, despite: Sequence[str] = ()
) -> Deployment:
    """A new deployment with its first revision. Raises Invalid for a bad or taken name.

    The same again by the same person within a minute is a button pressed twice, and gives the one that was made.
    `despite` are the codes of the warnings that the person saw, and starts in spite of.
    """
    _check_name(name)
    _check_artifact(spec, actor)
    who = _who(actor)
    try:
        with transaction.atomic():
            deployment = Deployment.objects.create(
                name=name,
                desired=Desired.RUNNING if start else Desired.STOPPED,
                created_by=who["wanted_by"],
                created_by_id=who["wanted_by_id"],
                trace=trace.current(),
                **who,
            )
    except IntegrityError as exc:
        if twin := _made_just_now(name, spec, actor):
            return twin
        raise Invalid({"name": _("There is already a deployment with this name.")}) from exc
    deployment.revision = _revise(deployment, spec, actor)
    deployment.save(update_fields=["revision"])
    after = {"desired": deployment.desired, "spec": mask(deployment.revision.spec)}
    audit.record("deployment.created", deployment, actor=actor, after=after)
    if despite:
        audit.record("deployment.started_despite", deployment, actor=actor, warnings=list(despite))
    events.nudge_on_commit(deployment.pk)
    return deployment


def _made_just_now(name: str, spec: DeploymentSpec, actor: Any) -> Deployment | None:
    if _id(actor) is None:
        return None
    since = timezone.now() - PRESSED_TWICE
    rows = Deployment.objects.filter(name=name, deleted_at=None, created_by_id=_id(actor), created_at__gt=since)
    row = rows.select_related("revision").first()
    same = row is not None and row.revision is not None and row.revision.spec == spec.model_dump(mode="json")
    return row if same else None


@transaction.atomic
def edit(deployment: Deployment, *, spec: DeploymentSpec, actor: Any, base_number: int | None = None) -> Revision:
    """A new revision; a running deployment is started again with it. An equal spec makes none.

    `base_number` is the revision that the person edited: Conflict when someone saved another one meanwhile. Raises
    NeverStarts where what runs would be stopped for settings that could never start.
    """
    row = _locked(deployment)
    _check_artifact(spec, actor)
    current = row.revision
    if base_number is not None and current.number != base_number:
        raise Edited
    changes = diff(DeploymentSpec.model_validate(current.spec), spec)
    if not changes:
        return current
    startable.require(row, spec)
    row.revision = _revise(row, spec, actor)
    row.detail_asked = 0  # it was asked for the settings before
    row.trace = trace.current()
    row.save(update_fields=["revision", "detail_asked", "trace", "updated_at"])
    audit.record(
        "deployment.edited",
        row,
        actor=actor,
        before=mask({key: old for key, (old, _new) in changes.items()}),
        after=mask({key: new for key, (_old, new) in changes.items()}),
        revision=row.revision.number,
    )
    events.nudge_on_commit(row.pk)
    return row.revision


@transaction.atomic
def start(deployment: Deployment, *, actor: Any, despite: Sequence[str] = ()) -> Deployment:
    """Want it running. Pressed twice, or while it starts, it changes nothing; after a failure it tries again.

    `despite` are the codes of the warnings that the person saw, and starts in spite of.
    """
    row = _locked(deployment)
    resting = row.state in ("failed", "stopped")
    if row.desired == Desired.RUNNING and (not resting or row.restart_asked > row.restart_done):
        return row
    _check_start(row, actor)
    row = _want(row, Desired.RUNNING, "deployment.started", actor, ask=True)
    if despite:
        told = {"warnings": list(despite), "revision": row.revision.number}
        audit.record("deployment.started_despite", row, actor=actor, **told)
    return row


@transaction.atomic
def start_in_detail(deployment: Deployment, *, actor: Any) -> Deployment:
    """After a failure: the same settings once more, and this one run writes all it can into its log.

    Pressed twice it changes nothing. Later runs, also those that Berth starts by itself, log as ever.
    """
    row = _locked(deployment)
    waiting = row.restart_asked > row.restart_done
    if waiting and row.detail_asked == row.restart_asked:
        return row
    if row.desired == Desired.RUNNING and (row.state not in ("failed", "stopped") or waiting):
        raise Moving
    _check_start(row, actor)
    row = _want(row, Desired.RUNNING, "deployment.started_in_detail", actor, ask=True)
    Deployment.objects.filter(pk=row.pk).update(detail_asked=row.restart_asked)
    row.refresh_from_db(fields=["detail_asked"])
    return row


@transaction.atomic
def start_fixed(
    deployment: Deployment, *, spec: DeploymentSpec, base_number: int, why: dict[str, Any], actor: Any
) -> Deployment:
    """After a failure: new settings that differ by one fix (none where it is only started again), and their start.

    Raises Conflict where someone saved other settings, started it, or stopped what Berth was about to mend meanwhile.
    `why` is kept with the settings.
    """
    row = _locked(deployment)
    if row.revision.number != base_number:
        raise Edited
    if row.state not in ("failed", "stopped") or row.restart_asked > row.restart_done:
        raise Moving
    if why.get("by_itself") and row.desired != Desired.RUNNING:  # whoever stopped it while a fix was looked for, wins
        raise Conflict
    _check_artifact(spec, actor)
    changes = diff(DeploymentSpec.model_validate(row.revision.spec), spec)
    if changes or why.get("by_itself"):  # the second: so that the chain of attempts remembers that it was done
        row.revision = _revise(row, spec, actor, why)
        row.detail_asked = 0  # it was asked for the settings before
        row.save(update_fields=["revision", "detail_asked", "updated_at"])
    facts = {
        "fix": why.get("fix", ""),
        "class": why.get("class", ""),
        "params": why.get("params") or {},
        "before": mask({key: old for key, (old, _new) in changes.items()}),
        "after": mask({key: new for key, (_old, new) in changes.items()}),
        "revision": row.revision.number,
    }
    verb = "deployment.mended" if why.get("by_itself") else "deployment.fixed"
    facts |= {"switched_on_by": why["switched_on_by"]} if why.get("by_itself") else {}
    return _want(row, Desired.RUNNING, verb, actor, ask=True, facts=facts)


@transaction.atomic
def use_revision(deployment: Deployment, number: int, *, actor: Any) -> Revision:
    """Go back to earlier settings: a new revision that says the same. A running deployment is started again with it."""
    earlier = deployment.revisions.filter(number=number).first()
    if earlier is None:
        raise Conflict("deployment.no_revision", _("There are no such settings."), "")
    return edit(deployment, spec=DeploymentSpec.model_validate(earlier.spec), actor=actor)


@transaction.atomic
def stop(deployment: Deployment, *, actor: Any) -> Deployment:
    """Want it stopped; also ends waiting and automatic restarts. Pressed twice it changes nothing."""
    row = _locked(deployment)
    if row.desired == Desired.STOPPED:
        return row
    return _want(row, Desired.STOPPED, "deployment.stopped", actor)


@transaction.atomic
def restart(deployment: Deployment, *, actor: Any) -> Deployment:
    """Want a new run of the same revision. While an asked restart has not begun, asking again changes nothing."""
    row = _locked(deployment)
    if row.desired == Desired.RUNNING and row.restart_asked > row.restart_done:
        return row
    _check_start(row, actor)
    return _want(row, Desired.RUNNING, "deployment.restarted", actor, ask=True)


@transaction.atomic
def delete(deployment: Deployment, *, actor: Any) -> None:
    """Stop it and take it off the list. Its record, runs and logs are kept; the name is free again."""
    row = _locked(deployment)
    row.deleted_at = timezone.now()
    row.save(update_fields=["deleted_at", "updated_at"])
    _want(row, Desired.STOPPED, "deployment.deleted", actor)


@transaction.atomic
def stop_all(*, actor: Any) -> int:
    """Want everything stopped (before the panel itself goes down). Returns how many were running."""
    rows = list(Deployment.objects.select_for_update().filter(desired=Desired.RUNNING, deleted_at=None).order_by("pk"))
    for row in rows:
        _want(row, Desired.STOPPED, "deployment.stopped", actor)
    return len(rows)


def _want(
    row: Deployment, desired: Desired, verb: str, actor: Any, *, ask: bool = False, facts: dict[str, Any] | None = None
) -> Deployment:
    before = row.desired
    row.desired = desired.value
    for name, value in _who(actor).items():
        setattr(row, name, value)
    row.trace = trace.current()
    fields = ["desired", "wanted_by", "wanted_by_id", "trace", "updated_at"]
    if ask:
        row.restart_asked = F("restart_asked") + 1
        fields.append("restart_asked")
    row.save(update_fields=fields)
    row.refresh_from_db()
    told = facts or {"before": {"desired": before}, "after": {"desired": row.desired}}
    audit.record(verb, row, actor=actor, **told)
    events.nudge_on_commit(row.pk)
    return row
