"""How often a password may be tried: per address and per name, counted by the minute in the database.

An attempt is counted before the password is looked at, so a burst of parallel attempts gains nothing; one that
succeeds is given back.
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from django.db.models import F
from django.utils import timezone

from panel.accounts.models import LoginAttempt, User
from panel.audit.services import network

WINDOW = timedelta(minutes=15)
PER_NAME = 10
PER_ADDRESS = 30  # an office may share one address

_UPSERT = """
INSERT INTO accounts_loginattempt (key, minute, count) VALUES (%s, %s, 1)
ON CONFLICT (key, minute) DO UPDATE SET count = accounts_loginattempt.count + 1
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, already counted. `wait_s` > 0: refused, come back in so many seconds."""

    name_key: str
    address_key: str
    minute: datetime
    wait_s: int = 0


def now() -> datetime:
    """The clock of the limits; tests put their own here."""
    return timezone.now()


def attempt(name: str, address: str) -> Attempt:
    """Count one try of this name from this address, or say how long to wait. A refused try does not count."""
    moment = now()
    made = Attempt(_name_key(name), f"addr:{network(address)}", moment.replace(second=0, microsecond=0))
    wait = _wait_s(made, moment, spare=1)
    if not wait:
        with connection.cursor() as cursor:
            for key in (made.name_key, made.address_key):
                cursor.execute(_UPSERT, [key, made.minute])
        wait = _wait_s(made, moment, spare=0)  # again: others may have counted at the same time
        LoginAttempt.objects.filter(minute__lt=moment - 4 * WINDOW).delete()
    return Attempt(made.name_key, made.address_key, made.minute, wait)


def succeeded(made: Attempt) -> None:
    """The password was right: the name starts afresh; the address gets this one try back.

    (Not all of them: else an account of one's own would clear the way to guess at others.)
    """
    LoginAttempt.objects.filter(key=made.name_key).delete()
    LoginAttempt.objects.filter(key=made.address_key, minute=made.minute, count__gt=0).update(count=F("count") - 1)


def forget(name: str) -> None:
    """This name starts afresh: its person has shown another way who they are."""
    LoginAttempt.objects.filter(key=_name_key(name)).delete()


def _name_key(name: str) -> str:
    """Of the name that a sign-in would look for: other letters that mean the same one are no further tries.

    Hidden, since people type passwords where the name belongs.
    """
    meant = User.normalize_username(name).casefold().encode("utf-8", "replace")
    return f"name:{hmac.digest(settings.SECRET_KEY.encode(), b'login name ' + meant, hashlib.sha256).hex()}"


def _wait_s(made: Attempt, moment: datetime, *, spare: int) -> int:
    """Seconds until fewer than the allowed tries lie in the window; 0 when one more (`spare`) is allowed now."""
    rows = LoginAttempt.objects.filter(key__in=[made.name_key, made.address_key], minute__gt=moment - WINDOW).order_by(
        "-minute"
    )
    left = {made.name_key: PER_NAME - spare, made.address_key: PER_ADDRESS - spare}
    wait = 0.0
    for row in rows:
        before, left[row.key] = left[row.key], left[row.key] - row.count
        if before >= 0 > left[row.key]:  # this minute is the one that has to grow old
            wait = max(wait, (row.minute + WINDOW - moment).total_seconds())
    return int(wait) + 1 if wait > 0 else 0
