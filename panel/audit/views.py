"""The activity page. Who may see it is decided where it is hung up: panel/accounts/urls.py stands above this room."""

from datetime import date, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from panel.audit import queries
from panel.audit.models import Event
from panel.audit.queries import Filters
from panel.audit.wording import KINDS, entry
from panel.core.pages import is_htmx


@require_GET
def activity(request: HttpRequest) -> HttpResponse:
    """The page; for htmx the entries alone, or the older ones that `?before=` asks for."""
    filters = Filters.of(request.GET)
    before = _id(request.GET.get("before", ""))
    found = queries.page_of(filters, before=before)
    context: dict[str, Any] = {
        "filters": filters,
        "days": days(found.events, shown=queries.day_before(before)),
        "older": found.older,
    }
    part = "#older" if before is not None and is_htmx(request) else "#entries" if is_htmx(request) else ""
    if part != "#older":
        total = queries.count(filters)
        context |= {"total": min(total, queries.COUNTED), "more": total > queries.COUNTED, "before": before}
    if not part:
        context |= {"people": queries.people(), "targets": queries.targets(), "kinds": KINDS, "section": "activity"}
    response = render(request, f"audit/activity.html{part}", context)
    response.headers["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["HX-Request", "Cookie"])
    return response


def days(events: list[Event], *, shown: date | None = None) -> list[dict[str, Any]]:
    """The entries by day of the reader's clock; a day that is already shown gets no second heading."""
    groups: list[dict[str, Any]] = []
    today = timezone.localdate()
    for event in events:
        day = timezone.localtime(event.at).date()
        if not groups or groups[-1]["day"] != day:
            word = {today: _("Today"), today - timedelta(days=1): _("Yesterday")}.get(day, "")
            groups.append({"day": day, "word": word, "heading": day != shown, "entries": []})
        groups[-1]["entries"].append(entry(event))
    return groups


def _id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
