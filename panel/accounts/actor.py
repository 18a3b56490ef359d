"""Who acts, bound to the request or the shell that it comes through: name, id, role, address and way in."""

import ipaddress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from django.http import HttpRequest

SYSTEM_ROLE = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """What `require` decides by and what `record` writes down. A stranger has no id, no name and no role."""

    name: str = ""
    id: int | None = None
    address: str = ""
    role: str = ""
    via: str = ""  # "browser", "shell", "token <name>"; empty for the loop itself
    read_only: bool = False  # holds only the rights to see
    deployments: frozenset[int] | None = None  # of a limited token: all that it sees and acts on; None: everything
    until: datetime | None = None  # when the token that is used ends; None: never, or no token
    user: Any = field(default=None, compare=False, repr=False)

    @property
    def signed_in(self) -> bool:
        return self.id is not None or self.role == SYSTEM_ROLE

    @classmethod
    def system(cls) -> Self:
        """The loop itself; it may everything."""
        return cls(name="system", role=SYSTEM_ROLE)

    @classmethod
    def shell(cls) -> Self:
        """Whoever may run commands on the panel's own machine; it may everything."""
        return cls(name="system", role=SYSTEM_ROLE, via="shell")

    def reaches(self, deployment_id: int) -> bool:
        """Whether this deployment is within what a limited token was made for."""
        return self.deployments is None or deployment_id in self.deployments

    @classmethod
    def from_user(
        cls,
        user: Any,
        *,
        address: str = "",
        via: str = "",
        read_only: bool = False,
        deployments: frozenset[int] | None = None,
        until: datetime | None = None,
    ) -> Self:
        """A user row, or Django's AnonymousUser. A disabled account is a stranger with a name."""
        if not user.is_authenticated:
            return cls(address=address)
        role = user.role if user.is_active else ""
        return cls(user.get_username(), user.pk, address, role, via, read_only, deployments, until, user)

    @classmethod
    def from_request(cls, request: HttpRequest) -> Self:
        """The signed-in user of a page, with the address that the request came from."""
        return cls.from_user(request.user, address=address_of(request), via="browser")

    @classmethod
    def from_token(cls, token: Any, address: str = "") -> Self:
        """The owner of an API token, with no more rights than the token has: reading, or some deployments only."""
        return cls.from_user(
            token.user,
            address=address,
            via=f"token {token.name}",
            read_only=token.scope != "api:write",
            deployments=None if token.deployment_ids is None else frozenset(token.deployment_ids),
            until=token.expires_at,
        )


def as_actor(who: Any) -> Actor:
    """An Actor from an Actor or a user row."""
    return who if isinstance(who, Actor) else Actor.from_user(who)


def name_of(who: Any) -> str:
    """What rows keep of whoever acts: an Actor, a user's name, or the loop itself (None). At most 150 characters."""
    return str(getattr(who, "name", None) or who or "system")[:150]


def address_of(request: HttpRequest) -> str:
    """The client's address; what a trusted proxy says of it was put in place by the web server."""
    address = request.META.get("REMOTE_ADDR") or ""
    try:
        return str(ipaddress.ip_address(address.strip("[]")))
    except ValueError:
        return ""
