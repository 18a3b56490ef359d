"""Named secrets that programs need: a person's own, or the team's. Sealed at rest, given to engines, never shown again.

Settings say a secret by its name alone. Which secret that is follows from who saved them: their own of that name, else
the team's. So nobody can use the secret of another person, whatever name they write.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from django.db import models, transaction
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts.access import require
from panel.accounts.actor import Actor, as_actor
from panel.accounts.models import Secret, User
from panel.core.crypto import seal, unseal
from panel.core.errors import Conflict, Invalid, NotFound
from panel.core.locks import Lock, lock_until_commit
from panel.core.mask import HIDDEN, mask_text

OWN, MANAGE = "secrets.own", "secrets.manage"
NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?")
LONGEST = 8_000  # characters of a value
MOST = 100  # of one person, and of the team

Users = Callable[[Iterable[Secret]], dict[int, list[str]]]


def _nobody(rows: Iterable[Secret]) -> dict[int, list[str]]:
    return {}


_users: Users = _nobody


class TooManySecrets(Conflict):
    code = "secret.too_many"
    message: Any = _("There are %(most)s secrets already.")
    hint: Any = _("Delete some that nothing uses.")


class NoSecret(NotFound):
    """There is none of this name for this person: neither their own nor the team's."""

    code = "secret.missing"
    message: Any = _("There is no secret with the name %(name)s.")
    hint: Any = _("Keep it on the page “Secrets”, under your own name or, as an admin, for the team.")


def register(users: Users) -> None:
    """`users(rows)` gives the names of what uses each secret: number of the secret → names. One call for a list."""
    global _users
    _users = users


# --- written ----------------------------------------------------------------------------------------------------------


def keep(name: str, value: str, *, team: bool, actor: Any) -> Secret:
    """Keep a secret, in the place of the former one of that name. Raises Invalid, TooManySecrets or Denied."""
    who = require(actor, MANAGE if team else OWN)
    if not team and who.user is None:
        raise Invalid({"team": _("A secret of one's own needs a person. Keep it for the team.")})
    value = _checked(name, value)
    owner = None if team else who.user
    with transaction.atomic():
        _one_at_a_time(owner)
        rows = Secret.objects.filter(owner=owner)
        row = rows.filter(name=name).first()
        if row is None and rows.count() >= MOST:
            raise TooManySecrets(params={"most": MOST})
        verb = "secret.kept" if row is None else "secret.replaced"
        row = row or Secret(name=name, owner=owner)
        row.value, row.given_by = seal(value), who.name[:150]
        row.save()
        audit.record(verb, row, actor=actor, **_whose(row))
    return row


def _one_at_a_time(owner: User | None) -> None:
    """Two that keep the same name at once wait for each other: the second replaces what the first has kept."""
    if owner is not None:
        User.objects.select_for_update().get(pk=owner.pk)
    else:
        lock_until_commit(Lock.TEAM_SECRETS)


def _checked(name: str, value: str) -> str:
    wrong: dict[str, Any] = {}
    if not NAME.fullmatch(name):
        wrong["name"] = _("Use 1 to 64 small letters, digits, dots and dashes; begin and end with a letter or digit.")
    elif mask_text(name) != name:
        wrong["name"] = _("This looks like a secret itself. A name is shown to everybody; choose another one.")
    value = value.strip()
    if not value:
        wrong["value"] = _("Give the secret itself.")
    elif len(value) > LONGEST or "\0" in value:
        wrong["value"] = _("Use at most 8,000 characters, and no NUL.")
    elif HIDDEN in value:
        wrong["value"] = _("This is only how a hidden secret is shown. Give the secret itself.")
    if wrong:
        raise Invalid(wrong)
    return value


def remove(row: Secret, *, actor: Any) -> None:
    """Forget a secret: one's own, or as an admin any. What names it cannot start until there is another one."""
    own = row.owner_id is not None and row.owner_id == as_actor(actor).id
    require(actor, OWN if own else MANAGE)
    with transaction.atomic():
        audit.record("secret.removed", row, actor=actor, **_whose(row))
        row.delete()


def _whose(row: Secret) -> dict[str, Any]:
    return {"owner": row.owner.username} if row.owner is not None else {"team": True}


# --- read -------------------------------------------------------------------------------------------------------------


def usable(user_id: int | None) -> "models.QuerySet[Secret]":
    """Those that settings saved by this person may name; their own come first. Of a closed account there are none."""
    team = models.Q(owner=None)
    mine = models.Q(owner_id=user_id, owner__is_active=True) if user_id is not None else team
    return Secret.objects.filter(team | mine).order_by(models.F("owner_id").asc(nulls_last=True), "name")


def missing(names: Iterable[str], user_id: int | None) -> list[str]:
    """The names that mean nothing for this person."""
    wanted = set(names)
    if not wanted:
        return []
    return sorted(wanted - set(usable(user_id).filter(name__in=wanted).values_list("name", flat=True)))


def values(names: Iterable[str], user_id: int | None) -> dict[str, str]:
    """The secrets themselves by name, for an order. Raises NoSecret, or CannotUnseal."""
    wanted = set(names)
    found: dict[str, Secret] = {}
    for row in usable(user_id).filter(name__in=wanted) if wanted else ():
        found.setdefault(row.name, row)
    if gone := sorted(wanted - set(found)):
        raise NoSecret(params={"name": gone[0]})
    return {name: unseal(row.value) for name, row in found.items()}


def is_value(row: Secret, value: str) -> bool:
    """Whether a secret is this very value; for those who have the value already."""
    return unseal(row.value) == value.strip()


def listed(actor: Any) -> dict[str, list[Secret]]:
    """{"own", "team"}: what this person may name, each with `.used_by`. Two queries and one look at the users."""
    who: Actor = as_actor(actor)
    return _with_users(list(usable(who.id)))


def of_person(user: User) -> list[Secret]:
    """A person's own, for admins; never what they are."""
    return _with_users(list(Secret.objects.filter(owner=user)))["own"]


def _with_users(rows: list[Secret]) -> dict[str, list[Secret]]:
    used = _users(rows) if rows else {}
    for row in rows:
        row.used_by = used.get(row.pk, [])
    return {
        "own": [row for row in rows if row.owner_id is not None],
        "team": [row for row in rows if row.owner_id is None],
    }
