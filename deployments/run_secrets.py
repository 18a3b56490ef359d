"""The secrets that a deployment's settings name: whose they are, whether they are there, and what they are at a start.

Names stand in the settings, the secrets in panel.accounts.secret_store. Whose they are follows from who saved the
settings; whoever may start the deployment starts it with them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.models import Deployment, Revision
from deployments.spec import DeploymentSpec
from deployments.wording import words
from panel.accounts import secret_store
from panel.accounts.access import require
from panel.accounts.actor import as_actor
from panel.accounts.models import Secret
from panel.core.errors import Invalid
from panel.core.mask import mask_text

LOOKED_AT = 100  # earlier settings of one deployment


def _named(spec: Mapping[str, Any]) -> dict[str, str]:
    return dict(spec.get("env_secrets") or {})


def author_of(revision: Revision) -> int | None:
    """The person whose secrets these settings mean; None: nobody, so that only the team's count.

    Settings that no person saved (the panel's own change, the shell) mean what the ones before meant, as long as they
    name the same secrets.
    """
    named = _named(revision.spec)
    if revision.created_by_id is not None or not named:
        return revision.created_by_id
    earlier = Revision.objects.filter(deployment=revision.deployment_id, number__lt=revision.number)
    return _last_person(named, earlier.order_by("-number").values_list("created_by_id", "spec")[:LOOKED_AT])


def _last_person(named: dict[str, str], earlier: Iterable[tuple[int | None, dict[str, Any]]]) -> int | None:
    """Of earlier settings, the newest first: who saved the last ones by hand, while they name the same secrets."""
    for who, spec in earlier:
        if _named(spec) != named:
            break
        if who is not None:
            return int(who)
    return None


def check(spec: DeploymentSpec, *, actor: Any, before: Revision | None = None) -> None:
    """Whether whoever saves these settings may name these secrets. Raises Invalid or Denied."""
    if not spec.env_secrets:
        return
    kept = _named(before.spec) if before is not None else {}
    new = any(kept.get(variable) != name for variable, name in spec.env_secrets.items())
    if actor is not None and (new or (before is not None and _brings_own(spec, actor, before))):
        require(actor, secret_store.OWN)
    if name := missing(spec, actor=actor, before=before):
        said = words({"code": "secret.unknown", "params": {"name": name}})
        raise Invalid({"env_secrets": f"{said.text} {said.hint}" if said is not None else name})


def _brings_own(spec: DeploymentSpec, actor: Any, before: Revision) -> bool:
    """Whether a name that meant another person's secret, or the team's, would mean this person's own."""
    person = as_actor(actor).id
    if person is None or author_of(before) == person:
        return False
    own = secret_store.usable(person).filter(owner_id=person, name__in=spec.env_secrets.values())
    return own.exists()


def missing(spec: DeploymentSpec, *, actor: Any, before: Revision | None = None) -> str:
    """The name of a secret that these settings would not find if this person saved them in the place of `before`; ""
    where none is missing.
    """
    person = as_actor(actor).id if actor is not None else None
    if person is None and before is not None and _named(before.spec) == spec.env_secrets:
        person = author_of(before)
    gone = secret_store.missing(spec.env_secrets.values(), person)
    return mask_text(gone[0]) if gone else ""


def names_for(actor: Any) -> list[str]:
    """The names of secrets that this person may write into settings."""
    person = as_actor(actor).id
    return list(dict.fromkeys(secret_store.usable(person).values_list("name", flat=True)))


def reason(revision: Revision) -> dict[str, Any]:
    """Why these settings cannot be started: a secret that is not there. {} where nothing is missing."""
    names = _named(revision.spec).values()
    person = author_of(revision) if names else None
    gone = secret_store.missing(names, person)
    if not gone:
        return {}
    if person is None:
        return {"code": "secret.missing_team", "params": {"name": gone[0]}}
    return {"code": "secret.missing", "params": {"name": gone[0], "who": revision.created_by}}


def values(revision: Revision) -> dict[str, str]:
    """The secrets themselves by variable, for the order alone. Raises NoSecret or CannotUnseal."""
    named = _named(revision.spec)
    found = secret_store.values(named.values(), author_of(revision)) if named else {}
    return {variable: found[name] for variable, name in named.items()}


def users(rows: list[Secret]) -> dict[int, list[str]]:
    """Names of the deployments that each of these secrets is given to now: secret → names. Two queries."""
    by_place = {(row.name, row.owner_id): row.pk for row in rows}
    found: dict[int, list[str]] = {}
    there = Deployment.objects.filter(deleted_at=None, revision__spec__has_key="env_secrets")
    rows_there = list(there.exclude(revision__spec__env_secrets={}).select_related("revision").order_by("name"))
    authors = _authors([row.revision for row in rows_there if row.revision is not None])
    for row in rows_there:
        assert row.revision is not None
        person = authors[row.revision.pk]
        for name in dict.fromkeys(_named(row.revision.spec).values()):
            pk = by_place.get((name, person)) or by_place.get((name, None))
            if pk is not None:
                found.setdefault(pk, []).append(row.name)
    return found


def _authors(revisions: list[Revision]) -> dict[int, int | None]:
    """`author_of` for many; one query for those that no person saved."""
    found = {revision.pk: revision.created_by_id for revision in revisions}
    unsaid = [revision for revision in revisions if revision.created_by_id is None]
    earlier: dict[int, list[tuple[int | None, dict[str, Any]]]] = {}
    if unsaid:
        rows = Revision.objects.filter(deployment__in=[revision.deployment_id for revision in unsaid])
        for deployment, who, spec in rows.order_by("-number").values_list("deployment_id", "created_by_id", "spec"):
            earlier.setdefault(deployment, []).append((who, spec))
    for revision in unsaid:
        found[revision.pk] = _last_person(_named(revision.spec), earlier[revision.deployment_id])
    return found
