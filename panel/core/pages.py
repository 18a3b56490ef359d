"""What all views share: a page or one of its named partials, refusals, forms that come back, slices of long lists."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import check_for_language
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from panel.core import trace
from panel.core.errors import Denied, Invalid, NotFound, PanelError

log = logging.getLogger(__name__)

STOP_POLLING = 286  # htmx stops asking when it gets this status
OWN_PAGES = (400, 403, 404, 422, 500)  # statuses with a template of their own
T = TypeVar("T")


# --- pages ----------------------------------------------------------------------------------------------------------


def is_htmx(request: HttpRequest) -> bool:
    """True for a request of htmx that wants a fragment (a restored history entry wants the page)."""
    header = request.headers
    return header.get("HX-Request") == "true" and header.get("HX-History-Restore-Request") != "true"


def page(
    request: HttpRequest,
    template: str,
    context: dict[str, Any] | None = None,
    *,
    parts: Collection[str] = (),
    moving: bool = True,
    status: int = 200,
) -> HttpResponse:
    """Render `template`, or its partial `?part=name` when htmx asks for one of `parts`.

    `moving` False ends a poll: the partial goes out with status 286. An unknown part is a 404.
    """
    part = request.GET.get("part", "")
    fragment = bool(part) and is_htmx(request)
    if fragment and part not in parts:
        raise NotFound
    if fragment and status == 200 and not moving:
        status = STOP_POLLING
    response = render(request, f"{template}#{part}" if fragment else template, context, status=status)
    response.headers.setdefault("Cache-Control", "private, no-cache")
    patch_vary_headers(response, ["HX-Request", "Cookie"])
    return response


def form_again(request: HttpRequest, template: str, context: dict[str, Any], *, part: str = "") -> HttpResponse:
    """A form with errors: the same template (or its partial, for htmx) with status 422."""
    name = f"{template}#{part}" if part and is_htmx(request) else template
    return render(request, name, context, status=422)


def put_errors(form: Any, error: Invalid) -> None:
    """The sentences of a service at the fields that they are about; others stand above the form."""
    for name, text in error.fields.items():
        form.add_error(name if name in form.fields else None, text)


def go(request: HttpRequest, url: str) -> HttpResponse:
    """After a change: a redirect, which htmx follows as a whole page."""
    if is_htmx(request):
        return HttpResponse(status=204, headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


# --- refusals -------------------------------------------------------------------------------------------------------


def wants_json(request: HttpRequest) -> bool:
    """Whether a program or a script reads the answer, rather than a browser's window or htmx."""
    accept = request.headers.get("Accept", "")
    if request.path.startswith(("/api/", "/agent/")) or ("json" in accept and "text/html" not in accept):
        return True
    if is_htmx(request):
        return False
    mode = request.headers.get("Sec-Fetch-Mode")  # every current browser sends it
    return mode != "navigate" if mode is not None else "text/html" not in accept


def refuse(request: HttpRequest, error: PanelError) -> HttpResponse:
    """A PanelError as JSON, as a note in the open page (htmx), or as a page."""
    if wants_json(request):
        return JsonResponse(error.as_dict(), status=error.status)
    context = {"refusal": error, "incident": trace.current()}
    if is_htmx(request):
        response = render(request, "ui/refusal.html", context, status=error.status)
        response.headers["HX-Retarget"], response.headers["HX-Reswap"] = "#notice", "innerHTML show:window:top"
        return response
    template = f"{error.status}.html" if error.status in OWN_PAGES else "refused.html"
    return render(request, template, context, status=error.status)


class WrongHost(PanelError):
    code = "host.unknown"
    message = _("This panel does not know the address %(host)s.")
    hint = _("Open it under its own address, or add the name to the setting BERTH_ALLOWED_HOSTS and start it again.")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler400."""
    if isinstance(exception, DisallowedHost):
        return refuse(request, WrongHost(params={"host": str(request.META.get("HTTP_HOST", ""))[:200]}))
    return refuse(request, PanelError("bad_request", _("The panel could not read this request.")))


def permission_denied(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Django's handler403."""
    return refuse(request, Denied())


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Django's handler404."""
    return refuse(request, NotFound())


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's CSRF_FAILURE_VIEW."""
    log.warning("csrf check failed at %s: %s", request.path, reason)
    text = _("This page was open too long, or cookies are switched off.")
    return refuse(request, PanelError("csrf", text, _("Load the page again and repeat the step."), status=403))


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500: asks nothing of database or session, and gives a number to find the line in the log."""
    number = trace.current() or trace.new()
    log.error("incident %s at %s %s", number, request.method, request.path)
    text = _("Something went wrong inside the panel.")
    error = PanelError("panel.error", text, _("Running engines are not touched. Try again in a moment."), status=500)
    if wants_json(request):
        return JsonResponse({**error.as_dict(), "incident": number}, status=500)
    template = "ui/refusal.html" if is_htmx(request) else "500.html"
    body = render_to_string(template, {"refusal": error, "incident": number})
    headers = {"HX-Retarget": "#notice", "HX-Reswap": "innerHTML show:window:top"} if is_htmx(request) else {}
    return HttpResponse(body, status=500, headers=headers)


# --- long lists -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slice(Generic[T]):
    """One page of a long list, without counting it. templates/ui/pages.html draws the way to its neighbours."""

    items: list[T]
    number: int
    has_next: bool

    def __iter__(self) -> Any:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def has_previous(self) -> bool:
        return self.number > 1

    @property
    def previous(self) -> int:
        return self.number - 1

    @property
    def next(self) -> int:
        return self.number + 1


def slice_of(request: HttpRequest, rows: Any, *, size: int = 50, most: int = 2000) -> Slice[Any]:
    """The slice that `?page=` names; a strange number is the first page. `rows` is a queryset or a list."""
    word = request.GET.get("page", "1")
    number = min(most, max(1, int(word))) if word.isascii() and word.isdecimal() and len(word) < 6 else 1
    found = list(rows[(number - 1) * size : number * size + 1])
    return Slice(found[:size], number, len(found) > size)


# --- language and colours -------------------------------------------------------------------------------------------

THEMES = ("auto", "light", "dark")


def _keep(user: Any, **values: str) -> None:
    if user.is_authenticated:
        get_user_model().objects.filter(pk=user.pk).update(**values)


def own_path(target: str | None, otherwise: str) -> str:
    """Where to go on: a path of this panel, whatever was asked for; it becomes a header."""
    plain = target or ""
    good = plain.startswith("/") and plain.isprintable() and url_has_allowed_host_and_scheme(plain, allowed_hosts=None)
    return plain if good else otherwise


@require_POST
def preferences(request: HttpRequest) -> HttpResponse:
    """Someone chose a language or a theme: kept with their account, and the language also in a cookie.

    A form gets back to where it was; `fetch` gets 204. Unknown values are refused.
    """
    theme, language = request.POST.get("theme"), request.POST.get("language")
    back = own_path(request.POST.get("next"), "/")
    response: HttpResponse = HttpResponseRedirect(back) if language else HttpResponse(status=204)
    if theme is not None:
        if theme not in THEMES:
            raise PanelError("preferences.theme", _("There is no such theme."), status=422)
        _keep(request.user, theme=theme)
    if language is not None:
        if language not in dict(settings.LANGUAGES) or not check_for_language(language):
            raise PanelError("preferences.language", _("There is no such language."), status=422)
        _keep(request.user, language=language)
        keep_language(request, response, language)
    return response


def keep_language(request: HttpRequest, response: HttpResponse, language: str) -> None:
    """In a cookie too, for the pages before sign-in."""
    response.set_cookie(
        settings.LANGUAGE_COOKIE_NAME, language, max_age=365 * 86400, samesite="Lax", secure=request.is_secure()
    )
