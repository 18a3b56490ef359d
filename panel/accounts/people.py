"""The people of the panel: found, disabled and enabled again, given another role. There is always an active admin.

Nobody is deleted: the record names people, and a name must not come to mean another person. An account that is
disabled opens nothing.
"""

from typing import Any

from django.db import models, transaction
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts import limits, links, sessions
from panel.accounts.access import require
from panel.accounts.actor import Actor
from panel.accounts.models import LoginAttempt, Role, User
from panel.accounts.signals import tell_tokens_changed
from panel.core.errors import Conflict, Invalid, NotFound
from panel.core.locks import Lock, lock_until_commit

SHOWN = ("", *Role.values, "disabled")


class OwnAccount(Conflict):
    code = "people.own"
    message: Any = _("Nobody changes the own role or disables the own account.")
    hint: Any = _("Another admin can do it.")


class LastAdmin(Conflict):
    code = "people.last_admin"
    message: Any = _("%(name)s is the only admin.")
    hint: Any = _("Make somebody else an admin first.")


def found(text: str = "", show: str = "") -> "models.QuerySet[User]":
    """People by a part of their name; `show` is a role, "disabled", or empty for everyone. By name."""
    rows = User.objects.order_by(Lower("username"), "pk")
    if text:
        rows = rows.filter(username__icontains=text)
    if show == "disabled":
        return rows.filter(is_active=False)
    return rows.filter(role=show, is_active=True) if show else rows


def change_role(user: User, role: str, *, actor: Any) -> bool:
    """Give another role; False when the person has it already. Raises Invalid, OwnAccount, LastAdmin or Denied."""
    acting = require(actor, "users.manage", user)
    if role not in Role.values:
        raise Invalid({"role": _("There is no such role.")})
    with transaction.atomic():
        now = _held(user, acting)
        if now.role == role:
            return False
        if role != Role.ADMIN:
            _keep_an_admin(now)
            links.end_those_by(now)
        User.objects.filter(pk=now.pk).update(role=role)
        audit.record("user.role_changed", now, actor=acting, before={"role": now.role}, after={"role": role})
    return True


def disable(user: User, *, actor: Any) -> bool:
    """Close an account: its sessions end, its tokens and the links it made open nothing. False when it was closed."""
    acting = require(actor, "users.manage", user)
    with transaction.atomic():
        now = _held(user, acting)
        if not now.is_active:
            return False
        _keep_an_admin(now)
        User.objects.filter(pk=now.pk).update(is_active=False)
        links.end_those_by(now)
        links.end_resets_of(now)
        audit.record("user.disabled", now, actor=acting, sessions=sessions.drop(now))
        tell_tokens_changed()
    return True


def enable(user: User, *, actor: Any) -> bool:
    """Open a disabled account again: its password and its tokens work as before. False when it was open."""
    acting = require(actor, "users.manage", user)
    with transaction.atomic():
        now = _held(user, acting)
        if now.is_active:
            return False
        User.objects.filter(pk=now.pk).update(is_active=True)
        audit.record("user.enabled", now, actor=acting)
        tell_tokens_changed()
    return True


def unlock(*, actor: Any) -> int:
    """Forget all wrong passwords that were tried, so that everyone may try again at once; returns how many rows."""
    acting = require(actor, "users.manage")
    with transaction.atomic():
        gone = LoginAttempt.objects.filter(minute__gt=limits.now() - limits.WINDOW).delete()[0]
        audit.record("login.unlocked", actor=acting)
    return gone


def _held(user: User, acting: Actor) -> User:
    """The person as they are now, while nobody else changes people: two admins must not demote each other at once."""
    if acting.id == user.pk:
        raise OwnAccount()
    lock_until_commit(Lock.FIRST_ADMIN)
    now = User.objects.select_for_update().filter(pk=user.pk).first()
    if now is None:
        raise NotFound()
    still_admin = User.objects.filter(pk=acting.id, is_active=True, role=Role.ADMIN)
    if acting.id is not None and not still_admin.exists():  # someone was first
        raise links.no_longer_admin(acting)
    return now


def _keep_an_admin(now: User) -> None:
    others = User.objects.filter(role=Role.ADMIN, is_active=True).exclude(pk=now.pk)
    if now.role == Role.ADMIN and now.is_active and not others.exists():
        raise LastAdmin(params={"name": now.username})
