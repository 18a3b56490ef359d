"""The engines' pages: load, call, render."""

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core import sse
from panel.core.errors import Conflict, Invalid, NotFound, PanelError
from panel.core.pages import form_again, go, own_path, page, put_errors, slice_of
from panel.fleet import live, log_answers, queries
from panel.fleet.models import Host
from panel.fleet.runtimes import contexts, packages, services
from panel.fleet.runtimes import queries as reads
from panel.fleet.runtimes.forms import FolderForm, InstallForm

PAGE = 100


def _may_manage(request: HttpRequest) -> bool:
    return can(request.actor, services.RIGHT)


@require_GET
@right("runtimes.view")
def index(request: HttpRequest) -> HttpResponse:
    rows = slice_of(request, reads.listed(), size=PAGE)
    context = contexts.index(rows, first=rows.number == 1, may_manage=_may_manage(request))
    return page(request, "fleet/runtimes.html", {**context, "page": rows}, parts=["list"])


@require_GET
@right("runtimes.view")
def index_live(request: HttpRequest) -> StreamingHttpResponse:
    """News of engines, installs and hosts."""
    return sse.stream(request, [live.RUNTIMES, live.HOSTS])


# --- install ----------------------------------------------------------------------------------------------------------


def _host_of(request: HttpRequest) -> Host | None:
    """The host that the address names, else the first one."""
    hosts = reads.hosts()
    asked = request.GET.get("host", "")
    return next((host for host in hosts if str(host.pk) == asked), hosts[0] if hosts else None)


@require_http_methods(["GET", "POST"])
@right("runtimes.manage")
def new(request: HttpRequest) -> HttpResponse:
    host = _host_of(request)
    asked = [request.GET.get(name, "")[:60] for name in ("variant", "version")]
    form = (
        InstallForm(request.POST)
        if request.method == "POST"
        else InstallForm(initial=contexts.first_values(host, *asked))
    )
    if form.is_bound and form.is_valid():
        try:
            row = services.install(**form.cleaned_data, actor=request.actor)
        except Invalid as exc:
            put_errors(form, exc)
        except services.CannotInstall as exc:
            form.add_error(None, f"{exc.text} {exc.hint_text}")
        else:
            return go(request, reverse("runtime-install", args=[row.pk]))
    if form.is_bound:
        return form_again(request, "fleet/runtimes_install.html", contexts.form_page(form, host))
    return page(request, "fleet/runtimes_install.html", contexts.form_page(form, host))


@require_POST
@right("runtimes.manage")
def check(request: HttpRequest) -> HttpResponse:
    """What would be looked at; nothing is written."""
    form = InstallForm(request.POST)
    if not form.is_valid():
        return render(request, "fleet/_runtimes_checks.html", {"form": form})
    values = form.cleaned_data
    version = values["version"].strip().removeprefix("v")
    context = contexts.plan(values["host"], values["variant"], version, values["extras"])
    return render(request, "fleet/_runtimes_checks.html", context)


@require_GET
@right("runtimes.view")
def install(request: HttpRequest, install_id: uuid.UUID) -> HttpResponse:
    row = reads.install(install_id)
    look = request.GET.get("look")
    if look is not None and look != contexts.look_of(row):  # it is over, or tried again: load the page whole
        return go(request, reverse("runtime-install", args=[row.pk]))
    context = contexts.install_page(row, may_manage=_may_manage(request))
    return page(request, "fleet/runtimes_installing.html", context, parts=["live"])


@require_GET
@right("runtimes.view")
def install_live(request: HttpRequest, install_id: uuid.UUID) -> StreamingHttpResponse:
    row = reads.install(install_id)
    topics = [live.install_topic(row.pk), *([live.job_topic(row.job_id)] if row.job_id else [])]
    return sse.stream(request, topics)


def _job_of(install_id: uuid.UUID) -> uuid.UUID:
    job_id = reads.install(install_id).job_id
    if job_id is None:
        raise NotFound
    return job_id


@require_GET
@right("runtimes.view")
def install_log(request: HttpRequest, install_id: uuid.UUID) -> HttpResponse:
    return log_answers.part(request, _job_of(install_id))


@require_GET
@right("runtimes.view")
def install_log_file(request: HttpRequest, install_id: uuid.UUID) -> StreamingHttpResponse:
    row = reads.install(install_id)
    return log_answers.whole(_job_of(install_id), f"{row.name}-{row.tries}.log")


@require_POST
@right("runtimes.manage")
def cancel(request: HttpRequest, install_id: uuid.UUID) -> HttpResponse:
    row = services.cancel(reads.install(install_id), actor=request.actor)
    return go(request, reverse("runtime-install", args=[row.pk]))


@require_POST
@right("runtimes.manage")
def try_again(request: HttpRequest, install_id: uuid.UUID) -> HttpResponse:
    row = services.try_again(reads.install(install_id), actor=request.actor)
    return go(request, reverse("runtime-install", args=[row.pk]))


# --- remove -----------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@right("runtimes.manage")
def remove(request: HttpRequest, pk: int) -> HttpResponse:
    """What uses it, and the way to remove it."""
    row = reads.runtime(pk)
    context: dict[str, Any] = contexts.removal(row)
    if request.method == "POST":
        try:
            services.remove(row, actor=request.actor, confirmed=request.POST.get("confirmed") == "1")
        except Conflict as exc:
            return form_again(request, "fleet/runtimes_remove.html", {**context, "refusal": exc})
        text = _("%(name)s is being removed from %(host)s.")
        messages.info(request, text % {"name": context["name"], "host": row.host.name})
        return go(request, reverse("runtimes"))
    return page(request, "fleet/runtimes_remove.html", context)


@require_POST
@right("runtimes.manage")
def add_plugin(request: HttpRequest, pk: int) -> HttpResponse:
    """Add the plugin for GGUF files; back to where it was asked for."""
    row = reads.runtime(pk)
    try:
        packages.add_plugin(row, actor=request.actor)
    except PanelError as exc:
        messages.error(request, f"{exc.text} {exc.hint_text}")
    else:
        messages.info(request, _("The plugin is being added on %(host)s.") % {"host": row.host.name})
    return go(request, own_path(request.POST.get("next"), reverse("runtimes")))


# --- look -------------------------------------------------------------------------------------------------------------


@require_POST
@right("runtimes.manage")
def find(request: HttpRequest, pk: int) -> HttpResponse:
    host = queries.host(pk)
    services.find(host, actor=request.actor)
    messages.info(request, _("Looking for engines on %(host)s.") % {"host": host.name})
    return go(request, reverse("runtimes"))


@require_http_methods(["GET", "POST"])
@right("runtimes.manage")
def folders(request: HttpRequest, pk: int) -> HttpResponse:
    """Folders with engines that admins named on a host."""
    host = queries.host(pk)
    form = FolderForm(request.POST or None)
    context = {"section": "runtimes", "host": host, "form": form}
    if form.is_valid():
        try:
            services.name_folder(host, form.cleaned_data["folder"], actor=request.actor)
        except Invalid as exc:
            put_errors(form, exc)
        else:
            messages.info(request, _("Looking for engines in this folder on %(host)s.") % {"host": host.name})
            return go(request, reverse("runtimes"))
    if form.is_bound:
        return form_again(request, "fleet/runtimes_folders.html", context)
    return page(request, "fleet/runtimes_folders.html", context)


@require_POST
@right("runtimes.manage")
def forget_folder(request: HttpRequest, pk: int) -> HttpResponse:
    host = queries.host(pk)
    services.forget_folder(host, request.POST.get("folder", "")[:500], actor=request.actor)
    return go(request, reverse("runtime-folders", args=[pk]))
