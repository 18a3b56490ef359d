"""The check before a start, on the deploy page: load, look, render."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from deployments import queries
from deployments.checklist.look import CheckList, look
from deployments.forms import DeploymentForm
from deployments.models import Deployment
from deployments.pages import check as check_page
from deployments.pages import form as form_page
from deployments.spec import DeploymentSpec
from panel.accounts.guard import right
from panel.core.errors import Invalid


@require_POST
@right("deployments.create")
def check(request: HttpRequest) -> HttpResponse:
    """The list as it is now. While the engine is being asked, the part asks for itself again."""
    schema = form_page.schema_for(request.POST.get("runtime", ""))
    form = DeploymentForm(request.POST, gpu_choices=form_page.gpu_choices(), named=False, schema=schema)
    again = request.POST.get("again") == "1"
    return render(request, "deployments/_check.html", looked(form, request.actor, again=again))


def looked(form: DeploymentForm, actor: Any, *, again: bool = False) -> dict[str, Any]:
    """What the card shows of a form that was sent; nothing where it does not say enough: the plan says that."""
    if not form.is_valid():
        return {"checked": None, "unfinished": True}
    own = queries.named(form.data.get("own", ""))
    try:
        spec = form.to_spec(own[1]) if own else form.to_spec()
    except Invalid:
        return {"checked": None, "unfinished": True}
    name = form.cleaned_data["name"] or "model"
    found = look(spec, name=name, actor=actor, again=again, own=own[0] if own else None)
    return check_page.card(found, spec, is_new=own is None)


def of_stopped(row: Deployment, actor: Any) -> CheckList | None:
    """The list of a deployment that is stopped and not about to start, as far as nobody has to be asked; else None."""
    if row.state != "stopped" or row.desired == "running" or row.revision is None:
        return None
    spec = DeploymentSpec.model_validate(row.revision.spec)
    return look(spec, name=row.name, actor=actor, ask=False, own=row.pk)


def warnings_of(spec: DeploymentSpec, name: str) -> list[str]:
    """Codes of what speaks against a start that is wanted all the same. Raises Invalid where it could only fail."""
    found = look(spec, name=name, ask=False)
    if found.verdict == "refused":
        raise Invalid({"": check_page.summary(found)})
    return found.warnings
