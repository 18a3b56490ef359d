"""The API under /api/v1: hangs up the routers of the rooms, gives every failure one shape, serves schema and page."""

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, JsonResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from ninja.operation import Operation

import panel.accounts.api_access  # noqa: F401  (puts the key to the operations' locks in place)
from deployments.api.deployments import router as deployments
from deployments.api.failures import router as failures
from deployments.api.fixes import router as fixes
from deployments.api.paste import router as pasting
from deployments.api.record import router as records
from deployments.api.runs import router as runs
from models_catalog.api_estimate import router as models_catalog
from models_catalog.conversions.api import router as conversions
from models_catalog.downloads.api import router as downloads
from panel.accounts.api import router as accounts
from panel.accounts.api_people import router as people
from panel.accounts.api_secrets import router as secrets
from panel.api_page import page
from panel.api_schema import whole
from panel.audit.api import router as audit
from panel.core.api import StrictParser
from panel.core.errors import Invalid, NotFound, PanelError
from panel.core.validation import fields
from panel.fleet.api import router as hosts
from panel.fleet.runtimes.api import router as runtimes

log = logging.getLogger(__name__)

PREFIX = "/api/v1"


class Berth(NinjaAPI):
    """Operations are named as their functions, which clients made from the schema show."""

    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__


api = Berth(title="Berth", version="1", openapi_url=None, docs_url=None, parser=StrictParser(), urls_namespace="api")
for router in (
    deployments, fixes, pasting, runs, records, failures, models_catalog, downloads, conversions, hosts, runtimes,
    audit, accounts, people, secrets,
):  # fmt: skip
    api.add_router("", router)


# --- one shape for every failure --------------------------------------------------------------------------------------


class Unreadable(PanelError):
    code = "api.unreadable"
    message: Any = _("The body of this request could not be read.")
    hint: Any = _("Send JSON in UTF-8, without NaN, NUL or more than 40 levels.")


class TooLarge(PanelError):
    code = "request.too_large"
    message: Any = _("This request is larger than anything that the panel takes.")
    status = 413


class NoSuchMethod(PanelError):
    code = "api.method"
    message: Any = _("This address has no such method.")
    hint: Any = _("It has: %(methods)s.")
    status = 405


@api.exception_handler(PanelError)
def refused(request: HttpRequest, error: PanelError) -> HttpResponse:
    answer = JsonResponse(error.as_dict(), status=error.status)
    if error.status == 401:
        answer["WWW-Authenticate"] = "Bearer"
    return answer


@api.exception_handler(ValidationError)
def invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    places = []
    for entry in error.errors:
        # ("body", name of the parameter, …): the caller knows neither of the two
        skip = 2 if entry["loc"][0] == "body" else 1
        places.append({**entry, "loc": entry["loc"][skip:]})
    return refused(request, Invalid(fields(places)))


@api.exception_handler(HttpError)
def unreadable(request: HttpRequest, error: HttpError) -> HttpResponse:
    return refused(request, Unreadable())


@api.exception_handler(RequestDataTooBig)
def too_large(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return refused(request, TooLarge())


@api.exception_handler(Http404)
def not_found(request: HttpRequest, error: Http404) -> HttpResponse:
    return refused(request, NotFound())


@api.exception_handler(Exception)
def failed(request: HttpRequest, error: Exception) -> HttpResponse:
    """Django's handler500 has the words and the number for the log; ninja would show a traceback to debuggers."""
    raise error


def shaped(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """HEAD where there is GET, and a method that does not exist refused like everything else."""

    @wraps(view)
    def run(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method == "HEAD":
            request.method = "GET"  # the server leaves the body out
        answer = view(request, *args, **kwargs)
        if answer.status_code == 405:
            allow = answer.headers.get("Allow", "")
            answer = refused(request, NoSuchMethod(params={"methods": allow}))
            answer["Allow"] = allow
        answer.headers.setdefault("Cache-Control", "no-store")
        return answer

    run.csrf_exempt = True  # type: ignore[attr-defined]  # no cookie opens anything here, so none can be misused
    return run


# --- schema and page --------------------------------------------------------------------------------------------------


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document, made once."""
    return whole(api.get_openapi_schema(path_prefix=PREFIX))


@require_GET
def openapi(request: HttpRequest) -> HttpResponse:
    """For programs; it says nothing of this panel, so anyone may have it."""
    return JsonResponse(document())


@require_GET
def root(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect(f"{PREFIX}/docs")


@require_GET
def docs(request: HttpRequest) -> HttpResponseBase:
    """For people who are signed in."""
    return page(request, document())


def patterns() -> list[URLPattern]:
    """The addresses below /api/v1/."""
    hung, _app, _namespace = api.urls
    operations = [entry for entry in hung if entry.name != "api-root"]
    for entry in operations:
        entry.callback = shaped(entry.callback)
    return [
        path("", root, name="api"),
        path("docs", docs, name="api-docs"),
        path("openapi.json", openapi, name="api-schema"),
        *operations,
    ]
