"""Who is signed in where: begun at sign-in, seen to the minute, listed, ended. An ended session is a deleted row."""

import uuid
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import login
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from panel import audit
from panel.accounts import agents
from panel.accounts.access import require
from panel.accounts.actor import address_of, as_actor
from panel.accounts.models import PersonSession, User
from panel.core import sse

_SWEPT = 500  # old sessions of everyone that one sign-in removes at most
MOST = 50  # sessions of one person; a newer one ends the oldest
_SEEN = timedelta(minutes=1)  # how exact "last seen" is; a write for every request would cost more than it tells


def begin(request: HttpRequest, user: User) -> None:
    """Sign this browser in, in a transaction: a new session key, so one that was planted before is worth nothing."""
    login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
    describe(request)
    old = PersonSession.objects.select_for_update(skip_locked=True).filter(expire_date__lt=timezone.now())
    PersonSession.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:_SWEPT])).delete()
    newest = PersonSession.objects.filter(user=user).order_by("-since").values("pk")[:MOST]
    PersonSession.objects.filter(user=user).exclude(pk__in=newest).delete()


def describe(request: HttpRequest, since: datetime | None = None) -> None:
    """Write down of this request's session where it is and since when; after Django gave it a new key."""
    session: Any = request.session
    if session.session_key is None:
        session.save()
    now = timezone.now()
    whose = request.user.pk  # Django writes it down only with the answer
    PersonSession.objects.filter(pk=session.session_key).update(
        user=whose, address=address_of(request), agent=_agent(request), since=since or now, last_seen_at=now
    )
    User.objects.filter(pk=whose).update(last_seen_at=now)


def note_seen(request: HttpRequest) -> None:
    """Remember that the person is here, at most once a minute; costs nothing in between."""
    row: PersonSession | None = getattr(request.session, "row", None)
    now = timezone.now()
    if row is None or row.user_id is None or row.last_seen_at > now - _SEEN:
        return
    stale = PersonSession.objects.filter(pk=row.pk, last_seen_at__lte=now - _SEEN)
    if stale.update(last_seen_at=now, address=address_of(request), agent=_agent(request)):
        User.objects.filter(pk=row.user_id).update(last_seen_at=now)


def listed(user: User, here: str | None = None) -> list[PersonSession]:
    """A person's sessions, the latest first; each has `.browser` in words, and `.here` when its key is this one."""
    rows = list(
        PersonSession.objects.filter(user=user, expire_date__gt=timezone.now()).order_by("-last_seen_at")[:MOST]
    )
    for row in rows:
        row.browser = agents.in_words(row.agent)  # type: ignore[attr-defined]  # for the page only
        row.here = row.pk == here  # type: ignore[attr-defined]
    return sorted(rows, key=lambda row: not row.here)  # type: ignore[attr-defined]


def end(user: User, number: uuid.UUID, *, actor: Any) -> bool:
    """End one session of a person at its next request; False when it was over already."""
    _may_touch(user, actor)
    with transaction.atomic():
        row = PersonSession.objects.select_for_update().filter(user=user, number=number).first()
        if row is None:
            return False
        row.delete()
        tell_ended(user)
        audit.record("session.ended", user, actor=actor, browser=agents.in_words(row.agent), seen_at=row.address)
    return True


def end_all(user: User, *, actor: Any, but: str | None = None) -> int:
    """End all sessions of a person, except the one with the key `but`; returns how many."""
    _may_touch(user, actor)
    with transaction.atomic():
        ended = drop(user, but=but)
        if ended:
            audit.record("session.all_ended", user, actor=actor, sessions=ended)
    return ended


def drop(user: User, *, but: str | None = None) -> int:
    """Delete a person's sessions without a record of its own: part of an act that has one."""
    tell_ended(user)
    rows = PersonSession.objects.filter(user=user)
    return (rows.exclude(pk=but) if but else rows).delete()[0]


def tell_ended(user: User) -> None:
    """The person's open pages lose their streams when this is committed, and connect again if they still may."""
    topic = sse.person_topic(user.pk)
    transaction.on_commit(lambda: sse.publish(topic), robust=True)


def _may_touch(owner: User, actor: Any) -> None:
    require(actor, "profile.own" if as_actor(actor).id == owner.pk else "users.manage", owner)


def _agent(request: HttpRequest) -> str:
    return "".join(c for c in request.headers.get("User-Agent", "") if c.isprintable())[:300]
