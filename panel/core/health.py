"""/healthz: this process is alive. No login, no database, no broker, any Host name."""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

PATH = "/healthz"


class Alive:
    """The first middleware, sync or async as the server wants it."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if request.path_info == PATH:
            response = HttpResponse("ok\n", content_type="text/plain", headers={"Cache-Control": "no-store"})
            return _later(response) if iscoroutinefunction(self) else response
        return self.get_response(request)


async def _later(response: HttpResponse) -> HttpResponse:
    return response
