"""The agents' line as an ASGI app of its own: the views of link.py without what only pages need.

Sessions, languages and forms cost an agent's call more than its work, and each of Django's layers between hops through
a thread. Here one call is at most one hop, to one of a few threads that keep to the agents: a fleet that reports all
at once waits in this line and not before the people's pages.
"""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from tempfile import SpooledTemporaryFile
from typing import Any, TypeVar

from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpResponse, JsonResponse
from django.urls import Resolver404, URLResolver, get_resolver

from panel.core.pages import WrongHost

log = logging.getLogger(__name__)

PREFIX = "/agent/v1/"
THREADS = 4
READ_S = 120.0  # for a whole body; who drips one is not an agent
IN_MEMORY = 2 << 20  # a longer body waits on the disk
TOO_SLOW = {"code": "link.slow", "message": "The body of this call did not come in time.", "hint": ""}
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}

T = TypeVar("T")


class Left(Exception):
    """The agent hung up before its call was whole."""


class Line:
    """Answers everything below PREFIX. `close()` when the process ends."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="agents")
        self._urls: URLResolver = get_resolver("panel.fleet.link")

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with SpooledTemporaryFile(max_size=IN_MEMORY) as body:
            try:
                await asyncio.wait_for(_read(receive, body), READ_S)
            except Left:
                return
            except TimeoutError:
                await _send(JsonResponse(TOO_SLOW, status=408), send)
                return
            answer = await self._until_hung_up(self._answer(ASGIRequest(scope, body)), receive)
        if answer is not None:
            await _send(answer, send)

    async def _until_hung_up(self, asked: Awaitable[HttpResponse], receive: Any) -> HttpResponse | None:
        """The answer; None when the agent left while it waited: nobody holds a poll for it then."""
        answering, left = asyncio.ensure_future(asked), asyncio.ensure_future(receive())
        try:
            await asyncio.wait({answering, left}, return_when=asyncio.FIRST_COMPLETED)
            return await answering if answering.done() else None
        finally:
            for task in (answering, left):
                task.cancel()

    async def _answer(self, request: Any) -> HttpResponse:
        request.in_thread = self._in_thread
        try:
            request.get_host()
            found = self._urls.resolve(request.path_info[len(PREFIX) - 1 :])
            return await found.func(request, *found.args, **found.kwargs)
        except DisallowedHost:
            log.warning("an agent called %s, which is none of BERTH_ALLOWED_HOSTS", request.META.get("HTTP_HOST"))
            error = WrongHost(params={"host": str(request.META.get("HTTP_HOST", ""))[:200]})
            return JsonResponse(error.as_dict(), status=error.status)
        except Resolver404:
            return JsonResponse({"code": "not_found", "message": "There is no such call.", "hint": ""}, status=404)
        except Exception:  # a call that fails must not end the connection without a word
            log.exception("an agent's call failed at %s", request.path)
            error = {"code": "internal", "message": "The panel failed here; its log says why.", "hint": ""}
            return JsonResponse(error, status=500)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, _then_let_go, work)


def _then_let_go(work: Callable[[], T]) -> T:
    """The database connection goes back to the pool after each call."""
    try:
        return work()
    finally:
        connections.close_all()


async def _read(receive: Any, body: Any) -> None:
    """The whole body, which `Bounded` bounds. Raises Left."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Left
        body.write(message.get("body", b""))
        if not message.get("more_body"):
            body.seek(0)
            return


async def _send(answer: HttpResponse, send: Any) -> None:
    found = {**HEADERS, **dict(answer.headers), "Content-Length": str(len(answer.content))}
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in found.items()]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})
