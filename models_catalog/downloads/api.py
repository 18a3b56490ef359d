"""Downloads for programs: search a hub, see what a model is made of, have a host fetch it, follow it."""

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema, Status

from models_catalog.downloads import catalogue, contexts, fits, hubs, picks, places, queries, services, wording
from models_catalog.downloads.asking import HubTrouble
from models_catalog.downloads.models import Download
from models_catalog.fits import engine_version
from panel.core.api import Page, Paging, Reason, Token, answers, page_of
from panel.core.errors import Invalid, PanelError
from panel.core.idempotency import key_header, once
from panel.fleet.models import Host

router = Router(tags=["models"])
Hub = Literal["huggingface", "modelscope"]
REPO = f"^{hubs.REPO.pattern}$"


class HubRefuses(PanelError):
    """The hub's answer, or none, as the panel's own error: 424, since nothing of the panel itself is broken."""

    status = 424

    @classmethod
    def of(cls, trouble: HubTrouble) -> "HubRefuses":
        words = wording.asked(trouble.as_dict())
        return cls(words.code, words.text, words.hint)


# --- shapes -----------------------------------------------------------------------------------------------------------


class HubModelOut(Schema):
    repo: str
    licence: str
    downloads: int | None
    likes: int | None
    size_bytes: int | None
    gated: bool
    task: str


class HubModelsOut(Schema):
    hub: str
    endpoint: str
    mirror: bool
    items: list[HubModelOut]


class HubFilter(Schema):
    q: str = Field(..., min_length=1, max_length=200, description=_("Words of the model's name."))
    source: Hub = "huggingface"


class RepoFilter(Schema):
    repo: str = Field(..., pattern=REPO, examples=["acme/tiny"], description=_("Owner and name."))
    source: Hub = "huggingface"
    ref: str = Field("", max_length=200, description=_("Branch, tag or commit; empty: the main branch."))


class HostFitOut(Schema):
    """By the configuration where it can be read, else by the size."""

    host: str
    verdict: Literal["fits", "tight", "does_not_fit", "unknown"]
    gpus: int = Field(description=_("How many GPUs it takes; 0: in the RAM."))
    card: str


class ChoiceOut(Schema):
    key: str = Field(description=_("Give it as `choice` to download it."))
    label: str
    format: Literal["hf", "gguf"]
    size_bytes: int
    files: list[str]
    complete: bool
    fits: list[HostFitOut]


class RepoOut(HubModelOut):
    commit: str
    refs: list[str]
    choices: list[ChoiceOut]


class DownloadIn(Schema):
    model_config = {"extra": "forbid"}

    host: str = Field(max_length=64, description=_("Name of the host."), examples=["quay"])
    repo: str = Field(max_length=200, examples=["acme/tiny"])
    source: Hub = "huggingface"
    ref: str = Field("", max_length=200)
    choice: str = Field("", max_length=300, description=_("Key of a choice; empty: the only or the usual one."))
    folder: str = Field("", max_length=1000, description=_("A model folder of the host; empty: the one that suits."))
    limit_mib_s: float | None = Field(None, ge=0, le=1e6)


class DownloadOut(Schema):
    id: uuid.UUID
    host: str
    source: Hub
    endpoint: str
    repo: str
    revision: str
    ref: str
    label: str
    folder: str
    state: Literal["waiting", "running", "pausing", "paused", "cancelling", "cancelled", "done", "failed"]
    stage: str = Field(description=_("As `state`; a running one is `running` or `verifying`."))
    bytes_done: int
    bytes_total: int
    rate: int = Field(description=_("Bytes per second of the last seconds."))
    left_s: int | None
    silent_s: int = Field(description=_("Seconds without a byte, once they are 60."))
    reason: Reason | None
    made: list[str]
    tries: int
    asked_by: str
    moved_by: str = Field(description=_("Who paused, resumed or cancelled it last; empty: nobody."))
    created_at: datetime
    ended_at: datetime | None


class DownloadFilter(Paging):
    host: str = Field("", max_length=64, description=_("Name of the host."))
    state: Literal["", "waiting", "running", "pausing", "paused", "cancelling", "cancelled", "done", "failed"] = ""


# --- rows into shapes -------------------------------------------------------------------------------------------------


def _found_out(found: catalogue.Found) -> dict[str, Any]:
    names = ("repo", "licence", "downloads", "likes", "gated", "task")
    return {**{name: getattr(found, name) for name in names}, "size_bytes": found.size}


def _choice_out(choice: picks.Choice, repo: catalogue.Repo, hosts: list[Host], version: str) -> dict[str, Any]:
    needs = fits.needs_of(choice, repo.config)
    where = [(host.name, fits.fit(choice, needs, places.machine(host, "/"), version)) for host in hosts]
    return {
        **{name: getattr(choice, name) for name in ("key", "label", "format", "complete")},
        "size_bytes": choice.size,
        "files": [file.path for file in choice.files],
        "fits": [{"host": name, "verdict": at.verdict, "gpus": at.gpus, "card": at.card} for name, at in where],
    }


def download_out(row: Download) -> dict[str, Any]:
    names = ("id", "source", "endpoint", "repo", "revision", "ref", "label", "folder", "state", "made", "tries")
    told = contexts.numbers(row)
    return {
        **{name: getattr(row, name) for name in (*names, "asked_by", "moved_by", "created_at", "ended_at")},
        "host": row.host.name,
        "stage": contexts.stage(row),
        "bytes_done": told["done"],
        "bytes_total": told["total"],
        "rate": told["rate_bytes"],
        "left_s": told["left_s"],
        "silent_s": told["silent"],
        "reason": Reason.of(wording.failure(row.refusal)) if row.refusal else None,
    }


def _downloads(rows: Iterable[Download]) -> Iterable[dict[str, Any]]:
    return map(download_out, queries.fresh(rows))


# --- hubs -------------------------------------------------------------------------------------------------------------


def _repo(source: str, repo: str, ref: str, actor: Any) -> catalogue.Repo:
    if not hubs.REPO.fullmatch(repo) or "\0" in ref:
        raise Invalid({"repo": gettext("Give owner and name, such as acme/tiny.")})
    try:
        return catalogue.repository(services.asker(source, actor), repo, ref)
    except HubTrouble as exc:
        raise HubRefuses.of(exc) from exc


@router.get(
    "/hub/models",
    response=answers({200: HubModelsOut}, 424),
    auth=Token("models.download"),
    summary=_("Search a hub for models"),
)
def search_hub(request: HttpRequest, asked: Query[HubFilter]) -> Any:
    hub = hubs.at(asked.source)
    try:
        found = catalogue.search(services.asker(asked.source, request.auth), asked.q)
    except HubTrouble as exc:
        raise HubRefuses.of(exc) from exc
    rows = [_found_out(item) for item in found]
    return {"hub": hub.name, "endpoint": hub.endpoint, "mirror": bool(hub.mirror), "items": rows}


@router.get(
    "/hub/model",
    response=answers({200: RepoOut}, 404, 424),
    auth=Token("models.download"),
    summary=_("A model on a hub: what can be downloaded of it, and where it fits"),
)
def get_hub_model(request: HttpRequest, asked: Query[RepoFilter]) -> Any:
    told = _repo(asked.source, asked.repo, asked.ref, request.auth)
    hosts, version = queries.hosts(), engine_version()
    return {
        **_found_out(told.found),
        "commit": told.commit,
        "refs": list(told.refs),
        "choices": [_choice_out(choice, told, hosts, version) for choice in picks.choices(told.files)],
    }


# --- downloads --------------------------------------------------------------------------------------------------------


@router.get(
    "/downloads", response=answers({200: Page[DownloadOut]}), auth=Token("models.view"), summary=_("List downloads"),
    description=_("Newest first."),
)  # fmt: skip
def list_downloads(request: HttpRequest, asked: Query[DownloadFilter]) -> Any:
    rows = queries.every()
    if asked.host:
        rows = rows.filter(host__name=asked.host)
    if asked.state:
        rows = rows.filter(state=asked.state)
    return page_of(rows, asked, _downloads, key="created_at", newest=True)


@router.post(
    "/downloads",
    response=answers({201: DownloadOut}, 409, 413, 424),
    auth=Token("models.download"),
    summary=_("Have a host download a model"),
)
def start_download(request: HttpRequest, body: DownloadIn, response: HttpResponse, key: str = key_header()) -> Any:
    host = Host.objects.filter(name=body.host, forgotten_at=None).first()
    if host is None:
        raise Invalid({"host": gettext("There is no host with this name.")})

    def make() -> DownloadOut:
        told = _repo(body.source, body.repo, body.ref, request.auth)
        choice = _chosen(told, body.choice)
        suited = places.suits(host, body.source, choice.format)
        folder = body.folder or (suited[0].path if suited else "")
        wish = services.Wish(hubs.at(body.source), told, choice, folder, body.limit_mib_s)
        return DownloadOut(**download_out(services.start(host, wish, actor=request.auth)))

    return Status(201, once(request, response, key, make))


def _chosen(told: catalogue.Repo, key: str) -> picks.Choice:
    found = picks.choices(told.files)
    choice = next((one for one in found if one.key == key), None) if key else contexts.usual(found)
    if choice is None:
        raise Invalid({"choice": gettext("There is no such form of this model.")})
    return choice


@router.get(
    "/downloads/{uuid:download_id}",
    response=answers({200: DownloadOut}, 404),
    auth=Token("models.view"),
    summary=_("One download"),
)
def get_download(request: HttpRequest, download_id: uuid.UUID) -> Any:
    return download_out(queries.one(download_id))


def _moved(request: HttpRequest, download_id: uuid.UUID, act: Any) -> Any:
    return Status(202, download_out(act(queries.one(download_id), actor=request.auth)))


@router.post(
    "/downloads/{uuid:download_id}/pause", response=answers({202: DownloadOut}, 404, 409),
    auth=Token("models.download"), summary=_("Pause a download"),
)  # fmt: skip
def pause_download(request: HttpRequest, download_id: uuid.UUID) -> Any:
    return _moved(request, download_id, services.pause)


@router.post(
    "/downloads/{uuid:download_id}/resume", response=answers({202: DownloadOut}, 404, 409),
    auth=Token("models.download"), summary=_("Resume a download where it ended"),
)  # fmt: skip
def resume_download(request: HttpRequest, download_id: uuid.UUID) -> Any:
    return _moved(request, download_id, services.resume)


@router.post(
    "/downloads/{uuid:download_id}/cancel", response=answers({202: DownloadOut}, 404, 409),
    auth=Token("models.download"), summary=_("Cancel a download and delete what came of it"),
)  # fmt: skip
def cancel_download(request: HttpRequest, download_id: uuid.UUID) -> Any:
    return _moved(request, download_id, services.cancel)
