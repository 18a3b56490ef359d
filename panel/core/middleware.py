"""Between every request and its view: refusals as pages, the viewer's language, what a page may load."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import translation
from django.utils.deprecation import MiddlewareMixin

from panel.core.errors import PanelError
from panel.core.pages import bad_request, is_htmx, refuse

CSP = "; ".join(
    [
        "default-src 'self'",
        "img-src 'self' data:",  # Tabler's stylesheet carries small pictures
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)


class SecurityHeaders(MiddlewareMixin):
    """The content security policy and its neighbours, on every answer of Django."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response.headers.setdefault("Content-Security-Policy", CSP)
        response.headers.setdefault("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=()")
        return response


class Refusals(MiddlewareMixin):
    """A PanelError that a view raises becomes a page, a note in the open page, or JSON.

    A redirect of an htmx request (a session that ended, say) is followed as a whole page, not into a fragment.
    """

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        """A query with a NUL is nobody's question, and PostgreSQL cannot be asked it; forms refuse it themselves."""
        if "%00" in request.META.get("QUERY_STRING", ""):
            return bad_request(request, ValueError("NUL"))
        return None

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        return refuse(request, exception) if isinstance(exception, PanelError) else None

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if is_htmx(request) and response.status_code in (301, 302, 303) and response.has_header("Location"):
            answer = HttpResponse(status=204, headers={"HX-Redirect": response.headers["Location"]})
            answer.cookies = response.cookies
            return answer
        return response


class PersonLanguage(MiddlewareMixin):
    """A signed-in person's own language wins over the browser's. Stands after the authentication."""

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        if settings.SESSION_COOKIE_NAME not in request.COOKIES:
            return
        language = getattr(request.user, "language", "")
        if language and language in dict(settings.LANGUAGES):
            translation.activate(language)
            request.LANGUAGE_CODE = translation.get_language()
