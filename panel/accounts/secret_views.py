"""The page of secrets: one's own and the team's, kept, replaced and deleted. It shows names, and no secret ever."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from panel.accounts import secret_store
from panel.accounts.access import can, load_or_404
from panel.accounts.forms import SecretForm
from panel.accounts.guard import right
from panel.accounts.models import Secret
from panel.core.errors import Conflict, Invalid
from panel.core.pages import form_again, go, page, put_errors


def _page(request: HttpRequest, form: SecretForm) -> dict[str, Any]:
    may_team = can(request.actor, secret_store.MANAGE)
    return {"section": "profile", "form": form, "may_team": may_team, **secret_store.listed(request.actor)}


@sensitive_post_parameters("value")
@never_cache
@require_http_methods(["GET", "POST"])
@right(secret_store.OWN)
def secrets(request: HttpRequest) -> HttpResponse:
    """The lists, and the form that keeps or replaces one. `?name=` fills in which one is to be replaced."""
    if request.method == "GET":
        named = request.GET.get("name", "")
        initial = {"name": named if secret_store.NAME.fullmatch(named) else "", "team": "team" in request.GET}
        return page(request, "accounts/secrets.html", _page(request, SecretForm(initial=initial)))
    form = SecretForm(request.POST)
    if form.is_valid():
        given = form.cleaned_data
        try:
            row = secret_store.keep(given["name"], given["value"], team=given["team"], actor=request.actor)
        except Invalid as error:
            put_errors(form, error)
        except Conflict as error:
            form.add_error(None, f"{error.text} {error.hint_text}")
        else:
            messages.success(request, _("The secret “%(name)s” is kept.") % {"name": row.name})
            return go(request, reverse("secrets"))
    return form_again(request, "accounts/secrets.html", _page(request, form))


@require_POST
@right(secret_store.OWN)
def secret_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """One's own; admins also the team's, and those of others from the page of the person."""
    rows = Secret.objects.select_related("owner")
    if not can(request.actor, secret_store.MANAGE):
        rows = rows.filter(owner_id=request.actor.id)
    row = load_or_404(rows, request.actor, pk=pk)
    owner = row.owner_id
    secret_store.remove(row, actor=request.actor)
    messages.success(request, _("The secret “%(name)s” is deleted.") % {"name": row.name})
    return go(request, reverse("secrets") if owner in (None, request.actor.id) else reverse("person", args=[owner]))
