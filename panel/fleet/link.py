"""The panel's side of the wire: what agents fetch and say. Every call carries the host's token; see wire.py.

A long-poll holds no database connection while it waits: it reads, lets go, sleeps on the hub, reads again.
"""

import asyncio
import functools
import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DataError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from pydantic import ValidationError

from panel.accounts.actor import address_of
from panel.core import sse
from panel.core.errors import NotFound, PanelError
from panel.fleet import live, reports, seats, services, wire
from panel.fleet.joining import agent_bundle
from panel.fleet.joining import services as joining
from panel.fleet.models import Host, Job
from panel.fleet.wire_base import MAX_NUMBER

log = logging.getLogger(__name__)

MAX_BODY = 16 << 20
MAX_WAIT_S = 25.0
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")

M = TypeVar("M", bound=wire.Message)
T = TypeVar("T")


class NotYours(PanelError):
    code = "link.token"
    message = "This host token is not known here."
    hint = (
        "On the panel's own machine start the panel again (make up): it gives its own agent a new token. "
        "On another machine join again with a new code from the panel's page of hosts."
    )
    status = 401


def _known(request: HttpRequest) -> Host:
    """The host whose token this is, whichever agent uses it."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    host = Host.objects.filter(token_hash=services.digest(token)).first() if scheme == "Bearer" and token else None
    if host is None:
        raise NotYours
    return host


def _host(request: HttpRequest) -> Host:
    """The host that this call speaks for. Raises NotYours, seats.OtherWire, seats.Twin."""
    host = _known(request)
    seats.admit(request, host)
    return host


class TooLarge(PanelError):
    code = "link.too_large"
    message = "Body too large."
    status = 413


def _body(request: HttpRequest, most: int = MAX_BODY) -> bytes:
    """The body, bounded here: the bound that Django has for forms (2 MiB) is too small for a long scan."""
    body = request.read(most + 1)
    if len(body) > most:
        raise TooLarge
    return body


def _message(model: type[M], request: HttpRequest) -> M:
    """What was sent. PostgreSQL's JSON cannot hold NUL, and a message with one must not be refused for ever."""
    body = _body(request)
    if b"\\u0000" in body:
        body = _NUL.sub(rb"\1\\ufffd", body)
    return model.model_validate_json(body)


def _json(message: wire.Message) -> HttpResponse:
    return HttpResponse(message.model_dump_json(), content_type="application/json")


View = Callable[..., Awaitable[HttpResponse]]


def link_view(method: str) -> Callable[[View], Any]:
    """One shape for all calls: method, bounded body, errors as {code, message, hint}; no session, no CSRF."""

    def wrap(view: View) -> Any:
        @functools.wraps(view)
        async def inner(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if request.method != method:
                return HttpResponse(status=405, headers={"Allow": method})
            try:
                return await view(request, **kwargs)
            except PanelError as exc:
                return JsonResponse(exc.as_dict(), status=exc.status)
            except DataError as exc:
                log.warning("agent message refused at %s: %s", request.path, exc)
                error = PanelError("link.message", "The panel cannot store a value of this message.", status=422)
                return JsonResponse(error.as_dict(), status=422)
            except ValidationError as exc:
                log.warning("agent message refused at %s: %s", request.path, exc.error_count())
                detail = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors()[:3])
                return JsonResponse({"code": "link.message", "message": detail, "hint": ""}, status=422)

        return csrf_exempt(inner)

    return wrap


def _in_thread(request: HttpRequest, work: Callable[[], T]) -> Awaitable[T]:
    """Where this call's work with the database is done: in the line's own threads; in Django's only for tests."""
    own = getattr(request, "in_thread", None)
    return own(work) if own is not None else sync_to_async(work)()


def _work_newer_than(request: HttpRequest, rev: int) -> tuple[int, wire.Work | None]:
    """(host id, work when newer than `rev`). Gives the database connection back before it returns."""
    try:
        host = _host(request)
        if rev > host.work_rev:  # the agent remembers more than a restored database: go ahead of it
            Host.objects.filter(pk=host.pk, work_rev__lt=rev).update(work_rev=rev + 1)
            host.refresh_from_db(fields=["work_rev"])
        return host.pk, services.work_of(host) if host.work_rev != rev else None
    finally:
        if not connection.in_atomic_block:  # a transaction around it exists in tests only
            connection.close()  # back to the pool: a poll may wait for long


def _still_at(host_id: int, rev: int) -> bool:
    """Whether the host's work is still the one of `rev`; the cheap look of a poll that waits."""
    try:
        return Host.objects.filter(pk=host_id, work_rev=rev).exists()
    finally:
        if not connection.in_atomic_block:
            connection.close()


@link_view("GET")
async def work(request: HttpRequest) -> HttpResponse:
    """The host's whole work as soon as it is newer than `rev`, else 204 after `wait` seconds (at most 25)."""
    try:
        rev = int(request.GET.get("rev", 0))
        wait = min(MAX_WAIT_S, max(0.0, float(request.GET.get("wait", 0))))
        if not 0 <= rev < MAX_NUMBER:
            raise ValueError(rev)
    except ValueError as exc:
        raise PanelError("link.query", "rev and wait are numbers.", status=422) from exc
    whole = functools.partial(_work_newer_than, request, rev)
    host_id, found = await _in_thread(request, whole)
    loop = asyncio.get_running_loop()
    end = loop.time() + wait
    if found is None and wait:
        async with sse.hub.subscribe([live.work_topic(host_id)], breaks=True) as news:
            while found is None:
                # Looked at once more after subscribing, so that a change in between is not slept through.
                if not await _in_thread(request, functools.partial(_still_at, host_id, rev)):
                    _id, found = await _in_thread(request, whole)
                if found is not None or (left := end - loop.time()) <= 0:
                    break
                await news.wait(left if news.sure else min(left, settings.BERTH_TICK_S * 5))
    return _json(found) if found is not None else HttpResponse(status=204)


@link_view("POST")
async def report(request: HttpRequest) -> HttpResponse:
    def take() -> wire.ReportReply:
        host = _host(request)
        return reports.take_report(host, _message(wire.Report, request))

    return _json(await _in_thread(request, take))


@link_view("POST")
async def job_log(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    def take() -> wire.LogReply:
        host = _host(request)
        offset, skipped = int(request.GET.get("offset", 0)), int(request.GET.get("skipped", 0))
        if not (0 <= offset < MAX_NUMBER and 0 <= skipped < MAX_NUMBER):
            raise PanelError("link.log", "The offset of this part is not possible.", status=422)
        return reports.take_log(host, job_id, offset, _body(request, wire.MAX_LOG_CHUNK), skipped)

    return await _of_a_job(request, take)


@link_view("POST")
async def job_result(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    def take() -> None:
        host = _host(request)
        reports.take_result(host, job_id, _message(wire.JobResult, request))

    return await _of_a_job(request, take)


async def _of_a_job(request: HttpRequest, take: Callable[[], wire.Message | None]) -> HttpResponse:
    try:
        answer = await _in_thread(request, take)
    except Job.DoesNotExist as exc:
        raise NotFound from exc
    except ValueError as exc:
        if isinstance(exc, ValidationError):
            raise
        raise PanelError("link.query", "offset and skipped are numbers.", status=422) from exc
    return _json(answer) if answer is not None else HttpResponse(status=204)


@link_view("POST")
async def join(request: HttpRequest) -> HttpResponse:
    def take() -> wire.JoinReply:
        seats.check_wire(request)
        return joining.join(_message(wire.JoinRequest, request), address_of(request))

    return _json(await _in_thread(request, take))


@link_view("GET")
async def hello(request: HttpRequest) -> HttpResponse:
    """Whether this host's token is taken."""
    await _in_thread(request, functools.partial(_known, request))
    return HttpResponse(status=204)


@link_view("POST")
async def leave(request: HttpRequest) -> HttpResponse:
    """An agent ends (its jobs go on), or with `for=good` and a last report the host is taken away."""

    def take() -> None:
        host = _known(request)
        if request.GET.get("for") == "good":
            seats.admit(request, host)  # a copy of the machine that is taken away must not take the machine along
            joining.leave(host, _message(wire.Report, request))
        else:
            seats.free(host, request.headers.get(wire.INSTANCE_HEADER, ""))

    await _in_thread(request, take)
    return HttpResponse(status=204)


@link_view("GET")
async def script(request: HttpRequest) -> HttpResponse:
    """The panel's script by the line that the agent trusts, whichever wire it speaks: it is how it gets another one."""

    def take() -> str:
        _known(request)
        return agent_bundle.script()

    return HttpResponse(await _in_thread(request, take), content_type="text/x-shellscript; charset=utf-8")


urlpatterns = [
    path("join", join),
    path("hello", hello),
    path("leave", leave),
    path("script", script),
    path("work", work),
    path("report", report),
    path("jobs/<uuid:job_id>/log", job_log),
    path("jobs/<uuid:job_id>/result", job_result),
]
