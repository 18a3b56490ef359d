"""A page with every live part, whose log is a file and whose words are another; both are named by the environment."""

from panel.asgi import application as application  # isort: skip  (first: it loads the apps)

import os
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template import RequestContext, Template
from django.urls import include, path

from panel.core import sse

LOG, WORDS = Path(os.environ["DEMO_LOG"]), Path(os.environ["DEMO_WORDS"])
LIMIT = 1 << 20

PART = """<div id="part" hx-get="/part" hx-trigger="live from:body" hx-swap="outerHTML">
<b id="state" data-say="{{ words }}">{{ words }}</b><input id="field" aria-label="Field">
<details id="more"><summary>More</summary>inside</details></div>"""

PAGE = (
    """{% extends "base.html" %}{% block title %}Live{% endblock %}{% block main %}<h1>Live</h1><div data-live="/live">"""
    + PART
    + """</div><div class="card">{% log_panel "log" "demo" "/log" job="j1" offset=offset download="/log?all" %}</div>
<button id="refuse" hx-post="/refused">Refuse</button><button id="json" hx-post="/api/refused">JSON</button>
{% copy "cp" "http://localhost/v1" "Copy the address" done="Address copied" %}{% endblock %}"""
)


def page(request: HttpRequest) -> HttpResponse:
    offset = int(request.GET.get("offset", 0))
    return HttpResponse(Template(PAGE).render(RequestContext(request, {"words": WORDS.read_text(), "offset": offset})))


def part(request: HttpRequest) -> HttpResponse:
    return HttpResponse(Template(PART).render(RequestContext(request, {"words": WORDS.read_text()})))


def log(request: HttpRequest) -> HttpResponse:
    """As the panel's own: bytes from an offset; the first `hole` bytes are gone."""
    data = LOG.read_bytes()
    start = max(int(request.GET["offset"]), int(os.environ.get("DEMO_HOLE", 0)))
    answer = HttpResponse(data[start : start + LIMIT], content_type="text/plain; charset=utf-8")
    answer["X-Log-Start"], answer["X-Log-Size"] = str(start), str(len(data))
    return answer


def live(request: HttpRequest) -> HttpResponse:
    return sse.stream(request, ["job:j1", "demo"])


def refused(request: HttpRequest) -> HttpResponse:
    from panel.core.errors import Conflict

    raise Conflict


urlpatterns = [
    path("demo", page),
    path("part", part),
    path("log", log),
    path("live", live),
    path("refused", refused),
    path("api/refused", refused),
    path("", include("panel.urls")),
]


settings.ROOT_URLCONF = __name__
