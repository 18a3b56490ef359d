"""The panel with a few more addresses, for tests of live streams: sync and async views that read the database first."""

from panel.asgi import application as application  # isort: skip  (first: it loads the apps)

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from panel.core import sse


def sync_live(request: HttpRequest, topic: str) -> HttpResponse:
    if not request.user.is_authenticated:
        return HttpResponse(status=401)
    return sse.stream(request, [topic, "all"])


async def async_live(request: HttpRequest, topic: str) -> HttpResponse:
    user = await request.auser()
    if not await sync_to_async(lambda: user.is_authenticated)():
        return HttpResponse(status=401)
    return sse.stream(request, [topic, "all"])


def who(request: HttpRequest) -> HttpResponse:
    """An ordinary page: needs a database connection."""
    return HttpResponse(request.user.get_username())


urlpatterns = [
    path("sync/<str:topic>", sync_live),
    path("async/<str:topic>", async_live),
    path("who", who),
    path("", include("panel.urls")),
]


settings.ROOT_URLCONF = __name__
