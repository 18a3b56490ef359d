"""API tokens: made, shown once, kept as a hash, looked up, revoked."""

import hashlib
import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts import reach
from panel.accounts.access import require
from panel.accounts.actor import as_actor
from panel.accounts.models import ApiToken, Scope, User
from panel.accounts.signals import tell_tokens_changed
from panel.audit.bounds import line
from panel.core.errors import Conflict, Invalid

PREFIX = "berth_"
MOST = 100  # live tokens of one person
LONGEST_DAYS = 3650
MOST_DEPLOYMENTS = 200  # that one token names
_TOUCH = timedelta(minutes=1)  # how exact "last used" is; a write for every request would cost more than it tells


class TooManyTokens(Conflict):
    code = "token.too_many"
    message: Any = _("You already have %(most)s tokens.")
    hint: Any = _("Revoke some that nobody uses.")


def hash_of(plaintext: str) -> str:
    """What the database keeps. A token has 240 random bits, so a plain hash is enough."""
    return hashlib.sha256(plaintext.encode("utf-8", "replace")).hexdigest()


def live(rows: "models.QuerySet[ApiToken] | None" = None) -> "models.QuerySet[ApiToken]":
    """Tokens that open something now: not revoked, not expired, owner not disabled."""
    rows = ApiToken.objects.all() if rows is None else rows
    unexpired = models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=timezone.now())
    return rows.filter(unexpired, revoked_at__isnull=True, user__is_active=True)


def create_token(
    user: User,
    name: str,
    *,
    actor: Any,
    scope: str = Scope.DOOR,
    days: int | None = None,
    deployment_ids: Iterable[int] | None = None,
) -> tuple[ApiToken, str]:
    """Make a token for `user`; returns the row and the token itself, which is kept nowhere.

    `days` None means that it does not expire; `deployment_ids` None that it reaches all.
    One made with a token ends no later than that one. Raises Invalid, TooManyTokens or Denied.
    """
    _may_touch(user, actor)
    only = None if deployment_ids is None else sorted(set(deployment_ids))
    _check(name, scope, days, only)
    expires_at = timezone.now() + timedelta(days=days) if days is not None else None
    until = as_actor(actor).until
    if until is not None and (expires_at is None or expires_at > until):
        raise Invalid({"days": _("A token cannot make one that ends later than it does itself.")})
    plaintext = PREFIX + secrets.token_urlsafe(30)
    prefix = plaintext[:12]
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)  # two at once must not pass the limit together
        if live(ApiToken.objects.filter(user=user)).count() >= MOST:
            raise TooManyTokens(params={"most": MOST})
        token = ApiToken.objects.create(
            user=user,
            name=line(name, 80),
            token_hash=hash_of(plaintext),
            prefix=prefix,
            scope=scope,
            deployment_ids=only,
            expires_at=expires_at,
        )
        limit = {} if only is None else {"deployments": reach_words(token, reach.names())}
        audit.record(
            "token.created", token, actor=actor, scope=scope, days=days, owner=user.username, prefix=prefix, **limit
        )
        tell_tokens_changed()
    return token, plaintext


def revoke_token(token: ApiToken, *, actor: Any) -> bool:
    """End a token for good; False when it was already ended."""
    _may_touch(token.user, actor)
    with transaction.atomic():
        if not ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now()):
            return False
        audit.record("token.revoked", token, actor=actor, owner=token.user.username, prefix=token.prefix)
        tell_tokens_changed()
    return True


def live_of(user: Any) -> int:
    """How many tokens of a person open something now."""
    return live(ApiToken.objects.filter(user=user)).count()


def end_all(user: User, *, actor: Any) -> int:
    """End all of a person's tokens; how many there were. Call it in the transaction of what is the reason for it."""
    return sum(revoke_token(token, actor=actor) for token in live(ApiToken.objects.filter(user=user)))


def find_token(plaintext: str) -> ApiToken | None:
    """The live token with this text and its owner, for the API; remembers that it was used."""
    if not plaintext.startswith(PREFIX) or len(plaintext) > 100:
        return None
    token = live(ApiToken.objects.filter(token_hash=hash_of(plaintext))).select_related("user").first()
    if token:
        touch([token.token_hash])
    return token


def touch(token_hashes: list[str]) -> None:
    """Remember that these tokens were used just now; exact to a minute. The door reports its own in batches."""
    now = timezone.now()
    seen_lately = models.Q(last_used_at__isnull=False, last_used_at__gt=now - _TOUCH)
    ApiToken.objects.filter(token_hash__in=token_hashes).exclude(seen_lately).update(last_used_at=now)


def _may_touch(owner: User, actor: Any) -> None:
    require(actor, "tokens.own" if as_actor(actor).id == owner.pk else "tokens.manage", owner)


def _check(name: str, scope: str, days: int | None, deployments: list[int] | None) -> None:
    wrong: dict[str, Any] = {}
    if not line(name, 80):
        wrong["name"] = _("Give the token a name, so that you know later what it is for.")
    elif len(name) > 80:
        wrong["name"] = _("Use at most 80 characters.")
    if scope not in Scope.values:
        wrong["scope"] = _("There is no such kind of token.")
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        wrong["days"] = _("Choose between 1 day and ten years.")
    if deployments is not None:
        if not 1 <= len(deployments) <= MOST_DEPLOYMENTS:
            wrong["deployments"] = _("Choose between 1 and 200 deployments.")
        elif not set(deployments) <= reach.names().keys():
            wrong["deployments"] = _("One of these deployments does not exist.")
    if wrong:
        raise Invalid(wrong)


def reach_words(token: ApiToken, names: dict[int, str]) -> list[str]:
    """The names of the deployments that a token is limited to; empty when it reaches all."""
    return [names.get(pk) or str(_("one that was deleted")) for pk in token.deployment_ids or []]


def example(token: ApiToken) -> str:
    """A command that does something with this token, which it reads from the environment."""
    base = settings.BERTH_PUBLIC_URL
    head = '-H "Authorization: Bearer $BERTH_API_KEY"'
    if token.scope == Scope.DOOR:
        return f"curl {base}/v1/models {head}"
    if token.scope == Scope.API_READ:
        return f"curl {base}/api/v1/deployments {head}"
    number = next(iter(token.deployment_ids or reach.names()), 1)
    return f"curl -X POST {base}/api/v1/deployments/{number}/restart {head}"


def listed(user: Any) -> list[ApiToken]:
    """A person's tokens: those that work first, then the ended ones of late.

    Each knows whether it is `.live`, and by `.reach` the names of the deployments that it is limited to.
    """
    now = timezone.now()
    rows = list(ApiToken.objects.filter(user=user).order_by("-created_at")[: 2 * MOST])
    names = reach.names() if any(row.deployment_ids for row in rows) else {}
    for row in rows:
        row.live = row.revoked_at is None and (row.expires_at is None or row.expires_at > now)  # type: ignore[attr-defined]  # for the page only
        row.reach = reach_words(row, names)  # type: ignore[attr-defined]
    return sorted(rows, key=lambda row: not row.live)  # type: ignore[attr-defined]
