"""The key to the API: a bearer token, and what its owner and the token itself may do. Cookies open nothing here."""

from dataclasses import replace
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts.access import ReadOnly, can, refusal
from panel.accounts.actor import Actor, address_of
from panel.accounts.models import Scope
from panel.accounts.tokens import find_token
from panel.core.api import Token
from panel.core.errors import Denied


class NoToken(Denied):
    code = "token.missing"
    message: Any = _("The API is opened by a token, and none was sent.")
    hint: Any = _("Make one under Your account and send it as “Authorization: Bearer …”.")
    status = 401


class UnknownToken(Denied):
    code = "token.unknown"
    message: Any = _("This token opens nothing.")
    hint: Any = _("It may be mistyped, revoked or expired. Make a new one under Your account.")
    status = 401


class DoorToken(Denied):
    code = "token.door"
    message: Any = _("This token is for asking models, not for the API.")
    hint: Any = _("Make a token that may read, or read and change, through the API.")


def opened(request: HttpRequest, right: str, *, reads: bool = False) -> Actor:
    """The actor of an API request. Raises Denied; refusals of known tokens, and tries to change, are recorded.

    `reads`: it changes nothing, as every GET.
    """
    kind, _blank, secret = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not secret.strip():
        raise _recorded(NoToken(), Actor(address=address_of(request)), right, request)
    token = find_token(secret.strip())
    if token is None:
        raise _recorded(UnknownToken(), Actor(address=address_of(request)), right, request)
    actor = Actor.from_token(token, address_of(request))
    if token.scope == Scope.DOOR:
        raise _recorded(DoorToken(), actor, right, request)
    if reads or request.method == "GET":
        judged = replace(actor, read_only=False)  # whether the person may look; a token that only reads may do that
    elif actor.read_only:
        raise _recorded(ReadOnly(), actor, right, request)
    else:
        judged = actor
    if right and not can(judged, right):
        raise _recorded(refusal(judged, right), actor, right, request)
    return actor


def _recorded(error: Denied, actor: Actor, right: str, request: HttpRequest) -> Denied:
    """A stranger who only looks is no news; one who tries to change things is, as on the pages."""
    if actor.signed_in or request.method != "GET":
        audit.record(
            right or "api", ("address", "api", f"{request.method} {request.path}"), actor=actor, outcome="denied"
        )
    return error


Token.opener = staticmethod(opened)
