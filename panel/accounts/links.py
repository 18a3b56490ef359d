"""Links that work once: an invitation with a role, and a new password for someone who lost theirs.

The secret is in the link alone; the database keeps its SHA-256. A link ends when it is used, taken back, replaced by a
newer one, too old, or when the admin who made it is one no more.
"""

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, models, transaction
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts import limits, passwords, sessions, tokens
from panel.accounts.access import refusal, require
from panel.accounts.actor import Actor, address_of
from panel.accounts.models import OneTimeLink, Purpose, Role, User
from panel.audit.bounds import line
from panel.core.errors import Conflict, Denied, Invalid, NotFound

VALID = {Purpose.INVITE: timedelta(hours=72), Purpose.RESET: timedelta(hours=24)}
MOST_INVITES = 200  # open at one time
_SWEPT = timedelta(days=90)
_KEPT = timedelta(days=30)  # how long an invitation that nobody used is still shown


class LinkInvalid(NotFound):
    code = "link.invalid"
    message: Any = _("This link was used, is too old, or was replaced by a newer one.")
    hint: Any = _("Ask an admin of this panel for a new one.")


class LinkGone(Conflict):
    code = "link.gone"
    message: Any = _("This invitation was used or taken back a moment ago.")
    hint: Any = _("Look at the page again.")


class TooManyInvites(Conflict):
    code = "invite.too_many"
    message: Any = _("%(most)s invitations are open already.")
    hint: Any = _("Take back some that nobody will use.")


class Disabled(Conflict):
    code = "people.disabled"
    message: Any = _("The account of %(name)s is disabled.")
    hint: Any = _("Enable it first.")


class OwnPassword(Conflict):
    code = "people.own_password"
    message: Any = _("Your own password is changed on your account's page.")


def _open() -> "models.Q":
    return models.Q(used_at=None, ended_at=None, expires_at__gt=timezone.now())


def _make(purpose: Purpose, acting: Actor, **values: Any) -> tuple[OneTimeLink, str]:
    secret = secrets.token_urlsafe(32)
    OneTimeLink.objects.filter(created_at__lt=timezone.now() - _SWEPT).delete()  # the record has what they did
    link = OneTimeLink.objects.create(
        purpose=purpose,
        secret_hash=passwords.digest(secret),
        expires_at=timezone.now() + VALID[purpose],
        made_by_id=acting.id,
        **values,
    )
    return link, f"{settings.BERTH_PUBLIC_URL}{reverse(purpose.value, args=[secret])}"


def _locked(acting: Actor, *others: User) -> dict[int, User]:
    """Who acts and who is concerned, as they are now, locked in one order by all. Raises Denied when the admin is one
    no more: a link that was made just after would be a way back in.
    """
    ids = {user.pk for user in others} | ({acting.id} if acting.id is not None else set())
    rows = {row.pk: row for row in User.objects.select_for_update().filter(pk__in=ids).order_by("pk")}
    me = rows.get(acting.id) if acting.id is not None else None
    if acting.id is not None and (me is None or not me.is_active or me.role != Role.ADMIN):
        raise no_longer_admin(acting)
    return rows


def no_longer_admin(acting: Actor) -> Denied:
    """The refusal of someone who was an admin when the request came."""
    return refusal(replace(acting, role=Role.VIEWER.value), "users.manage")


def find(secret: str, purpose: Purpose, *, for_update: bool = False) -> OneTimeLink:
    """The open link with this secret. Raises LinkInvalid."""
    rows = OneTimeLink.objects.filter(_open(), purpose=purpose, secret_hash=passwords.digest(secret))
    if for_update:
        rows = rows.select_for_update()
    link = rows.first()
    if link is None:
        raise LinkInvalid()
    return link


def end_those_by(user: User) -> None:
    """Links of someone who is no longer an admin open nothing: they would be a way back in."""
    OneTimeLink.objects.filter(_open(), made_by=user).update(ended_at=timezone.now())


def end_resets_of(user: User) -> None:
    OneTimeLink.objects.filter(_open(), purpose=Purpose.RESET, user=user).update(ended_at=timezone.now())


# --- invitations ------------------------------------------------------------------------------------------------------


def invitations() -> "models.QuerySet[OneTimeLink]":
    """Those that wait for their person, and those that got too old of late; newest first."""
    rows = OneTimeLink.objects.filter(purpose=Purpose.INVITE, used_at=None, ended_at=None)
    return rows.filter(expires_at__gt=timezone.now() - _KEPT).select_related("made_by").order_by("-created_at")


def invite(*, label: str, role: str, actor: Any) -> tuple[OneTimeLink, str]:
    """A link by which one person makes an account with this role. `label` says who it is for. Raises Invalid."""
    acting = require(actor, "users.manage")
    wrong: dict[str, Any] = {}
    if not line(label, 80):
        wrong["label"] = _("Say who the invitation is for.")
    elif len(label) > 80:
        wrong["label"] = _("Use at most 80 characters.")
    if role not in Role.values:
        wrong["role"] = _("There is no such role.")
    if wrong:
        raise Invalid(wrong)
    with transaction.atomic():
        _locked(acting)
        if OneTimeLink.objects.filter(_open(), purpose=Purpose.INVITE).count() >= MOST_INVITES:
            raise TooManyInvites(params={"most": MOST_INVITES})
        link, url = _make(Purpose.INVITE, acting, label=line(label, 80), role=role)
        audit.record("invite.made", ("invite", link.pk, link.label), actor=acting, role=role)
    return link, url


def invite_again(link: OneTimeLink, *, actor: Any) -> tuple[OneTimeLink, str]:
    """A new link for the same invitation; the older one ends. Raises LinkGone."""
    acting = require(actor, "users.manage")
    with transaction.atomic():
        _locked(acting)
        _end(link)
        made, url = _make(Purpose.INVITE, acting, label=link.label, role=link.role)
        audit.record("invite.replaced", ("invite", made.pk, made.label), actor=acting, role=made.role)
    return made, url


def take_back(link: OneTimeLink, *, actor: Any) -> None:
    """End an invitation that nobody has used. Raises LinkGone."""
    acting = require(actor, "users.manage")
    with transaction.atomic():
        _end(link)
        audit.record("invite.revoked", ("invite", link.pk, link.label), actor=acting)


def _end(link: OneTimeLink) -> None:
    waiting = OneTimeLink.objects.filter(pk=link.pk, purpose=Purpose.INVITE, used_at=None, ended_at=None)
    if not waiting.update(ended_at=timezone.now()):
        raise LinkGone()


def accept(request: HttpRequest, secret: str, *, name: str, password: str) -> User:
    """Use an invitation: make the account and sign this browser in. Raises LinkInvalid or Invalid."""
    try:
        with transaction.atomic():
            link = find(secret, Purpose.INVITE, for_update=True)  # of two at once the second finds it used
            user = passwords.new_user(name, password, link.role)
            OneTimeLink.objects.filter(pk=link.pk).update(used_at=timezone.now(), user=user)
            actor = Actor.from_user(user, address=address_of(request), via="browser")
            by = link.made_by.username if link.made_by else "system"
            audit.record("user.joined", user, actor=actor, role=user.role, invited_by=by)
            sessions.begin(request, user)
            audit.record("login", user, actor=actor)
    except IntegrityError as exc:  # the same name, made at the same moment
        raise Invalid({"name": _("This name is taken; capitals make no difference.")}) from exc
    return user


# --- new passwords ----------------------------------------------------------------------------------------------------


def make_reset(user: User, *, actor: Any) -> tuple[OneTimeLink, str]:
    """A link by which this person sets a new password; the present one works until then. Older links end."""
    acting = require(actor, "users.manage", user)
    if acting.id == user.pk:  # else a session left open would be enough to take an account over
        raise OwnPassword()
    with transaction.atomic():
        now = _locked(acting, user).get(user.pk)
        if now is None:
            raise NotFound()
        if not now.is_active:
            raise Disabled(params={"name": now.username})
        end_resets_of(now)
        link, url = _make(Purpose.RESET, acting, user=now)
        audit.record("password.link_made", now, actor=acting)
    return link, url


def set_password(request: HttpRequest, secret: str, *, password: str, end_tokens: bool = False) -> User:
    """Use such a link: all other sessions end, this browser is signed in. Raises LinkInvalid or Invalid.

    Tokens go on, since programs use them, unless the person says that they are to end too.
    """
    with transaction.atomic():
        # the person before the link, as everyone does who ends links
        user = User.objects.select_for_update().get(pk=find(secret, Purpose.RESET).user_id)
        link = find(secret, Purpose.RESET, for_update=True)
        if not user.is_active:
            raise LinkInvalid()
        passwords.check(password, user)
        user.set_password(password)
        user.save(update_fields=["password"])
        OneTimeLink.objects.filter(pk=link.pk).update(used_at=timezone.now())
        limits.forget(user.username)
        actor = Actor.from_user(user, address=address_of(request), via="browser")
        audit.record("password.reset", user, actor=actor, sessions=sessions.drop(user))
        if end_tokens:
            tokens.end_all(user, actor=actor)
        sessions.begin(request, user)
        audit.record("login", user, actor=actor)
    return user
