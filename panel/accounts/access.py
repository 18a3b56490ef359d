"""Who may do what: one table, one call. Services ask `require`, views stand behind `@right`, templates ask `may`.

A refusal is recorded. A stranger is led to the sign-in page; a fetch or a program gets 401 or 403 in the error shape.
"""

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ValidationError
from django.db import DataError, connection, models
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts.actor import SYSTEM_ROLE, Actor, as_actor
from panel.accounts.models import Role
from panel.accounts.nextpage import login_url, to_login, wants_page
from panel.core.errors import Denied, NotFound
from panel.core.pages import is_htmx, refuse

# The least role that holds each right; a role holds all rights of the ones before it.
RIGHTS: dict[str, Role] = {
    "deployments.view": Role.VIEWER,  # pages, logs, numbers of deployments
    "deployments.create": Role.OPERATOR,
    "deployments.edit": Role.OPERATOR,
    "deployments.operate": Role.OPERATOR,  # start, stop, restart
    "deployments.delete": Role.OPERATOR,
    "deployments.try": Role.VIEWER,  # the one-question box
    "models.view": Role.VIEWER,
    "models.scan": Role.OPERATOR,
    "models.download": Role.OPERATOR,
    "models.roots": Role.ADMIN,  # which folders of a host are searched
    "models.trust": Role.ADMIN,  # let a model run its own code
    "models.delete": Role.ADMIN,
    "hosts.view": Role.VIEWER,
    "hosts.manage": Role.ADMIN,  # join, rename, drain, forget
    "runtimes.view": Role.VIEWER,
    "runtimes.manage": Role.ADMIN,
    "audit.view": Role.VIEWER,
    "audit.export": Role.ADMIN,
    "tokens.own": Role.VIEWER,
    "tokens.manage": Role.ADMIN,  # those of others
    "profile.own": Role.VIEWER,
    "users.manage": Role.ADMIN,
    "settings.manage": Role.ADMIN,
}
_RANK = {role: rank for rank, role in enumerate(Role.values)}
# What a token that only reads may do: everything that changes nothing.
_READING = frozenset(name for name in RIGHTS if name.endswith(".view"))


class NotSignedIn(Denied):
    code = "not_signed_in"
    message: Any = _("Sign in first.")
    hint: Any = _("Your session may have ended; nothing was changed.")
    status = 401


class RoleTooLow(Denied):
    """The one refusal of a signed-in person; `code` stays "denied"."""

    message: Any = _("Your role does not allow this.")
    hint: Any = _("This needs the role “%(role)s”. An admin of this panel can give it to you.")


class ReadOnly(Denied):
    """The person could, but the token that is used may only look."""

    message: Any = _("This token may only read.")
    hint: Any = _("Use a token that may change things.")


def may(who: Any, right: str) -> bool:
    """Whether an Actor or user holds the right. An unknown right is a bug and raises LookupError."""
    if right not in RIGHTS:
        raise LookupError(f"no such right: {right}")
    actor = as_actor(who)
    if actor.role == SYSTEM_ROLE:
        return True
    if actor.read_only and right not in _READING:
        return False
    return _RANK.get(actor.role, -1) >= _RANK[RIGHTS[right]]


def require(who: Any, right: str, target: Any = None) -> Actor:
    """Return the actor when it holds the right; else record the refusal and raise Denied (or NotSignedIn).

    The record survives the transaction that the refusal ends.
    """
    actor = as_actor(who)
    if may(actor, right):
        return actor
    audit.record(right, target, actor=actor, outcome="denied")
    raise refusal(actor, right)


def refusal(actor: Actor, right: str) -> Denied:
    """The error that tells this actor why not."""
    if not actor.signed_in or not actor.role:
        return NotSignedIn()
    if actor.read_only and _RANK[actor.role] >= _RANK[RIGHTS[right]]:
        return ReadOnly()
    return RoleTooLow(params={"role": RIGHTS[right].label})


def load_or_404(source: Any, who: Any, **lookup: Any) -> Any:
    """One row of a model, manager or queryset that this person may see; raises NotFound otherwise.

    A queryset that has `visible_to(user)` is narrowed by it. Values that cannot be a key are simply not found.
    """
    rows = source._default_manager.all() if isinstance(source, type) and issubclass(source, models.Model) else source
    rows = rows.all()
    actor = as_actor(who)
    if not actor.signed_in or not actor.role:
        raise NotFound()
    if hasattr(rows, "visible_to"):
        rows = rows.visible_to(actor.user)
    try:
        return rows.get(**lookup)
    except (rows.model.DoesNotExist, ValueError, TypeError, ValidationError, DataError) as exc:
        raise NotFound() from exc


# --- views ------------------------------------------------------------------------------------------------------------

View = Callable[..., Any]
_SAFE = ("GET", "HEAD", "OPTIONS")


def right(name: str) -> Callable[[View], View]:
    """Let only people with this right into the view; `request.actor` is then the Actor."""
    if name not in RIGHTS:
        raise LookupError(f"no such right: {name}")

    def decorate(view: View) -> View:
        if iscoroutinefunction(view):

            @wraps(view)
            async def async_guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                refused = await sync_to_async(_check_and_let_go)(request, name)
                return refused or await view(request, *args, **kwargs)

            return async_guarded

        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return check(request, name) or view(request, *args, **kwargs)

        return guarded

    return decorate


def check(request: HttpRequest, name: str) -> HttpResponseBase | None:
    """None when the person of this request holds the right, else the answer that says why not."""
    actor = Actor.from_request(request)
    request.actor = actor  # type: ignore[attr-defined]  # the views' shorthand
    if may(actor, name):
        return None
    # A stranger who only looks is no news (a session that ended looks the same); one who tries to change things is.
    if actor.signed_in or request.method not in _SAFE:
        audit.record(name, _asked_for(request), actor=actor, outcome="denied")
    return answer(request, refusal(actor, name))


def answer(request: HttpRequest, error: Denied) -> HttpResponseBase:
    """A refusal in the shape that the caller understands."""
    page = wants_page(request)
    if page and error.status == 401:
        return to_login(request)
    if page or (is_htmx(request) and error.status != 401):
        return refuse(request, error)
    response = JsonResponse(error.as_dict(), status=error.status)
    if is_htmx(request):
        response["HX-Redirect"] = login_url(request)
    return response


def _asked_for(request: HttpRequest) -> tuple[str, str, str]:
    match = request.resolver_match
    return "address", match.view_name if match else "", f"{request.method} {request.path}"


def _check_and_let_go(request: HttpRequest, name: str) -> HttpResponseBase | None:
    """For async views, which may stream for hours: give the database connection back before they begin."""
    try:
        return check(request, name)
    finally:
        if not connection.in_atomic_block:
            connection.close()
