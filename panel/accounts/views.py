"""Pages of accounts: sign in, the first admin, one's own account and tokens."""

import json
import uuid
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from panel.accounts import links, reach, secret_store, services, sessions, tokens
from panel.accounts.access import can, load_or_404
from panel.accounts.forms import (
    FIRST_DAYS,
    ChangedPasswordForm,
    LookForm,
    NewAccountForm,
    PasswordForm,
    SignInForm,
    TokenForm,
)
from panel.accounts.guard import right
from panel.accounts.models import ApiToken, Purpose, Scope, User
from panel.accounts.nextpage import safe_next
from panel.core.errors import Invalid, PanelError
from panel.core.pages import form_again, go, is_htmx, keep_language, page, put_errors, wants_json


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    onward = safe_next(request.POST.get("next") or request.GET.get("next"))
    if request.user.is_authenticated:
        return HttpResponseRedirect(onward)
    form = SignInForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            services.sign_in(request, name=form.cleaned_data["name"], password=form.cleaned_data["password"])
            return go(request, onward)
        except PanelError as error:
            return _sign_in_page(request, form, onward, error)
    return _sign_in_page(request, form, onward, None)


def _sign_in_page(request: HttpRequest, form: SignInForm, onward: str, error: PanelError | None) -> HttpResponse:
    status = error.status if error else 422 if form.is_bound else 200
    context = {"form": form, "next": onward, "error": error, "nobody_yet": not User.objects.exists()}
    response = render(request, "accounts/login.html", context, status=status)
    if isinstance(error, services.SignInLocked):
        response.headers["Retry-After"] = str(error.wait_s)
    return response


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    services.sign_out(request)
    return go(request, reverse("login"))


@sensitive_post_parameters("password", "again")
@never_cache
@require_http_methods(["GET", "POST"])
def first_admin(request: HttpRequest, secret: str) -> HttpResponse:
    services.check_first_admin(secret)
    form = NewAccountForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            given = form.cleaned_data
            services.create_first_admin(request, secret, name=given["name"], password=given["password"])
            return go(request, safe_next(None))
        except Invalid as error:
            put_errors(form, error)
    return render(request, "accounts/first_admin.html", {"form": form}, status=422 if form.errors else 200)


@sensitive_post_parameters("password", "again")
@never_cache
@require_http_methods(["GET", "POST"])
def invitation(request: HttpRequest, secret: str) -> HttpResponse:
    link = links.find(secret, Purpose.INVITE)
    form = NewAccountForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            links.accept(request, secret, name=form.cleaned_data["name"], password=form.cleaned_data["password"])
            return go(request, safe_next(None))
        except Invalid as error:
            put_errors(form, error)
    context = {"form": form, "link": link}
    return render(request, "accounts/invitation.html", context, status=422 if form.errors else 200)


@sensitive_post_parameters("password", "again")
@never_cache
@require_http_methods(["GET", "POST"])
def new_password(request: HttpRequest, secret: str) -> HttpResponse:
    link = links.find(secret, Purpose.RESET)
    form = ChangedPasswordForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            given = form.cleaned_data
            links.set_password(request, secret, password=given["password"], end_tokens=given["end_tokens"])
            messages.success(request, _("Your new password works. Everywhere else you are signed out."))
            return go(request, safe_next(None))
        except Invalid as error:
            put_errors(form, error)
    context = {"form": form, "link": link, "live_tokens": tokens.live_of(link.user)}
    return render(request, "accounts/new_password.html", context, status=422 if form.errors else 200)


# --- one's own account ------------------------------------------------------------------------------------------------


def _profile(request: HttpRequest, **more: Any) -> dict[str, Any]:
    return {
        "section": "profile",
        "password_form": PasswordForm(),
        "token_form": TokenForm(full="reach" in request.GET),
        "may_limit": reach.any_there(),
        "all_fields": True,
        "tokens": tokens.listed(request.user),
        "live_tokens": tokens.live_of(request.user),
        "may_secrets": can(request.actor, secret_store.OWN),
        "sessions": sessions.listed(request.user, request.session.session_key),
        "look_form": LookForm({"language": request.user.language, "theme": request.user.theme}),
        **more,
    }


@never_cache
@require_http_methods(["GET"])
@right("profile.own")
def profile(request: HttpRequest) -> HttpResponse:
    if request.GET.get("part") == "reach" and is_htmx(request):
        return page(request, "accounts/profile.html", {"token_form": TokenForm(full=True)}, parts=["reach"])
    return page(request, "accounts/profile.html", _profile(request), parts=["tokens"])


@sensitive_post_parameters()
@never_cache
@require_POST
@right("profile.own")
def password(request: HttpRequest) -> HttpResponse:
    form = PasswordForm(request.POST)
    if form.is_valid():
        try:
            given = form.cleaned_data
            services.change_password(
                request, current=given["current"], new=given["password"], end_tokens=given["end_tokens"]
            )
        except Invalid as error:
            put_errors(form, error)
        else:
            messages.success(request, _("Password changed. Everywhere else you are signed out."))
            return go(request, reverse("profile"))
    return form_again(request, "accounts/profile.html", _profile(request, password_form=form))


@require_POST
@right("profile.own")
def look(request: HttpRequest) -> HttpResponse:
    """Language and colours, for every browser of this person. No record: it concerns nobody else."""
    form = LookForm(request.POST)
    if not form.is_valid():
        return form_again(request, "accounts/profile.html", _profile(request, look_form=form))
    language = form.cleaned_data["language"]
    services.set_look(request.user, language=language, theme=form.cleaned_data["theme"])
    answer = go(request, reverse("profile"))
    if language:
        keep_language(request, answer, language)
    else:
        answer.delete_cookie(settings.LANGUAGE_COOKIE_NAME)
    return answer


# --- sessions ---------------------------------------------------------------------------------------------------------


@require_POST
@right("profile.own")
def session_end(request: HttpRequest, number: uuid.UUID) -> HttpResponse:
    here = getattr(request.session, "row", None)
    if here is not None and here.number == number:
        return sign_out(request)
    if sessions.end(request.user, number, actor=request.actor):
        messages.success(request, _("That browser is signed out."))
    return go(request, reverse("profile"))


@require_POST
@right("profile.own")
def sessions_end(request: HttpRequest) -> HttpResponse:
    ended = sessions.end_all(request.user, actor=request.actor, but=request.session.session_key)
    messages.success(
        request, ngettext("%(n)s browser is signed out.", "%(n)s browsers are signed out.", ended) % {"n": ended}
    )
    return go(request, reverse("profile"))


# --- tokens -----------------------------------------------------------------------------------------------------------


@never_cache
@require_POST
@right("tokens.own")
def token_create(request: HttpRequest) -> HttpResponse:
    """Make a token and show it once: as JSON, as a fragment for htmx, or on the account's page."""
    form = TokenForm(_token_values(request))
    if form.is_valid():
        try:
            token, plaintext = services.create_token(request.user, actor=request.actor, **_token_wish(form))
            return _token_made(request, token, plaintext)
        except Invalid as error:
            put_errors(form, error)
    if wants_json(request):
        raise Invalid({name: " ".join(map(str, texts)) for name, texts in form.errors.items()})
    if is_htmx(request):
        context = {"token_form": form, "all_fields": "scope" in request.POST}
        return render(request, "accounts/_token_form.html", context, status=422)
    return form_again(request, "accounts/profile.html", _profile(request, token_form=form))


def _token_wish(form: TokenForm) -> dict[str, Any]:
    """What was wished for. No ticks mean all deployments; a program that sends an empty list gets a refusal."""
    given = form.cleaned_data
    said_none = isinstance(form.data, dict) and form.data.get("deployments") == []
    return {
        "name": given["name"],
        "days": given["days"],
        "scope": given["scope"] or Scope.DOOR,
        "deployment_ids": given["deployments"] or ([] if said_none else None),
    }


def _token_made(request: HttpRequest, token: ApiToken, plaintext: str) -> HttpResponse:
    if wants_json(request):
        ends = token.expires_at.isoformat() if token.expires_at else None
        made = {"id": token.pk, "name": token.name, "prefix": token.prefix, "token": plaintext, "expires_at": ends}
        return JsonResponse({**made, "scope": token.scope, "deployments": token.deployment_ids}, status=201)
    context = {"made": token, "plaintext": plaintext, "example": tokens.example(token)}
    context["reach"] = tokens.reach_words(token, reach.names())
    if is_htmx(request):
        response = render(request, "accounts/_token.html", context)
        response.headers["HX-Trigger"] = "tokens-changed"
        return response
    return render(request, "accounts/profile.html", _profile(request, **context))


def _token_values(request: HttpRequest) -> Any:
    """What was sent, as a form or as JSON. A token without a word about its end ends after 90 days."""
    given: Any = request.POST
    if request.content_type == "application/json":
        try:
            given = json.loads(request.body)
        except (ValueError, RecursionError) as exc:
            raise Invalid(message=_("This is no JSON.")) from exc
        if not isinstance(given, dict):
            raise Invalid(message=_("This is no JSON object."))
    if isinstance(given, QueryDict):
        values = given.copy()
        values.setdefault("days", str(FIRST_DAYS))
        return values
    return {"days": FIRST_DAYS, **given}


@require_POST
@right("tokens.own")
def token_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    token = load_or_404(ApiToken.objects.filter(user=request.user), request.user, pk=pk)
    services.revoke_token(token, actor=request.actor)
    if wants_json(request):
        return JsonResponse({"id": token.pk, "revoked": True})
    if is_htmx(request):
        return render(request, "accounts/profile.html#tokens", _profile(request))
    messages.success(request, _("The token “%(name)s” opens nothing any more.") % {"name": token.name})
    return go(request, reverse("profile"))
