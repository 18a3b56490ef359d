"""Pages of the people of this panel, for admins: the list with invitations, and one person."""

from typing import Any
from urllib.parse import urlsplit

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from panel.accounts import links, people, secret_store, sessions, tokens
from panel.accounts.access import load_or_404
from panel.accounts.forms import InviteForm, RoleForm
from panel.accounts.guard import right
from panel.accounts.models import ApiToken, OneTimeLink, Purpose, User
from panel.core.errors import Invalid
from panel.core.pages import form_again, go, is_htmx, page, put_errors, slice_of

manage = right("users.manage")


# --- the list ---------------------------------------------------------------------------------------------------------


def _list(request: HttpRequest, **more: Any) -> dict[str, Any]:
    text = request.GET.get("q", "").strip()[:150]
    show = request.GET.get("show", "")
    show = show if show in people.SHOWN else ""
    return {
        "section": "people",
        "rows": slice_of(request, people.found(text, show)),
        "asked": {"q": text, "show": show},
        "invitations": links.invitations()[: links.MOST_INVITES],
        "now": timezone.now(),
        "invite_form": InviteForm(),
        **more,
    }


@never_cache
@require_http_methods(["GET"])
@manage
def people_list(request: HttpRequest) -> HttpResponse:
    return page(request, "accounts/people.html", _list(request), parts=["rows", "invitations"])


@never_cache
@require_POST
@manage
def invite(request: HttpRequest) -> HttpResponse:
    form = InviteForm(request.POST)
    if form.is_valid():
        try:
            link, url = links.invite(actor=request.actor, **form.cleaned_data)
            return _invited(request, link, url)
        except Invalid as error:
            put_errors(form, error)
    if is_htmx(request):
        return render(request, "accounts/_invite_form.html", {"invite_form": form}, status=422)
    return form_again(request, "accounts/people.html", _list(request, invite_form=form))


@never_cache
@require_POST
@manage
def invite_again(request: HttpRequest, pk: int) -> HttpResponse:
    link, url = links.invite_again(_invitation(request, pk), actor=request.actor)
    return _invited(request, link, url)


def _shown(link: OneTimeLink, url: str) -> dict[str, Any]:
    return {"made": link, "url": url, "only_here": urlsplit(url).hostname == "localhost"}


def _invited(request: HttpRequest, link: OneTimeLink, url: str) -> HttpResponse:
    """The link, this once: in place for htmx, else on the page of people."""
    context = _shown(link, url)
    if is_htmx(request):
        response = render(request, "accounts/_link.html", context)
        response.headers["HX-Trigger"] = "invitations-changed"
        return response
    return render(request, "accounts/people.html", _list(request, **context))


@require_POST
@manage
def invite_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    link = _invitation(request, pk)
    links.take_back(link, actor=request.actor)
    messages.success(request, _("The invitation for %(name)s is taken back.") % {"name": link.label})
    return go(request, reverse("people"))


def _invitation(request: HttpRequest, pk: int) -> OneTimeLink:
    return load_or_404(OneTimeLink.objects.filter(purpose=Purpose.INVITE), request.actor, pk=pk)


# --- one person -------------------------------------------------------------------------------------------------------


def _person(request: HttpRequest, user: User, **more: Any) -> dict[str, Any]:
    return {
        "section": "people",
        "person": user,
        "own": user.pk == request.user.pk,
        "role_form": RoleForm({"role": user.role}),
        "sessions": sessions.listed(user, request.session.session_key),
        "tokens": tokens.listed(user),
        "secrets": secret_store.of_person(user),
        **more,
    }


@never_cache
@require_http_methods(["GET"])
@manage
def person(request: HttpRequest, pk: int) -> HttpResponse:
    user = load_or_404(User, request.actor, pk=pk)
    return page(request, "accounts/person.html", _person(request, user), parts=["tokens"])


@require_POST
@manage
def role(request: HttpRequest, pk: int) -> HttpResponse:
    user = load_or_404(User, request.actor, pk=pk)
    form = RoleForm(request.POST)
    if not form.is_valid():
        return form_again(request, "accounts/person.html", _person(request, user, role_form=form))
    if people.change_role(user, form.cleaned_data["role"], actor=request.actor):
        messages.success(request, _("%(name)s has the new role at once.") % {"name": user.username})
    return _back(request, user)


@require_POST
@manage
def disable(request: HttpRequest, pk: int) -> HttpResponse:
    user = load_or_404(User, request.actor, pk=pk)
    if people.disable(user, actor=request.actor):
        messages.success(request, _("%(name)s is signed out everywhere and cannot come in.") % {"name": user.username})
    return _back(request, user)


@require_POST
@manage
def enable(request: HttpRequest, pk: int) -> HttpResponse:
    user = load_or_404(User, request.actor, pk=pk)
    if people.enable(user, actor=request.actor):
        messages.success(request, _("%(name)s can sign in again.") % {"name": user.username})
    return _back(request, user)


@never_cache
@require_POST
@manage
def reset(request: HttpRequest, pk: int) -> HttpResponse:
    user = load_or_404(User, request.actor, pk=pk)
    link, url = links.make_reset(user, actor=request.actor)
    context = _shown(link, url)
    if is_htmx(request):
        return render(request, "accounts/_link.html", context)
    return render(request, "accounts/person.html", _person(request, user, **context))


@require_POST
@manage
def sessions_end(request: HttpRequest, pk: int) -> HttpResponse:
    user = load_or_404(User, request.actor, pk=pk)
    here = request.session.session_key if user.pk == request.user.pk else None
    ended = sessions.end_all(user, actor=request.actor, but=here)
    text = ngettext("%(n)s browser is signed out.", "%(n)s browsers are signed out.", ended)
    messages.success(request, text % {"n": ended})
    return _back(request, user)


@require_POST
@right("tokens.manage")
def token_revoke(request: HttpRequest, pk: int, token_id: int) -> HttpResponse:
    user = load_or_404(User, request.actor, pk=pk)
    token = load_or_404(ApiToken.objects.filter(user=user), request.actor, pk=token_id)
    tokens.revoke_token(token, actor=request.actor)
    if is_htmx(request):
        return render(request, "accounts/person.html#tokens", _person(request, user))
    return _back(request, user)


def _back(request: HttpRequest, user: User) -> HttpResponseBase:
    return go(request, reverse("person", args=[user.pk]))
