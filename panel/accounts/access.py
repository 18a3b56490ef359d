"""Who may do what: one table, one call. Services ask `require`, pages ask `can` to know which buttons to show.

Views stand behind `@right(…)` of panel/accounts/guard.py. A refusal is recorded and raised.
"""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError, models
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts.actor import SYSTEM_ROLE, Actor, as_actor
from panel.accounts.models import Role
from panel.core.errors import Denied, NotFound

# The least role that holds each right; a role holds all rights of the ones before it.
RIGHTS: dict[str, Role] = {
    "deployments.view": Role.VIEWER,  # pages, logs, numbers of deployments
    "deployments.create": Role.OPERATOR,
    "deployments.edit": Role.OPERATOR,
    "deployments.operate": Role.OPERATOR,  # start, stop, restart
    "deployments.delete": Role.OPERATOR,
    "deployments.try": Role.VIEWER,  # the one-question box
    "models.view": Role.VIEWER,
    "models.scan": Role.OPERATOR,
    "models.download": Role.OPERATOR,
    "models.convert": Role.OPERATOR,  # a GGUF file into a folder that every engine can calculate with
    "models.roots": Role.ADMIN,  # which folders of a host are searched
    "models.describe": Role.OPERATOR,  # notes, tags, licence, source
    "models.approve": Role.ADMIN,
    "models.trust": Role.ADMIN,  # let a model run its own code
    "models.delete": Role.ADMIN,
    "hosts.view": Role.VIEWER,
    "hosts.manage": Role.ADMIN,  # join, rename, drain, forget
    "runtimes.view": Role.VIEWER,
    "runtimes.manage": Role.ADMIN,
    "audit.view": Role.VIEWER,
    "audit.export": Role.ADMIN,
    "tokens.own": Role.VIEWER,
    "tokens.manage": Role.ADMIN,  # those of others
    "secrets.own": Role.OPERATOR,  # keep secrets of one's own, and name them and the team's in settings
    "secrets.manage": Role.ADMIN,  # the team's; those of others can be deleted, and never seen
    "profile.own": Role.VIEWER,
    "users.manage": Role.ADMIN,
    "settings.manage": Role.ADMIN,
}
_RANK = {role: rank for rank, role in enumerate(Role.values)}
# What a token that only reads may do: everything that changes nothing.
_READING = frozenset(name for name in RIGHTS if name.endswith(".view"))
# What a token for some deployments may do: with those, and nothing else. Their making is not one of them.
_WITHIN = frozenset(name for name in RIGHTS if name.startswith("deployments.")) - {"deployments.create"}


class NotSignedIn(Denied):
    code = "not_signed_in"
    message: Any = _("Sign in first.")
    hint: Any = _("Your session may have ended; nothing was changed.")
    status = 401


class RoleTooLow(Denied):
    """The one refusal of a signed-in person; `code` stays "denied"."""

    message: Any = _("Your role does not allow this.")
    hint: Any = _("This needs the role “%(role)s”. An admin of this panel can give it to you.")


class OutOfReach(Denied):
    """The person could, but the token that is used is for some deployments only."""

    code = "token.limited"
    message: Any = _("This token is for some deployments only.")
    hint: Any = _("Use a token that is not limited to deployments.")


class ReadOnly(Denied):
    """The person could, but the token that is used may only look."""

    message: Any = _("This token may only read.")
    hint: Any = _("Use a token that may change things.")


def can(who: Any, right: str) -> bool:
    """Whether an Actor or user holds the right. An unknown right is a bug and raises LookupError."""
    if right not in RIGHTS:
        raise LookupError(f"no such right: {right}")
    actor = as_actor(who)
    if actor.role == SYSTEM_ROLE:
        return True
    if actor.read_only and right not in _READING:
        return False
    if actor.deployments is not None and right not in _WITHIN:
        return False
    return _RANK.get(actor.role, -1) >= _RANK[RIGHTS[right]]


def require(who: Any, right: str, target: Any = None) -> Actor:
    """Return the actor when it holds the right; else record the refusal and raise Denied (or NotSignedIn).

    The record survives the transaction that the refusal ends. A deployment that a limited token is not for does not
    exist for it: NotFound.
    """
    actor = as_actor(who)
    if can(actor, right):
        if _hidden(actor, target):
            raise NotFound()
        return actor
    audit.record(right, target, actor=actor, outcome="denied")
    raise refusal(actor, right)


def refusal(actor: Actor, right: str) -> Denied:
    """The error that tells this actor why not."""
    if not actor.signed_in or not actor.role:
        return NotSignedIn()
    could = _RANK[actor.role] >= _RANK[RIGHTS[right]]
    if could and actor.read_only and right not in _READING:
        return ReadOnly()
    if could and actor.deployments is not None:
        return OutOfReach()
    return RoleTooLow(params={"role": RIGHTS[right].label})


def _hidden(actor: Actor, target: Any) -> bool:
    """Whether the target is a deployment beyond a limited token's reach."""
    if actor.deployments is None or not isinstance(target, models.Model):
        return False
    return target._meta.model_name == "deployment" and not actor.reaches(target.pk)


def load_or_404(source: Any, who: Any, **lookup: Any) -> Any:
    """One row of a model, manager or queryset that this person may see; raises NotFound otherwise.

    A queryset that has `visible_to(user)` is narrowed by it. Values that cannot be a key are simply not found.
    """
    rows = source._default_manager.all() if isinstance(source, type) and issubclass(source, models.Model) else source
    rows = rows.all()
    actor = as_actor(who)
    if not actor.signed_in or not actor.role:
        raise NotFound()
    if hasattr(rows, "visible_to"):
        rows = rows.visible_to(actor.user)
    if actor.deployments is not None and rows.model._meta.model_name == "deployment":
        rows = rows.filter(pk__in=actor.deployments)
    try:
        return rows.get(**lookup)
    except (rows.model.DoesNotExist, ValueError, TypeError, ValidationError, DataError) as exc:
        raise NotFound() from exc
