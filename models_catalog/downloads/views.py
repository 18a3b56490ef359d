"""The downloads' pages: load, call, render. The hub is asked with a deadline, in the request that shows the answer."""

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from models_catalog.downloads import (
    access,
    arrived,
    catalogue,
    contexts,
    events,
    hubs,
    offline,
    picks,
    places,
    queries,
    services,
)
from models_catalog.downloads.asking import HubTrouble
from models_catalog.downloads.forms import AccessForm, WishForm
from models_catalog.downloads.models import Download, Source
from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core import sse
from panel.core.errors import Conflict, Invalid, NotFound, PanelError
from panel.core.pages import form_again, go, page, put_errors, slice_of
from panel.fleet import live, log_answers
from panel.fleet.models import Host

PAGE = 50


def _hub(request: HttpRequest) -> hubs.HubAt:
    asked = (request.POST if request.method == "POST" else request.GET).get("source", "")
    return hubs.at(asked if asked in Source.values else Source.HUGGINGFACE)


def _may(request: HttpRequest) -> bool:
    return can(request.actor, services.RIGHT)


# --- all downloads ----------------------------------------------------------------------------------------------------


@require_GET
@right("models.view")
def index(request: HttpRequest) -> HttpResponse:
    show = request.GET.get("show", "")
    rows = slice_of(request, queries.listed(show), size=PAGE)
    context = contexts.index(rows, show, first=rows.number == 1, may=_may(request))
    return page(request, "models_catalog/downloads/list.html", {**context, "page": rows}, parts=["list"])


@require_GET
@right("models.view")
def index_live(request: HttpRequest) -> StreamingHttpResponse:
    """News of all downloads and the hosts."""
    return sse.stream(request, [events.ALL, live.HOSTS])


@require_GET
@right("models.view")
def download(request: HttpRequest, download_id: uuid.UUID) -> HttpResponse:
    row = queries.one(download_id)
    look = request.GET.get("look")
    if look is not None and look != contexts.look_of(row):  # it ended, or another try began: load the page whole
        return go(request, reverse("download", args=[row.pk]))
    context = {**contexts.page(row, may=_may(request)), **arrived.of(row, request.actor)}
    return page(request, "models_catalog/downloads/one.html", context, parts=["live", "next"])


@require_GET
@right("models.view")
def download_live(request: HttpRequest, download_id: uuid.UUID) -> StreamingHttpResponse:
    row = queries.one(download_id)
    topics = [events.topic(row.pk), *([live.job_topic(row.job_id)] if row.job_id else [])]
    return sse.stream(request, topics)


def _job_of(download_id: uuid.UUID) -> uuid.UUID:
    job_id = queries.one(download_id).job_id
    if job_id is None:
        raise NotFound
    return job_id


@require_GET
@right("models.view")
def log(request: HttpRequest, download_id: uuid.UUID) -> HttpResponse:
    return log_answers.part(request, _job_of(download_id))


@require_GET
@right("models.view")
def log_file(request: HttpRequest, download_id: uuid.UUID) -> StreamingHttpResponse:
    row = queries.one(download_id)
    return log_answers.whole(_job_of(download_id), f"{row.repo.replace('/', '--')}-{row.tries}.log")


def _act(request: HttpRequest, row: Download) -> HttpResponse:
    to_list = request.POST.get("back") == "list"
    return go(request, reverse("downloads") if to_list else reverse("download", args=[row.pk]))


@require_POST
@right("models.download")
def pause(request: HttpRequest, download_id: uuid.UUID) -> HttpResponse:
    return _act(request, services.pause(queries.one(download_id), actor=request.actor))


@require_POST
@right("models.download")
def resume(request: HttpRequest, download_id: uuid.UUID) -> HttpResponse:
    return _act(request, services.resume(queries.one(download_id), actor=request.actor))


@require_POST
@right("models.download")
def cancel(request: HttpRequest, download_id: uuid.UUID) -> HttpResponse:
    return _act(request, services.cancel(queries.one(download_id), actor=request.actor))


# --- looking for models -----------------------------------------------------------------------------------------------


@require_GET
@right("models.download")
def find(request: HttpRequest) -> HttpResponse:
    """Search a hub. A pasted address or a name of two parts leads to that model."""
    hub, text = _hub(request), request.GET.get("q", "").replace("\0", "").strip()[:200]
    source, repo = hubs.pasted(text)
    if repo:
        return go(request, _address(source or hub.source, repo))
    context = contexts.search_page(hub, text, may_team=can(request.actor, access.TEAM))
    if text:
        try:
            found = catalogue.search(services.asker(hub.source, request.actor), text)
            context["results"] = contexts.found_rows(item for item in found if hubs.REPO.fullmatch(item.repo))
        except HubTrouble as exc:
            context |= {"results": [], "trouble": contexts.trouble(exc)}
    return page(request, "models_catalog/downloads/find.html", context, parts=["results"])


def _address(source: str, repo: str, **more: str) -> str:
    return f"{reverse('download-new')}?{urlencode({'source': source, 'repo': repo, **more})}"


@require_http_methods(["GET", "POST"])
@right("models.download")
def new(request: HttpRequest) -> HttpResponse:
    """One model of a hub: which form of it, where to; then the download."""
    hub = _hub(request)
    asked = request.POST if request.method == "POST" else request.GET
    repo, ref = asked.get("repo", "")[:200], asked.get("ref", "").replace("\0", "")[:200]
    if not hubs.REPO.fullmatch(repo):
        raise NotFound
    form = WishForm(request.POST if request.method == "POST" else None)
    try:
        asker = services.asker(hub.source, request.actor)
        told = catalogue.repository(asker, repo, ref)
    except HubTrouble as exc:
        return page(request, "models_catalog/downloads/unreachable.html", _unreachable(hub, repo, ref, exc))
    if form.is_bound and form.is_valid():
        made = _start(request, hub, told, form)
        if made is not None:
            return go(request, reverse("download", args=[made.pk]))
    chosen = asked.get("choice", "")[:300]
    context = contexts.repo_page(hub, told, chosen=chosen, form=form, token=bool(asker.token))
    context["place"] = asked.get("place", "")[:1100]
    if form.is_bound:
        return form_again(request, "models_catalog/downloads/new.html", context)
    return page(request, "models_catalog/downloads/new.html", context)


def _start(request: HttpRequest, hub: hubs.HubAt, told: catalogue.Repo, form: WishForm) -> Download | None:
    """The download, or None with the reasons in the form."""
    values = form.cleaned_data
    host_id, folder = values["place"]
    host = Host.objects.filter(pk=host_id).first()
    choice = picks.one(told.files, values["choice"])
    if host is None or choice is None:
        form.add_error("place" if host is None else "choice", _("This is not there any more. Choose again."))
        return None
    wish = services.Wish(hub, told, choice, folder, values["limit_mib_s"])
    try:
        return services.start(host, wish, actor=request.actor)
    except Invalid as exc:
        put_errors(form, Invalid({("place" if name == "folder" else name): text for name, text in exc.fields.items()}))
    except Conflict as exc:
        form.add_error(None, f"{exc.text} {exc.hint_text}")
    return None


def _unreachable(hub: hubs.HubAt, repo: str, ref: str, exc: HubTrouble) -> dict[str, Any]:
    """The sentence, and the way without the network: the commands for the first folder that suits."""
    shown = contexts.trouble(exc)
    spots = [(host, place) for host in queries.hosts() for place in places.suits(host, hub.source, "hf")]
    commands, name = [], ""
    if spots and shown["network"]:
        host, place = spots[0]
        name = host.name
        commands = offline.commands(
            hub.source,
            hub.endpoint,
            hubs.USUAL[hub.source],
            repo,
            ref or hub.main,
            [],
            place.path,
            host.name,
            cache=place.cache,
        )
    return {
        "section": "models", "hub": hub, "name": repo, "ref": ref, "trouble": shown, "commands": commands, "host": name,
    }  # fmt: skip


@require_POST
@right("models.download")
def quick(request: HttpRequest) -> HttpResponse:
    """One click: a starter into the first folder that suits, on the first host where it fits."""
    hub, repo = _hub(request), request.POST.get("repo", "")[:200]
    if not hubs.REPO.fullmatch(repo):
        raise NotFound
    try:
        told = catalogue.repository(services.asker(hub.source, request.actor), repo)
    except HubTrouble:
        return go(request, _address(hub.source, repo))
    choice = next((choice for choice in picks.choices(told.files) if choice.complete), None)
    spot = contexts.best_place(hub, choice, told) if choice is not None else None
    if choice is None or spot is None:
        return go(request, _address(hub.source, repo))
    try:
        row = services.start(spot[0], services.Wish(hub, told, choice, spot[1]), actor=request.actor)
    except PanelError as exc:
        messages.warning(request, f"{exc.text} {exc.hint_text}")
        return go(request, _address(hub.source, repo))
    return go(request, reverse("download", args=[row.pk]))


# --- access to hubs ---------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@right("models.download")
def tokens(request: HttpRequest) -> HttpResponse:
    form = AccessForm(request.POST or None)
    may_team = can(request.actor, access.TEAM)
    if form.is_valid():
        values = form.cleaned_data
        try:
            access.keep(values["source"], values["token"], team=values["team"], actor=request.actor)
        except Invalid as exc:
            put_errors(form, exc)
        else:
            messages.success(request, _("The token is kept. It is sealed and shown nowhere again."))
            return go(request, reverse("download-access"))
    context = contexts.access_page(form, request.actor, may_team=may_team)
    if form.is_bound:
        return form_again(request, "models_catalog/downloads/access.html", context)
    return page(request, "models_catalog/downloads/access.html", context)


@require_POST
@right("models.download")
def remove_token(request: HttpRequest, pk: int) -> HttpResponse:
    access.remove(queries.access(pk, request.actor.id), actor=request.actor)
    return go(request, reverse("download-access"))
