"""Writes the record. Every act goes through `record`, inside the transaction of the change it tells about."""

import ipaddress
import json
import logging
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from django.db import connection, models
from django.utils import timezone

from panel.audit.bounds import bounded, line
from panel.audit.models import Event, Outcome, minute_of

log = logging.getLogger(__name__)

# At most so many rows of refusals in one minute; what comes on top shares one row, so that no crowd of addresses
# can fill the disk.
REFUSAL_ROWS_PER_MINUTE = 200
MANY = "many addresses"


@runtime_checkable
class ActorLike(Protocol):
    """What a record needs to know about who acts; panel.accounts.actor.Actor is one."""

    name: str
    id: int | None
    address: str


def record(
    verb: str,
    target: Any = None,
    *,
    actor: Any,
    address: str = "",
    story: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    outcome: str = Outcome.DONE,
    **facts: Any,
) -> Event:
    """Append one act and return its row.

    `verb` is past tense with the kind in front ("deployment.started"); for a refusal it is the missing right.
    `target` is a model row, a `(kind, id, name)` triple, a text, or None. `actor` is a user, an Actor, or None for
    the loop itself. `story` says what a target belongs to ("deployment:12"); a deployment is a story of its own.
    Texts are cut, secrets masked. A refusal joins the row of its address, actor, verb and minute,
    and outlives the transaction that it ends.
    """
    name, actor_id, where, via = _who(actor)
    kind, target_id, target_name = _what(target)
    if via:
        facts.setdefault("via", via)
    event = Event(
        verb=line(verb, 64),
        actor=line(name, 150),
        actor_id=actor_id,
        address=line(address or where, 64),
        target_kind=line(kind, 32),
        target_id=line(target_id, 64),
        target=line(target_name, 200),
        outcome=outcome,
        before=None if before is None else bounded(before),
        after=None if after is None else bounded(after),
        facts=bounded(facts),
        story=line(story or (f"{kind}:{target_id}" if kind == "deployment" else ""), 64),
    )
    if outcome == Outcome.DENIED:
        return _count_refusal(event, timezone.now())
    event.save()
    log.info("%s %s by %s: %s", event.verb, event.target or event.target_id, event.actor, event.outcome)
    return event


def _who(actor: Any) -> tuple[str, int | None, str, str]:
    """(name, id, address, way in) of whoever acts."""
    if actor is None:
        return "system", None, "", ""
    if isinstance(actor, ActorLike):
        return actor.name, actor.id, actor.address, getattr(actor, "via", "")
    return actor.get_username(), actor.pk, "", ""


def _what(target: Any) -> tuple[str, str, str]:
    """(kind, id, name) of what was acted on."""
    if target is None:
        return "", "", ""
    if isinstance(target, tuple):
        kind, target_id, name = target
        return str(kind), str(target_id), str(name)
    if isinstance(target, models.Model):
        name = getattr(target, "name", "") or getattr(target, "username", "") or str(target)
        return target._meta.model_name or "", str(target.pk), str(name)
    return "", "", str(target)


# --- refusals ---------------------------------------------------------------------------------------------------------

_UPSERT = """
INSERT INTO audit_event
    (at, minute, verb, actor, actor_id, address, target_kind, target_id, target, outcome, count, before, after, facts,
     story)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 'denied', 1, %s::jsonb, %s::jsonb, %s::jsonb, %s)
ON CONFLICT (minute, address, verb, actor_id) WHERE outcome = 'denied'
DO UPDATE SET count = least(audit_event.count::bigint + 1, 2147483647)
    WHERE audit_event.count < 2147483647
RETURNING id, count
"""


def _count_refusal(event: Event, now: datetime) -> Event:
    """Add one to the row of this refusal, or begin it."""
    event.at, event.minute = now, minute_of(now)
    event.address = network(event.address)
    with _apart() as link:
        if event.actor_id is None and _crowded(link, event.minute):
            event.address = MANY
        with link.cursor() as cursor:
            cursor.execute(
                _UPSERT,
                [
                    event.at, event.minute, event.verb, event.actor, event.actor_id, event.address,
                    event.target_kind, event.target_id, event.target,
                    *(None if doc is None else json.dumps(doc) for doc in (event.before, event.after, event.facts)),
                    event.story,
                ],
            )  # fmt: skip
            event.pk, event.count = cursor.fetchone() or (None, event.count)
    event._state.adding = False
    return event


def _crowded(link: Any, minute: datetime) -> bool:
    """Whether this minute already has its share of rows; reads the index only."""
    with link.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM"
            " (SELECT 1 FROM audit_event WHERE outcome = 'denied' AND minute = %s LIMIT %s) AS rows",
            [minute, REFUSAL_ROWS_PER_MINUTE],
        )
        (rows,) = cursor.fetchone()
    return bool(rows >= REFUSAL_ROWS_PER_MINUTE)


@contextmanager
def _apart() -> Any:
    """A connection whose work is kept even when the transaction around us is rolled back, as a refusal does.

    Inside the transaction that a test wraps around itself there is no such thing: the rows must vanish with it.
    """
    blocks = connection.atomic_blocks
    if not blocks or any(getattr(block, "_from_testcase", False) for block in blocks):
        yield connection
        return
    other = connection.copy()
    try:
        yield other
    finally:
        other.close()


def network(address: str) -> str:
    """The address as refusals are counted: of IPv6 the /64, since one machine owns that many addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
