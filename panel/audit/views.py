"""The activity page and its export. Who may see them is decided where they are hung up: panel/accounts/urls.py stands
above this room.
"""

from collections.abc import Callable, Iterable
from datetime import date, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from panel.audit import export, queries
from panel.audit.models import Event
from panel.audit.queries import Filters
from panel.audit.services import record
from panel.audit.wording import KINDS, SYSTEM, address_of, entry
from panel.core.errors import NotFound
from panel.core.pages import is_htmx


@require_GET
def activity(request: HttpRequest, may_export: Callable[[HttpRequest], bool] = lambda request: False) -> HttpResponse:
    """The page; for htmx the entries alone, or the older ones that `?before=` asks for."""
    filters = Filters.of(request.GET)
    before = _id(request.GET.get("before", ""))
    found = queries.page_of(filters, before=before)
    context: dict[str, Any] = {
        "filters": filters,
        "days": days(found.events, shown=queries.day_before(before)),
        "older": found.older,
        "broken_off": found.broken_off,
        "searched": queries.SEARCHED,
    }
    part = "#older" if before is not None and is_htmx(request) else "#entries" if is_htmx(request) else ""
    if part != "#older":
        total = queries.count(filters)
        context |= {"total": min(total, queries.COUNTED), "more": total > queries.COUNTED, "before": before}
        context |= {"story": _story(filters), "may_export": may_export(request)}
    if not part:
        people = [(name, _("Berth itself") if name == SYSTEM else name) for name in queries.people(filters.who)]
        targets = queries.targets(chosen=filters.on)
        context |= {"people": _options(people, filters.who), "targets": _options(targets, filters.on)}
        context |= {"kinds": KINDS, "section": "activity"}
    response = render(request, f"audit/activity.html{part}", context)
    response.headers["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["HX-Request", "Cookie"])
    return response


@require_GET
def export_file(request: HttpRequest, form: str) -> StreamingHttpResponse:
    """What the filters find, as a file that is written while it is sent. That it was asked for is recorded first."""
    if form not in export.WRITERS:
        raise NotFound
    filters = Filters.of(request.GET)
    asked = {name: value for name, value in filters.asked.items() if value}
    made = record("audit.exported", form.upper(), actor=request.actor, **asked)
    answer = StreamingHttpResponse(export.parts(form, filters, before=made.pk), content_type=export.WRITERS[form][0])
    name = f"berth-activity-{timezone.localtime():%Y-%m-%d-%H%M}.{form}"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    answer["Cache-Control"] = "no-store"
    return answer


def _options(choices: Iterable[tuple[str, str]], chosen: str) -> SafeString:
    """Hundreds of choices, for which a template takes as long as for all the rest of the page."""
    marks = {True: mark_safe(" selected"), False: ""}
    rows = ((key, marks[key == chosen], name) for key, name in choices)
    return format_html_join("", '<option value="{}"{}>{}</option>', rows)


def _story(filters: Filters) -> dict[str, str] | None:
    """Name and address of the one thing that all entries are about."""
    name = queries.name_of(filters.on) if filters.on else ""
    return {"name": name, "url": address_of(*filters.on.split(":", 1))} if name else None


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
