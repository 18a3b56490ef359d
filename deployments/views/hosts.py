"""What the page of a host asks of this room: load, call, answer."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from deployments import on_host
from panel.accounts.guard import right
from panel.core.pages import go
from panel.fleet import queries


@require_POST
@right("hosts.manage")
def empty(request: HttpRequest, pk: int) -> HttpResponse:
    host = queries.host(pk)
    stopped = on_host.stop_all(host, actor=request.actor)
    if stopped:
        text = ngettext("%(n)s deployment is being stopped.", "%(n)s deployments are being stopped.", len(stopped))
        messages.info(request, text % {"n": len(stopped)})
    else:
        messages.info(request, _("Nothing runs on %(host)s.") % {"host": host.name})
    return go(request, reverse("host", args=[host.pk]))
