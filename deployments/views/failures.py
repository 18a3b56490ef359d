"""Pages of what failed: the team's history by class, its export, and what people say of an explanation."""

import uuid

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from deployments import failures, failures_export, failures_read, queries
from deployments.failures_read import Filters
from deployments.pages import failed
from deployments.pages import failures as failures_page
from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core.errors import NotFound
from panel.core.pages import go, is_htmx, page, slice_of

PAGE = 30
VERDICTS = {"yes": True, "no": False}


@require_GET
@right("deployments.view")
def index(request: HttpRequest) -> HttpResponse:
    """By class and one by one, narrowed by the filters."""
    filters = Filters.of(request.GET)
    rows = failures_read.matching(filters, request.actor)
    found = failures_read.classes(rows)
    numbers = slice_of(request, rows.values_list("pk", flat=True), size=PAGE)  # a far page joins only what it shows
    shown = list(failures_read.shown(failures_read.these(numbers.items)))
    context = {
        **failures_page.page(filters, found, shown, every="every" in request.GET),
        "page": numbers,
    }
    if request.GET.get("part") != "rows":
        context |= failures_page.selects(filters)
    return page(request, "deployments/failures.html", context, parts=["rows"])


@require_GET
@right("deployments.view")
def export(request: HttpRequest, form: str) -> StreamingHttpResponse:
    """What the filters find as a file that is written while it is sent."""
    if form not in failures_export.WRITERS:
        raise NotFound
    rows = failures_read.matching(Filters.of(request.GET), request.actor)
    answer = StreamingHttpResponse(failures_export.parts(form, rows), content_type=failures_export.WRITERS[form][0])
    name = f"berth-failures-{timezone.localtime():%Y-%m-%d-%H%M}.{form}"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    answer["Cache-Control"] = "no-store"
    return answer


@require_POST
@right("deployments.operate")
def verdict(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Was this right? Answered in place."""
    run = queries.run(run_id)
    said = VERDICTS.get(request.POST.get("right", ""))
    failures.judge(run, right=said, note=request.POST.get("note", "")[:2000], actor=request.actor)
    if not is_htmx(request):
        return go(request, reverse("run", args=[run.pk]))
    dx = failed.diagnosis(run, may_judge=can(request.actor, "deployments.operate"))
    return render(request, "deployments/_verdict.html", {"dx": dx})
