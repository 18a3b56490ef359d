"""The way to the sign-in page and back: to a page of this panel, never to another site."""

from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponseRedirect
from django.shortcuts import resolve_url

from panel.core.pages import is_htmx, own_path


def safe_next(target: str | None) -> str:
    """Where to go after sign-in: a path of this panel, or its first page."""
    return own_path(target, str(resolve_url(settings.LOGIN_REDIRECT_URL)))


def login_url(request: HttpRequest) -> str:
    """The sign-in page, with the way back to what the person looks at."""
    here = _here(request)
    page = str(resolve_url(settings.LOGIN_URL))
    return f"{page}?{urlencode({'next': here})}" if here else page


def to_login(request: HttpRequest) -> HttpResponseRedirect:
    return HttpResponseRedirect(login_url(request))


def _here(request: HttpRequest) -> str:
    """The open page: for a fragment that is not its own address, and a form that was sent has none to go back to."""
    if is_htmx(request):
        try:
            parts = urlsplit(request.headers.get("HX-Current-URL") or "")
        except ValueError:  # no browser's address
            return ""
        return f"{parts.path}?{parts.query}" if parts.query else parts.path
    return request.get_full_path() if request.method == "GET" else ""
