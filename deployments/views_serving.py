"""What people do about a finding of a deployment that serves."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from deployments import patching, queries, services
from deployments.spec import DeploymentSpec
from panel.accounts.guard import right
from panel.core.errors import Conflict
from panel.core.pages import go


@require_POST
@right("deployments.edit")
def apply_finding(request: HttpRequest, pk: int, family: str) -> HttpResponse:
    """Make the change that a finding offers: a new revision, with which it starts again."""
    row = queries.one(pk)
    found = row.run.findings.get("found", []) if row.run is not None else []
    fix = next((each["fix"] for each in found if each["family"] == family and each.get("fix")), None)
    number = request.POST.get("revision", "")
    if fix is None or str(row.revision.number) != number:
        raise Conflict("deployment.edited", _("This has changed since the page was opened."), _("Look at it again."))
    spec = patching.apply(DeploymentSpec.model_validate(row.revision.spec), fix["patch"])
    services.edit(row, spec=spec, actor=request.actor, base_number=row.revision.number)
    messages.success(request, _("The settings are changed. It starts again with them."))
    return go(request, reverse("deployment", args=[pk]))
