"""Whose token it is, and tokens, for programs. The services are those of the pages."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema, Status

from panel.accounts import services
from panel.accounts.access import can
from panel.accounts.models import ApiToken
from panel.accounts.tokens import live
from panel.core.api import Page, Paging, Token, answers, page_of
from panel.core.errors import NotFound
from panel.core.idempotency import key_header, once

router = Router(tags=["accounts"])


# --- shapes -----------------------------------------------------------------------------------------------------------


class MeOut(Schema):
    """Whose token this is, and what it may do."""

    id: int
    name: str
    role: Literal["viewer", "operator", "admin"]
    via: str = Field(description=_("The way in: the name of the token."))
    read_only: bool
    deployments: list[int] | None = Field(description=_("The only deployments that it reaches; null: all."))


class TokenOut(Schema):
    id: int
    name: str
    user: str
    user_id: int
    prefix: str = Field(description=_("The first characters, to recognise it."))
    scope: Literal["door", "api:read", "api:write"]
    deployments: list[int] | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    live: bool = Field(description=_("False: revoked, expired, or its owner is disabled."))


class NewTokenOut(TokenOut):
    token: str | None = Field(description=_("The token itself, this once; null when the answer is a repeated one."))


class TokenIn(Schema):
    model_config = {"extra": "forbid"}

    name: str = Field(min_length=1, max_length=80, description=_("What it is for."), examples=["nightly"])
    scope: Literal["door", "api:read", "api:write"] = "door"
    days: int | None = Field(90, ge=1, le=3650, description=_("Ends after so many days; null: never."))
    deployments: list[int] | None = Field(
        None, max_length=200, description=_("Ids of the only deployments that it reaches; null: all.")
    )


class TokenFilter(Paging):
    user: str = Field("", max_length=150, description=_("Whose, by name; empty: your own. Those of others: admins."))
    live: bool = Field(False, description=_("Only those that open something now."))


# --- rows into shapes -------------------------------------------------------------------------------------------------


def token_out(row: ApiToken) -> dict[str, Any]:
    names = ("id", "name", "user_id", "prefix", "scope", "created_at", "expires_at", "last_used_at", "revoked_at")
    ended = row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= timezone.now())
    return {
        **{name: getattr(row, name) for name in names},
        "user": row.user.username,
        "deployments": row.deployment_ids,
        "live": not ended and row.user.is_active,
    }


# --- oneself ----------------------------------------------------------------------------------------------------------


@router.get("/me", response=answers({200: MeOut}), auth=Token(), summary=_("Whose token this is"))
def get_me(request: HttpRequest) -> Any:
    actor = request.auth
    reach = None if actor.deployments is None else sorted(actor.deployments)
    names = ("id", "name", "role", "via", "read_only")
    return {**{name: getattr(actor, name) for name in names}, "deployments": reach}


# --- tokens -----------------------------------------------------------------------------------------------------------


def _tokens(rows: Iterable[ApiToken]) -> Iterable[dict[str, Any]]:
    return map(token_out, rows)


def _tokens_of(request: HttpRequest, name: str) -> QuerySet[ApiToken]:
    """Those of a person; of others only for an admin, else there are none."""
    actor = request.auth
    rows = ApiToken.objects.select_related("user")
    if not name or name == actor.name:
        return rows.filter(user_id=actor.id)
    return rows.filter(user__username=name) if _sees_others(actor) else rows.none()


def _sees_others(actor: Any) -> bool:
    """Looking at the tokens of others needs the role of who may end them, also with a token that only reads."""
    return bool(can(actor.user, "tokens.manage"))


@router.get("/tokens", response=answers({200: Page[TokenOut]}), auth=Token("tokens.own"), summary=_("List tokens"))
def list_tokens(request: HttpRequest, asked: Query[TokenFilter]) -> Any:
    rows = _tokens_of(request, asked.user)
    if asked.live:
        rows = live(rows)
    return page_of(rows, asked, _tokens)


@router.post(
    "/tokens",
    response=answers({201: NewTokenOut}, 409, 413),
    auth=Token("tokens.own"),
    summary=_("Make a token"),
    description=_("For yourself. The answer is the only time that the token is shown."),
)
def create_token(request: HttpRequest, body: TokenIn, response: HttpResponse, key: str = key_header()) -> Any:
    actor = request.auth

    def make() -> NewTokenOut:
        row, plaintext = services.create_token(
            actor.user, body.name, actor=actor, scope=body.scope, days=body.days, deployment_ids=body.deployments
        )
        return NewTokenOut(**token_out(row), token=plaintext)

    return Status(201, once(request, response, key, make, secrets=["token"]))


@router.delete(
    "/tokens/{int:token_id}",
    response=answers({204: None}, 404),
    auth=Token("tokens.own"),
    summary=_("Revoke a token"),
    description=_("For good; one that was revoked before stays so. Tokens of others: admins."),
)
def revoke_token(request: HttpRequest, token_id: int) -> Any:
    actor = request.auth
    row = ApiToken.objects.select_related("user").filter(pk=token_id).first()
    if row is None or (row.user_id != actor.id and not can(actor, "tokens.manage")):
        raise NotFound
    services.revoke_token(row, actor=actor)
    return Status(204, None)
