"""Where each address goes. Rooms bring their own urls.py; this file only hangs them up."""

from django.http import HttpRequest, HttpResponse
from django.urls import path


def healthz(request: HttpRequest) -> HttpResponse:
    """Alive: no login, no database, no broker."""
    return HttpResponse("ok\n", content_type="text/plain")


urlpatterns = [
    path("healthz", healthz),
]
