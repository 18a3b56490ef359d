"""The keeper of views: `@right("deployments.create")` before a view, sync or async.

A stranger is led to the sign-in page; a fetch, an htmx request or a program gets 401 or 403 in the error shape.
"""

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest, HttpResponseBase, JsonResponse

from panel import audit
from panel.accounts.access import RIGHTS, can, refusal
from panel.accounts.actor import Actor
from panel.accounts.nextpage import login_url, to_login
from panel.core.errors import Denied
from panel.core.pages import is_htmx, refuse, wants_json

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
    request.actor = actor
    if can(actor, name):
        return None
    # A stranger who only looks is no news (a session that ended looks the same); one who tries to change things is.
    if actor.signed_in or request.method not in _SAFE:
        audit.record(name, _asked_for(request), actor=actor, outcome="denied")
    return answer(request, refusal(actor, name))


def answer(request: HttpRequest, error: Denied) -> HttpResponseBase:
    """A refusal in the shape that the caller understands."""
    if error.status == 401 and is_htmx(request):
        return JsonResponse(error.as_dict(), status=401, headers={"HX-Redirect": login_url(request)})
    if error.status == 401 and not wants_json(request):
        return to_login(request)
    return refuse(request, error)


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
