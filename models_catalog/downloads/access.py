"""Tokens for hubs: a person's own, or the team's. Sealed at rest, never shown again.

Each is for the address that it was given for.
"""

import re
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from models_catalog.downloads import hubs
from models_catalog.downloads.models import HubAccess
from panel import audit
from panel.accounts.access import require
from panel.accounts.actor import as_actor
from panel.core.crypto import seal, unseal
from panel.core.errors import Invalid

TOKEN = re.compile(r"[!-~]{8,500}")
OWN, TEAM = "models.download", "settings.manage"


def token_for(source: str, actor: Any) -> str:
    """The token to use at this hub now: the person's own, else the team's, else none. Raises CannotUnseal."""
    return token_of(source, as_actor(actor).id if actor is not None else None)


def token_of(source: str, user_id: int | None) -> str:
    """The same by the number of the person, for orders that are made later."""
    rows = HubAccess.objects.filter(source=source, endpoint=hubs.at(source).endpoint)
    mine = rows.filter(owner_id=user_id, owner__is_active=True).first() if user_id is not None else None
    row = mine or rows.filter(owner=None).first()
    return unseal(row.token) if row is not None else ""


def has_own(source: str, user_id: int | None) -> bool:
    """Whether this person gave a token for the hub as it is set now."""
    rows = HubAccess.objects.filter(source=source, endpoint=hubs.at(source).endpoint, owner__is_active=True)
    return user_id is not None and rows.filter(owner_id=user_id).exists()


def keep(source: str, token: str, *, team: bool, actor: Any) -> HubAccess:
    """Keep a token, in the place of the former one. Raises Invalid."""
    who = require(actor, TEAM if team else OWN)
    if not team and who.user is None:
        raise Invalid({"token": _("A token of one's own needs a person.")})
    token = token.strip()
    if not TOKEN.fullmatch(token):
        raise Invalid({"token": _("Paste the token as the hub shows it, without blanks.")})
    try:
        hub = hubs.at(source)
    except ValueError as exc:
        raise Invalid({"source": _("There is no such hub.")}) from exc
    values = {"token": seal(token), "ending": token[-4:], "given_by": who.name[:150], "endpoint": hub.endpoint}
    with transaction.atomic():
        row, _made = HubAccess.objects.update_or_create(
            source=source, owner=None if team else who.user, defaults=values
        )
        audit.record("download.access_given", row, actor=actor, hub=hub.name, team=team)
    return row


def remove(row: HubAccess, *, actor: Any) -> None:
    """Forget a token: one's own, or the team's."""
    require(actor, TEAM if row.owner_id is None else OWN)
    with transaction.atomic():
        audit.record("download.access_removed", row, actor=actor, hub=row.get_source_display())
        row.delete()


def of(actor: Any) -> list[HubAccess]:
    """The tokens that would be used for this person, and the team's."""
    user = as_actor(actor).user
    rows = HubAccess.objects.filter(owner=None)
    return list(
        (rows | HubAccess.objects.filter(owner_id=user.pk) if user is not None else rows).order_by("source", "id")
    )
