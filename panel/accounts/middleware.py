"""Between the session and the views: remembers that a signed-in person is here."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils.deprecation import MiddlewareMixin

from panel.accounts import sessions


class LastSeen(MiddlewareMixin):
    """Notes the person and the session, to the minute. Stands after the authentication."""

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        if settings.SESSION_COOKIE_NAME in request.COOKIES and request.user.is_authenticated:
            sessions.note_seen(request)
