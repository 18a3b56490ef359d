"""The page of one model and what is done there: load, call, render."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from models_catalog import contexts_fit, contexts_model, deleting, queries, repairs, shelf
from models_catalog.forms import AboutForm
from models_catalog.models import CatalogModel, Download
from models_catalog.views import rights
from panel.accounts.guard import right
from panel.core.errors import Conflict, Invalid
from panel.core.pages import form_again, go, is_htmx, page, put_errors

DETAIL = "models_catalog/detail.html"


def _context(request: HttpRequest, row: CatalogModel, form: AboutForm | None = None) -> dict[str, Any]:
    words = {"tags": ", ".join(row.tags), "notes": row.notes, "licence": row.licence, "source_url": row.source_url}
    found = {"section": "models", **rights(request), **contexts_model.model_page(row)}
    found["may_deploy_it"] = shelf.may_deploy(row, request.actor)
    if not (is_htmx(request) and request.GET.get("part")):
        may = found["may_deploy"] and found["may_deploy_it"]
        shown = contexts_fit.first(one["form"] for one in found["forms"])
        found["fit"] = contexts_fit.fit_page(shown, may_deploy=may)
    return {**found, "about_form": form or AboutForm(initial=words), "about_open": form is not None}


@require_GET
@right("models.view")
def model(request: HttpRequest, pk: int) -> HttpResponse:
    return page(request, DETAIL, _context(request, queries.one(pk)), parts=["body"])


@require_GET
@right("models.view")
def elsewhere(request: HttpRequest, pk: int) -> HttpResponse:
    """Where it would fit among GPUs that no host has; asked for when someone opens it."""
    row = queries.one(pk)
    context = {"section": "models", "model": row, "fit": contexts_fit.elsewhere_page(contexts_fit.shown(row))}
    return page(request, "models_catalog/fit.html", context, parts=["table"])


@require_POST
@right("models.describe")
def about(request: HttpRequest, pk: int) -> HttpResponse:
    """Notes, tags, licence and source."""
    row = queries.one(pk)
    form = AboutForm(request.POST)
    if form.is_valid():
        values = {**form.cleaned_data, "tags": form.cleaned_data["tags"].replace("，", ",").split(",")}
        try:
            shelf.describe(row, actor=request.actor, **values)
        except Invalid as exc:
            put_errors(form, exc)
        else:
            messages.success(request, _("Saved."))
            return go(request, reverse("model", args=[pk]))
    return form_again(request, DETAIL, _context(request, row, form))


@require_POST
@right("models.approve")
def approve(request: HttpRequest, pk: int) -> HttpResponse:
    row = queries.one(pk)
    shelf.approve(row, request.POST.get("approved") == "1", actor=request.actor)
    return go(request, reverse("model", args=[pk]))


@require_POST
@right("models.trust")
def remote_code(request: HttpRequest, pk: int) -> HttpResponse:
    """An admin allows or forbids that engines run the model's own code, as it was shown."""
    row = queries.one(pk)
    allowed = request.POST.get("allow") == "1"
    try:
        shelf.set_remote_code(row, allowed, actor=request.actor, seen=request.POST.get("seen", "") if allowed else None)
    except Conflict as exc:
        messages.error(request, f"{exc.text} {exc.hint_text}")
    return go(request, reverse("model", args=[pk]))


@require_GET
@right("models.view")
def template(request: HttpRequest, pk: int) -> HttpResponse:
    """The chat template of one form, with example conversations; asked for when someone opens it."""
    context = contexts_model.template_page(queries.artifact(pk))
    return page(request, "models_catalog/template.html", {"section": "models", **context}, parts=["tried"])


@require_http_methods(["GET", "POST"])
@right("models.delete")
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """What uses a copy and what comes back, and the way to delete it."""
    row = queries.copy(pk)
    name = "models_catalog/delete.html"
    if request.method == "POST":
        try:
            deleting.delete(row, actor=request.actor, confirmed=request.POST.get("confirmed") == "1")
        except Conflict as exc:
            return form_again(request, name, {**contexts_model.removal(row), "refusal": exc})
        text = _("The copy on %(host)s is being deleted.")
        messages.info(request, text % {"host": row.host.name})
        return go(request, reverse("model", args=[row.artifact.model_id]))
    return page(request, name, contexts_model.removal(row))


@require_POST
@right("models.download")
def repair(request: HttpRequest, pk: int) -> HttpResponse:
    """Fetch the damaged files of a copy once more."""
    row = queries.copy(pk)
    try:
        made = repairs.repair(row, actor=request.actor, suspected=request.POST.get("suspected") == "1")
    except Conflict as exc:
        messages.error(request, f"{exc.text} {exc.hint_text}")
    else:
        messages.info(request, _("The damaged files are being downloaded again to %(host)s.") % {"host": row.host.name})
        if isinstance(made, Download):
            return go(request, reverse("download", args=[made.pk]))
    return go(request, reverse("model", args=[row.artifact.model_id]))
