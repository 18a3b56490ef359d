"""The hosts' page: load, call, render."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core import sse
from panel.core.errors import Invalid
from panel.core.pages import form_again, go, page, put_errors
from panel.fleet import contexts, live, queries, services
from panel.fleet.forms import EngineForm


@require_GET
@right("hosts.view")
def hosts(request: HttpRequest) -> HttpResponse:
    context = contexts.hosts_page(may_manage=can(request.actor, "hosts.manage"))
    return page(request, "fleet/hosts.html", context, parts=["hosts"])


@require_GET
@right("hosts.view")
def hosts_live(request: HttpRequest) -> HttpResponse:
    """News of any host, for the page and for the menu."""
    return sse.stream(request, [live.HOSTS])


@require_POST
@right("hosts.manage")
def find_engines(request: HttpRequest, pk: int) -> HttpResponse:
    host = queries.host(pk)
    services.find_runtimes(host, actor=request.actor)
    messages.info(request, _("Looking for engines on %(host)s.") % {"host": host.name})
    return go(request, reverse("hosts"))


@require_http_methods(["GET", "POST"])
@right("hosts.manage")
def name_engine(request: HttpRequest, pk: int) -> HttpResponse:
    host = queries.host(pk)
    form = EngineForm(request.POST or None)
    context = {"section": "hosts", "host": host, "form": form}
    if form.is_valid():
        try:
            services.name_runtime(host, form.cleaned_data["executable"], actor=request.actor)
        except Invalid as exc:
            put_errors(form, exc)
        else:
            messages.info(request, _("Looking at this engine on %(host)s.") % {"host": host.name})
            return go(request, reverse("hosts"))
    if form.is_bound:
        return form_again(request, "fleet/name_engine.html", context)
    return page(request, "fleet/name_engine.html", context)
