"""The catalog's pages: load, call, render."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from models_catalog import contexts, events, queries, services
from models_catalog.downloads import contexts as downloads
from models_catalog.forms import FolderForm
from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core import sse
from panel.core.errors import Conflict, Invalid
from panel.core.pages import form_again, go, is_htmx, page, put_errors, slice_of
from panel.fleet import live

PAGE = 30
HOSTS_AT_ONCE = 5  # folders and disks of more come when someone gets there
FURTHER = ("format", "task", "size", "label", "tag")


def rights(request: HttpRequest) -> dict[str, bool]:
    actor = request.actor
    return {
        "may_scan": can(actor, "models.scan"),
        "may_roots": can(actor, "models.roots"),
        "may_trust": can(actor, "models.trust"),
        "may_describe": can(actor, "models.describe"),
        "may_approve": can(actor, "models.approve"),
        "may_delete": can(actor, "models.delete"),
        "may_download": can(actor, "models.download"),
        "may_convert": can(actor, "models.convert"),
        "may_manage": can(actor, "runtimes.manage"),
        "may_deploy": can(actor, "deployments.create"),
    }


def _list_context(request: HttpRequest, form: FolderForm | None = None) -> dict[str, Any]:
    """What the page shows, or the one part of it that htmx asks for again and again."""
    part = request.GET.get("part", "") if is_htmx(request) else ""
    shared = {"section": "models", **rights(request), "moving": queries.scanning()}
    if part == "disks":
        return {**shared, "disks": contexts.disks()}
    if part == "folders":
        return {**shared, "hosts": contexts.folders()}
    rows = {**shared, **_rows(request), "names": queries.host_names()}
    if part == "rows" and rows["any"]:
        return rows
    later = len(rows["names"]) > HOSTS_AT_ONCE and "hosts" not in request.GET
    may_begin = rows["names"] and not rows["any"] and can(request.actor, "models.download")
    return {
        **rows,
        **(downloads.starters() if may_begin else {}),
        "later": later,
        "hosts": [] if later else contexts.folders(),
        "chips": contexts.chips(rows["asked"]["show"]),
        "selects": contexts.selects(rows["asked"]),
        "narrowed": any(rows["asked"][name] for name in FURTHER),
        "disks": None if later else contexts.disks(),
        "form": form or FolderForm(),
    }


def _rows(request: HttpRequest) -> dict[str, Any]:
    names = ("show", "q", "host", "sort", *FURTHER)
    asked = {name: request.GET.get(name, "")[:200] for name in names}
    wish = queries.Wish(
        show=asked["show"], text=asked["q"], host=asked["host"], **{name: asked[name] for name in FURTHER}
    )
    found = slice_of(request, queries.listed(wish, sort=asked["sort"]), size=PAGE)
    known = bool(len(found)) or queries.any_model()
    return {"asked": asked, "page": found, "rows": contexts.rows(found, request.actor), "any": known}


@require_GET
@right("models.view")
def index(request: HttpRequest) -> HttpResponse:
    return page(request, "models_catalog/list.html", _list_context(request), parts=["rows", "folders", "disks"])


@require_GET
@right("models.view")
def catalog_live(request: HttpRequest) -> StreamingHttpResponse:
    """News of the catalog and the hosts."""
    return sse.stream(request, [events.ALL, live.HOSTS])


@require_POST
@right("models.scan")
def scan(request: HttpRequest) -> HttpResponse:
    """Look for models on one host (`host`) or on all."""
    pk = request.POST.get("host", "")
    hosts = [queries.host(int(pk))] if pk.isdecimal() and len(pk) < 10 else [view.host for view in queries.hosts()]
    for host in hosts:
        try:
            services.request_scan(host, actor=request.actor)
        except Conflict as exc:
            messages.warning(request, f"{exc.text} {exc.hint_text}")
        else:
            messages.info(request, _("Looking for models on %(host)s.") % {"host": host.name})
    back = request.POST.get("model", "")
    return go(request, reverse("model", args=[int(back)]) if back.isdecimal() and len(back) < 10 else reverse("models"))


@require_POST
@right("models.roots")
def add_folder(request: HttpRequest) -> HttpResponse:
    form = FolderForm(request.POST)
    if form.is_valid():
        host, path = form.cleaned_data["host"], form.cleaned_data["path"]
        try:
            services.add_root(host, path, actor=request.actor)
        except Invalid as exc:
            put_errors(form, exc)
        except Conflict as exc:
            form.add_error("path", exc.text)
        else:
            messages.info(request, _("Looking for models in this folder on %(host)s.") % {"host": host.name})
            return go(request, reverse("models"))
    return form_again(request, "models_catalog/list.html", _list_context(request, form))


@require_POST
@right("models.roots")
def remove_folder(request: HttpRequest, pk: int) -> HttpResponse:
    host = queries.host(pk)
    path = request.POST.get("path", "")
    count = services.remove_root(host, path, actor=request.actor)
    text = _("%(path)s is no longer searched on %(host)s. Models taken out of the catalog: %(n)s. No file was touched.")
    messages.success(request, text % {"path": path, "host": host.name, "n": count})
    return go(request, reverse("models"))
