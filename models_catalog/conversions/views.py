"""The pages of conversions: load, call, render."""

import uuid

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from models_catalog import events as catalog
from models_catalog import queries as models
from models_catalog.conversions import contexts, events, queries, services
from models_catalog.conversions.forms import ConvertForm
from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core import sse
from panel.core.errors import Conflict, Invalid, NotFound
from panel.core.pages import form_again, go, page, put_errors
from panel.fleet import live, log_answers

ASK = "models_catalog/conversions/ask.html"


@require_http_methods(["GET", "POST"])
@right("models.convert")
def convert(request: HttpRequest, pk: int) -> HttpResponse:
    """What a conversion takes, and the way to begin it."""
    copy = models.copy(pk)
    dtype = services.usual_dtype(copy.artifact)
    spots = services.spots(copy.host, copy.root)
    first = {
        "dtype": dtype,
        "name": services.usual_name(copy.artifact, dtype),
        "folder": spots[0].path if spots else "",
    }
    form = ConvertForm(request.POST or None, initial=first)
    if request.method == "POST" and form.is_valid():
        try:
            row = services.start(copy, services.Wish(**form.cleaned_data), actor=request.actor)
        except Invalid as exc:
            put_errors(form, exc)
        except Conflict as exc:
            form.add_error(None, f"{exc.text} {exc.hint_text}")
        else:
            return go(request, reverse("conversion", args=[row.pk]))
    if form.is_bound:
        return form_again(request, ASK, contexts.ask(copy, form))
    return page(request, ASK, contexts.ask(copy, form))


@require_GET
@right("models.view")
def conversion(request: HttpRequest, conversion_id: uuid.UUID) -> HttpResponse:
    row = queries.one(conversion_id)
    look = request.GET.get("look")
    if look is not None and look != contexts.look_of(row):  # it ended, or another try began: load the page whole
        return go(request, reverse("conversion", args=[row.pk]))
    context = contexts.page(row, may=can(request.actor, services.RIGHT))
    context |= {"may_deploy": can(request.actor, "deployments.create")}
    return page(request, "models_catalog/conversions/one.html", context, parts=["live", "next"])


@require_GET
@right("models.view")
def conversion_live(request: HttpRequest, conversion_id: uuid.UUID) -> StreamingHttpResponse:
    row = queries.one(conversion_id)
    topics = [events.topic(row.pk), catalog.ALL, *([live.job_topic(row.job_id)] if row.job_id else [])]
    return sse.stream(request, topics)


def _job_of(conversion_id: uuid.UUID) -> uuid.UUID:
    job_id = queries.one(conversion_id).job_id
    if job_id is None:
        raise NotFound
    return job_id


@require_GET
@right("models.view")
def log(request: HttpRequest, conversion_id: uuid.UUID) -> HttpResponse:
    return log_answers.part(request, _job_of(conversion_id))


@require_GET
@right("models.view")
def log_file(request: HttpRequest, conversion_id: uuid.UUID) -> StreamingHttpResponse:
    row = queries.one(conversion_id)
    return log_answers.whole(_job_of(conversion_id), f"{row.name}-{row.tries}.log")


@require_POST
@right("models.convert")
def cancel(request: HttpRequest, conversion_id: uuid.UUID) -> HttpResponse:
    row = services.cancel(queries.one(conversion_id), actor=request.actor)
    return go(request, reverse("conversion", args=[row.pk]))


@require_POST
@right("models.convert")
def again(request: HttpRequest, conversion_id: uuid.UUID) -> HttpResponse:
    """The same once more; what stands in the way is said on the page where it is asked for."""
    row = queries.one(conversion_id)
    try:
        services.try_again(row, actor=request.actor)
    except (Invalid, Conflict):
        if row.copy_id is not None:
            return go(request, reverse("model-convert", args=[row.copy_id]))
        raise
    return go(request, reverse("conversion", args=[row.pk]))
