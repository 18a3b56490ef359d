"""Secrets for programs: kept, replaced, deleted, and listed by name. No answer holds one."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Field, Path, Query, Router, Schema, Status

from panel.accounts import secret_store
from panel.accounts.models import Secret
from panel.core.api import Page, Paging, Token, answers, page_of
from panel.core.errors import NotFound

router = Router(tags=["accounts"])


class SecretOut(Schema):
    """A secret by its name; what it is was told once and is never told again."""

    id: int
    name: str
    of: Literal["own", "team"]
    given_by: str = Field(description=_("Whoever kept or replaced it last."))
    created_at: datetime
    updated_at: datetime


class SecretIn(Schema):
    model_config = {"extra": "forbid", "json_schema_extra": {"examples": [{"value": "the token as the hub shows it"}]}}

    value: str = Field(min_length=1, max_length=secret_store.LONGEST, description=_("The secret itself."))
    team: bool = Field(False, description=_("True: for everyone who may deploy. Admins alone keep those."))


class SecretFilter(Paging):
    of: Literal["", "own", "team"] = Field("", description=_("Only one's own, or only the team's."))


class WhoseFilter(Schema):
    team: bool = Field(False, description=_("True: the team's of this name."))


def secret_out(row: Secret) -> dict[str, Any]:
    names = ("id", "name", "given_by", "created_at", "updated_at")
    return {**{name: getattr(row, name) for name in names}, "of": "team" if row.owner_id is None else "own"}


def _secrets(rows: Iterable[Secret]) -> Iterable[dict[str, Any]]:
    return map(secret_out, rows)


@router.get(
    "/secrets",
    response=answers({200: Page[SecretOut]}),
    auth=Token(secret_store.OWN),
    summary=_("List secrets"),
    description=_("Those that your settings may name: your own and the team's, by name and never what they are."),
)
def list_secrets(request: HttpRequest, asked: Query[SecretFilter]) -> Any:
    rows = secret_store.usable(request.auth.id)
    if asked.of:
        rows = rows.filter(owner__isnull=asked.of == "team")
    return page_of(rows, asked, _secrets)


@router.put(
    "/secrets/{name}",
    response=answers({200: SecretOut}, 404, 409, 413),
    auth=Token(secret_store.OWN),
    summary=_("Keep or replace a secret"),
    description=_("Settings name it in `env_secrets`; the next start is given what it is by then."),
)
def keep_secret(request: HttpRequest, name: Path[str], body: SecretIn) -> Any:
    return secret_out(secret_store.keep(name, body.value, team=body.team, actor=request.auth))


@router.delete(
    "/secrets/{name}",
    response=answers({204: None}, 404),
    auth=Token(secret_store.OWN),
    summary=_("Delete a secret"),
    description=_("What names it cannot start until there is another one of that name. The team's: admins."),
)
def delete_secret(request: HttpRequest, name: Path[str], asked: Query[WhoseFilter]) -> Any:
    actor = request.auth
    rows = Secret.objects.filter(owner=None) if asked.team else Secret.objects.filter(owner_id=actor.id)
    row = rows.select_related("owner").filter(name=name).first() if secret_store.NAME.fullmatch(name) else None
    if row is None:
        raise NotFound
    secret_store.remove(row, actor=actor)
    return Status(204, None)
