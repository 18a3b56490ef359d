"""A request is one turn in one thread: middleware, view and what follows."""

import threading
from typing import Any

import httpx
from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from panel.core import handler


def noting(get_response: Any) -> Any:
    """A piece of middleware that can be asked both ways, as Django's own."""

    def ask(request: HttpRequest) -> HttpResponse:
        answer = get_response(request)
        answer["X-Middleware-Thread"] = str(threading.get_ident())
        return answer

    return ask


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(headers={"X-View-Thread": str(threading.get_ident())})


urlpatterns = [path("x", view)]


async def test_middleware_and_view_share_the_request_s_thread(settings: Any) -> None:
    first, *_others, before_last, last = settings.MIDDLEWARE
    settings.MIDDLEWARE = [first, f"{__name__}.noting", before_last, last]
    settings.ROOT_URLCONF = __name__
    app = handler.application()
    assert not iscoroutinefunction(app._middleware_chain), "each piece of middleware would have a turn of its own"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.get("/x")
    assert answer.status_code == 200
    threads = answer.headers["X-View-Thread"], answer.headers["X-Middleware-Thread"]
    assert threads[0] == threads[1] != str(threading.get_ident())
