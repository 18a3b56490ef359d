"""What people do with accounts: sign in and out, the first admin, passwords. Each act and its record are one."""

import secrets
import threading
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate, logout, update_session_auth_hash
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from panel import audit
from panel.accounts import limits, links, passwords, sessions, tokens
from panel.accounts.access import require
from panel.accounts.actor import Actor, address_of
from panel.accounts.models import OneTimeLink, Role, User
from panel.accounts.tokens import create_token as create_token
from panel.accounts.tokens import revoke_token as revoke_token
from panel.core.errors import Conflict, Invalid, NotFound, PanelError
from panel.core.locks import Lock, lock_until_commit

FIRST_ADMIN_VALID = timedelta(hours=24)
# Checking one password takes about 100 MiB for a moment; strangers must not be able to ask for that many times over.
_CHECKS = threading.BoundedSemaphore(2)
_CHECK_WAIT_S = 10
UNLOCK = "manage.py people unlock"  # lets everyone try again at once


class SignInFailed(PanelError):
    """Wrong name or password; never says which."""

    code = "login.failed"
    message: Any = _("Name and password do not match.")
    status = 422


class SignInLocked(PanelError):
    """Too many tries; `wait_s` is how long it lasts."""

    code = "login.locked"
    message: Any = _("Too many tries.")
    status = 429

    def __init__(self, wait_s: int) -> None:
        minutes = max(1, -(-wait_s // 60))
        hint = ngettext_lazy(
            "Try again in %(n)s minute. Who may run commands on the panel's machine need not wait: %(command)s",
            "Try again in %(n)s minutes. Who may run commands on the panel's machine need not wait: %(command)s",
            minutes,
        )
        super().__init__(hint=hint, params={"n": minutes, "command": UNLOCK})
        self.wait_s = wait_s


class Busy(PanelError):
    code = "login.busy"
    message: Any = _("Many people sign in just now.")
    hint: Any = _("Try again in a few seconds.")
    status = 503


class AdminExists(Conflict):
    code = "first_admin.exists"
    message: Any = _("This panel already has an admin.")
    hint: Any = _("Sign in, or ask that person for an account.")


class LinkInvalid(NotFound):
    code = "first_admin.link"
    message: Any = _("This link was used, is too old, or was replaced by a newer one.")
    hint: Any = _("Start the panel again to get a new one.")


# --- sign in and out --------------------------------------------------------------------------------------------------


def sign_in(request: HttpRequest, *, name: str, password: str) -> User:
    """Sign this browser in. Raises SignInFailed, SignInLocked or Busy; every way takes the same time for any name."""
    user = _checked(request, name, password)
    if user is None:
        raise SignInFailed()
    with transaction.atomic():
        # Whoever disables an account ends its sessions behind the same lock: none may begin after that.
        if not User.objects.select_for_update().filter(pk=user.pk, is_active=True).exists():
            raise SignInFailed()
        sessions.begin(request, user)
        audit.record("login", user, actor=Actor.from_request(request))
    return user


def sign_out(request: HttpRequest) -> None:
    """End this browser's session."""
    actor = Actor.from_request(request)
    with transaction.atomic():
        logout(request)
        if actor.signed_in:
            sessions.tell_ended(actor.user)
            audit.record("logout", actor.user, actor=actor)


def _checked(request: HttpRequest, name: str, password: str) -> User | None:
    """The person with this name and password. Counts the try and records a wrong one."""
    address = address_of(request)
    stranger = Actor(address=address, via="browser")
    tried = limits.attempt(name, address)
    if tried.wait_s:
        audit.record("login.locked", actor=stranger, outcome="denied")
        raise SignInLocked(tried.wait_s)
    user = None
    if "\0" not in name + password and len(name) <= 150 and len(password) <= passwords.LONGEST:
        if not _CHECKS.acquire(timeout=_CHECK_WAIT_S):
            raise Busy()
        try:
            # Django hashes something for an unknown name too, so the time tells nothing
            user = authenticate(request, username=User.normalize_username(name), password=password)
        finally:
            _CHECKS.release()
    if user is None:
        # the name only when it is one: people type passwords into the wrong field
        known = User.objects.filter(username=name).first() if "\0" not in name else None
        audit.record("login.failed", known, actor=stranger, outcome="denied")
        return None
    limits.succeeded(tried)
    return user


# --- passwords --------------------------------------------------------------------------------------------------------


def change_password(request: HttpRequest, *, current: str, new: str, end_tokens: bool = False) -> None:
    """Change one's own password; every other session of this person ends, and the tokens where that is wished.

    Raises Invalid, SignInLocked or Busy.
    """
    user: Any = request.user
    actor = require(Actor.from_request(request), "profile.own")
    if _checked(request, user.username, current) is None:
        raise Invalid({"current": _("This is not your present password.")})
    passwords.check(new, user)
    with transaction.atomic():
        user.set_password(new)
        user.save(update_fields=["password"])
        links.end_resets_of(user)  # made for the password that was
        row = getattr(request.session, "row", None)
        update_session_auth_hash(request, user)  # a new key for this browser
        sessions.describe(request, since=row.since if row else None)
        audit.record(
            "password.changed", user, actor=actor, sessions=sessions.drop(user, but=request.session.session_key)
        )
        if end_tokens:
            tokens.end_all(user, actor=actor)


def set_look(user: User, *, language: str, theme: str) -> None:
    """One's own language ("" follows the browser) and colours. Taste, not an act on the panel: it is not recorded."""
    User.objects.filter(pk=user.pk).update(language=language, theme=theme)


# --- the first admin --------------------------------------------------------------------------------------------------


def admin_exists() -> bool:
    return User.objects.filter(role=Role.ADMIN, is_active=True).exists()


@transaction.atomic
def first_admin_link() -> str | None:
    """A fresh link that creates the first admin, valid 24 h; None when there is one. Older links end."""
    lock_until_commit(Lock.FIRST_ADMIN)
    if admin_exists():
        return None
    now = timezone.now()
    OneTimeLink.objects.filter(purpose="first_admin", used_at=None, expires_at__gt=now).update(expires_at=now)
    secret = secrets.token_urlsafe(32)
    OneTimeLink.objects.create(secret_hash=passwords.digest(secret), expires_at=now + FIRST_ADMIN_VALID)
    audit.record("first_admin.link_made", actor=Actor.shell())
    # Written out: to ask for the address would load every address with its view, in a process that shows none.
    return f"{settings.BERTH_PUBLIC_URL}/first-admin/{secret}"


def check_first_admin(secret: str) -> OneTimeLink:
    """The open link with this secret. Raises AdminExists or LinkInvalid."""
    if admin_exists():
        raise AdminExists()
    link = OneTimeLink.objects.filter(
        purpose="first_admin", secret_hash=passwords.digest(secret), used_at=None, expires_at__gt=timezone.now()
    ).first()
    if link is None:
        raise LinkInvalid()
    return link


def create_first_admin(request: HttpRequest, secret: str, *, name: str, password: str) -> User:
    """Use the link: make the admin and sign this browser in. Of two at once one wins; the other sees AdminExists."""
    address = address_of(request)
    with transaction.atomic():
        lock_until_commit(Lock.FIRST_ADMIN)
        link = check_first_admin(secret)
        user = passwords.new_user(name, password, Role.ADMIN)
        OneTimeLink.objects.filter(pk=link.pk).update(used_at=timezone.now())
        actor = Actor.from_user(user, address=address, via="browser")
        audit.record("first_admin.created", user, actor=actor)
        sessions.begin(request, user)
        audit.record("login", user, actor=actor)
    return user


def create_admin(name: str, password: str, *, actor: Any) -> User:
    """Make an admin from the shell. Raises Invalid."""
    require(actor, "users.manage")
    with transaction.atomic():
        lock_until_commit(Lock.FIRST_ADMIN)
        user = passwords.new_user(name, password, Role.ADMIN)
        audit.record("user.created", user, actor=actor, after={"role": user.role})
    return user
