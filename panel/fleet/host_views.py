"""One host's page and what an admin does there: load, call, render."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core.errors import Invalid
from panel.core.pages import form_again, go, page, put_errors
from panel.fleet import contexts, hosts, queries
from panel.fleet.forms import HostNameForm
from panel.fleet.models import Host


@require_GET
@right("hosts.view")
def host(request: HttpRequest, pk: int) -> HttpResponse:
    may_manage = can(request.actor, "hosts.manage")
    context = contexts.host_page(queries.host_view(pk), may_manage=may_manage)
    return page(request, "fleet/host.html", context, parts=["live"])


@require_http_methods(["GET", "POST"])
@right("hosts.manage")
def rename(request: HttpRequest, pk: int) -> HttpResponse:
    row = queries.host(pk)
    form = HostNameForm(request.POST or None, initial={"name": row.name})
    context = {"section": "hosts", "host": row, "form": form}
    if form.is_valid():
        try:
            hosts.rename(row, form.cleaned_data["name"], actor=request.actor)
        except Invalid as exc:
            put_errors(form, exc)
        else:
            return _back(request, row)
    if form.is_bound:
        return form_again(request, "fleet/host_rename.html", context)
    return page(request, "fleet/host_rename.html", context)


@require_POST
@right("hosts.manage")
def drain(request: HttpRequest, pk: int) -> HttpResponse:
    row = hosts.drain(queries.host(pk), actor=request.actor, note=request.POST.get("note", ""))
    messages.info(request, _("Nothing new starts on %(host)s. What runs there goes on.") % {"host": row.name})
    return _back(request, row)


@require_POST
@right("hosts.manage")
def undrain(request: HttpRequest, pk: int) -> HttpResponse:
    row = hosts.undrain(queries.host(pk), actor=request.actor)
    messages.info(request, _("New starts may go to %(host)s again.") % {"host": row.name})
    return _back(request, row)


@require_POST
@right("hosts.manage")
def gpu_aside(request: HttpRequest, pk: int) -> HttpResponse:
    gpu = queries.gpu(pk)
    hosts.set_gpu_schedulable(gpu, False, actor=request.actor, note=request.POST.get("note", ""))
    values = {"index": gpu.index, "host": gpu.host.name}
    messages.info(request, _("Nothing new starts on GPU %(index)s of %(host)s.") % values)
    return _back(request, gpu.host)


@require_POST
@right("hosts.manage")
def gpu_back(request: HttpRequest, pk: int) -> HttpResponse:
    gpu = queries.gpu(pk)
    hosts.set_gpu_schedulable(gpu, True, actor=request.actor)
    values = {"index": gpu.index, "host": gpu.host.name}
    messages.info(request, _("GPU %(index)s of %(host)s may be used again.") % values)
    return _back(request, gpu.host)


@require_POST
@right("hosts.manage")
def door_key(request: HttpRequest, pk: int) -> HttpResponse:
    row = queries.host(pk)
    hosts.new_door_key(row, actor=request.actor)
    messages.info(request, _("The door of %(host)s gets a new key with its next call.") % {"host": row.name})
    return _back(request, row)


@require_POST
@right("hosts.manage")
def forget(request: HttpRequest, pk: int) -> HttpResponse:
    row = queries.host(pk)
    hosts.forget(row, actor=request.actor, sure=request.POST.get("sure") == "yes")
    messages.info(request, _("%(host)s is no longer a host of Berth. Its runs are kept.") % {"host": row.name})
    return go(request, reverse("hosts"))


def _back(request: HttpRequest, row: Host) -> HttpResponse:
    return go(request, reverse("host", args=[row.pk]))
