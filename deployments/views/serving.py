"""What people do about a finding of a deployment that serves."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from deployments import applying, queries
from panel.accounts.guard import right
from panel.core.pages import go


@require_POST
@right("deployments.edit")
def apply_finding(request: HttpRequest, pk: int, family: str) -> HttpResponse:
    """Make the change that a finding offers: a new revision, with which it starts again."""
    number = request.POST.get("revision", "")
    base = int(number) if number.isdecimal() and len(number) < 10 else None
    key = request.POST.get("fix", "")[:40]
    applying.apply_finding(queries.one(pk), family, key, base_number=base, actor=request.actor)
    messages.success(request, _("The settings are changed. It starts again with them."))
    return go(request, reverse("deployment", args=[pk]))
