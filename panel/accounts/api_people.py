"""People and invitations, for admins' programs. The services are those of the pages."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema, Status

from panel.accounts import links, people
from panel.accounts.models import OneTimeLink, Purpose, User
from panel.core.api import Page, Paging, Token, answers, page_of
from panel.core.errors import NotFound
from panel.core.idempotency import key_header, once

router = Router(tags=["accounts"])
RoleName = Literal["viewer", "operator", "admin"]


class UserOut(Schema):
    id: int
    name: str
    role: RoleName
    active: bool
    language: str
    created_at: datetime
    last_seen_at: datetime | None


class UserFilter(Paging):
    q: str = Field("", max_length=100, description=_("Part of the name."))
    role: Literal["", "viewer", "operator", "admin"] = ""
    state: Literal["", "active", "disabled"] = ""


class UserChange(Schema):
    """What is left out stays. Nobody changes themselves, and one admin always stays."""

    model_config = {"extra": "forbid"}

    role: RoleName | None = None
    active: bool | None = Field(None, description=_("False: sessions and tokens of this person end at once."))


class InvitationIn(Schema):
    model_config = {"extra": "forbid"}

    label: str = Field(min_length=1, max_length=80, description=_("Who it is for."), examples=["Mina"])
    role: RoleName = "viewer"


class InvitationOut(Schema):
    id: int
    label: str
    role: RoleName
    made_by: str
    created_at: datetime
    expires_at: datetime


class NewInvitationOut(InvitationOut):
    link: str | None = Field(description=_("The link itself, this once; null when the answer is a repeated one."))


def user_out(row: User) -> dict[str, Any]:
    return {
        "id": row.pk,
        "name": row.username,
        "role": row.role,
        "active": row.is_active,
        "language": row.language,
        "created_at": row.date_joined,
        "last_seen_at": row.last_seen_at,
    }


def invitation_out(row: OneTimeLink) -> dict[str, Any]:
    maker = row.made_by.username if row.made_by is not None else ""
    names = ("id", "label", "role", "created_at", "expires_at")
    return {**{name: getattr(row, name) for name in names}, "made_by": maker}


def _users(rows: Iterable[User]) -> Iterable[dict[str, Any]]:
    return map(user_out, rows)


def _person(user_id: int) -> User:
    row = User.objects.filter(pk=user_id).first()
    if row is None:
        raise NotFound
    return row


# --- people -----------------------------------------------------------------------------------------------------------


@router.get("/users", response=answers({200: Page[UserOut]}), auth=Token("users.manage"), summary=_("List people"))
def list_users(request: HttpRequest, asked: Query[UserFilter]) -> Any:
    rows = people.found(asked.q)
    if asked.role:
        rows = rows.filter(role=asked.role)
    if asked.state:
        rows = rows.filter(is_active=asked.state == "active")
    return page_of(rows, asked, _users)


@router.get(
    "/users/{int:user_id}", response=answers({200: UserOut}, 404), auth=Token("users.manage"), summary=_("One person")
)
def get_user(request: HttpRequest, user_id: int) -> Any:
    return user_out(_person(user_id))


@router.patch(
    "/users/{int:user_id}",
    response=answers({200: UserOut}, 404, 409, 413),
    auth=Token("users.manage"),
    summary=_("Give another role, disable or enable"),
)
def change_user(request: HttpRequest, user_id: int, body: UserChange) -> Any:
    row = _person(user_id)
    with transaction.atomic():
        if body.role is not None:
            people.change_role(row, body.role, actor=request.auth)
        if body.active is not None:
            act = people.enable if body.active else people.disable
            act(row, actor=request.auth)
    return user_out(_person(user_id))


# --- invitations ------------------------------------------------------------------------------------------------------


@router.get(
    "/users/invitations",
    response=answers({200: Page[InvitationOut]}),
    auth=Token("users.manage"),
    summary=_("List invitations"),
    description=_("Those that wait for their person, newest first."),
)
def list_invitations(request: HttpRequest, asked: Query[Paging]) -> Any:
    return page_of(links.invitations(), asked, lambda found: map(invitation_out, found), newest=True)


@router.post(
    "/users/invitations",
    response=answers({201: NewInvitationOut}, 409, 413),
    auth=Token("users.manage"),
    summary=_("Invite a person"),
    description=_("Makes a link that works once; whoever opens it chooses a name and a password."),
)
def invite_user(request: HttpRequest, body: InvitationIn, response: HttpResponse, key: str = key_header()) -> Any:
    def make() -> NewInvitationOut:
        row, url = links.invite(label=body.label, role=body.role, actor=request.auth)
        return NewInvitationOut(**invitation_out(row), link=url)

    return Status(201, once(request, response, key, make, secrets=["link"]))


@router.delete(
    "/users/invitations/{int:invitation_id}",
    response=answers({204: None}, 404, 409),
    auth=Token("users.manage"),
    summary=_("Take an invitation back"),
)
def revoke_invitation(request: HttpRequest, invitation_id: int) -> Any:
    row = OneTimeLink.objects.filter(pk=invitation_id, purpose=Purpose.INVITE).first()
    if row is None:
        raise NotFound
    links.take_back(row, actor=request.auth)
    return Status(204, None)
