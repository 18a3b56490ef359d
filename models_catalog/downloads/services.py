"""Downloads: start, pause, resume, cancel. Each act and its audit row are one transaction.

Acts order jobs; what became of them is written by outcomes.py. Whoever moves a download locks its host first (fleet
services.lock_host), so that the host's queue is one. A paused or failed one keeps what came: the next job finds it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from models_catalog.downloads import access, events, hubs, origins, places
from models_catalog.downloads.asking import Asker
from models_catalog.downloads.catalogue import Repo
from models_catalog.downloads.models import ACTIVE, Download, Source, State
from models_catalog.downloads.picks import Choice
from models_catalog.models import Copy
from panel import audit
from panel.accounts.access import require
from panel.accounts.actor import name_of
from panel.core.errors import Conflict, Invalid, NotFound
from panel.fleet import services as fleet
from panel.fleet import wire
from panel.fleet.models import Host
from panel.fleet.wire_models import MAX_FILES

RIGHT = "models.download"
STOP_GRACE_S = 20.0
MOST_WAITING = 200  # of one host

Act = TypeVar("Act", bound=Callable[..., Any])


class Forbidden(Conflict):
    code = "download.forbidden"
    message = _("The owner of this host does not allow Berth to download models.")
    hint = _(
        "Set allow_download to true in the agent's settings (agent.json) on the host, and start the agent again; "
        "or copy the files there yourself and look for models."
    )


class Incomplete(Conflict):
    code = "download.incomplete"
    message = _("The hub does not have this model whole, or gives no sums to compare it with.")
    hint = _("Choose another form of it, another branch, or another repository.")


class Unknown(NotFound):
    code = "download.unknown_origin"
    message = _("Berth does not know where this copy came from, so it cannot fetch its files again.")
    hint = _("Download the model anew, or copy the missing files to the host, then look for models.")


def guarded(act: Act) -> Act:
    """Before the transaction, so that the record of a refusal outlives it. The actor None is the loop itself."""

    @functools.wraps(act)
    def inner(*args: Any, actor: Any, **kwargs: Any) -> Any:
        if actor is not None:
            require(actor, RIGHT)
        return act(*args, actor=actor, **kwargs)

    return cast(Act, inner)


@dataclass(frozen=True)
class Wish:
    """What to fetch, as the hub told of it just now, and where to.

    `limit_mib_s`: None as the settings say, 0 as fast as it goes.
    """

    hub: hubs.HubAt
    repo: Repo
    choice: Choice
    folder: str
    limit_mib_s: float | None = None

    @property
    def limit(self) -> float:
        return settings.BERTH_DOWNLOAD_LIMIT_MIB_S if self.limit_mib_s is None else self.limit_mib_s


def asker(source: str, actor: Any) -> Asker:
    """The hub with the token of this person or of the team. Raises Invalid for a hub that is not known."""
    try:
        return Asker(hubs.at(source), access.token_for(source, actor))
    except ValueError as exc:
        raise Invalid({"source": _("There is no such hub.")}) from exc


# --- start ------------------------------------------------------------------------------------------------------------


@guarded
@transaction.atomic
def start(host: Host, wish: Wish, *, actor: Any) -> Download:
    """Have a host fetch a model. The same again while it goes on is the same one. Raises Invalid, Conflict."""
    fleet.lock_host(host.pk)
    host.refresh_from_db()
    _check(host, wish)
    layout, name = places.layout(wish.folder, wish.repo.found.repo)
    files = [file.as_order() for file in wish.choice.files]
    same = Download.objects.filter(
        host=host, source=wish.hub.source, repo=wish.repo.found.repo, revision=wish.repo.commit, folder=wish.folder
    )
    for row in same.filter(state__in=[*ACTIVE, State.PAUSED, State.FAILED]).select_related("host"):
        if {file["path"] for file in row.files} == {file["path"] for file in files}:
            if row.state in ACTIVE:
                return row
            row.limit_mib_s = wish.limit
            # A branch that moved on since then: what the hub tells now counts, else its old sums would fail for ever.
            row.files, row.bytes_total, row.licence = files, wish.choice.size, wish.repo.found.licence
            return _again(row, actor, "download.resumed")
    if Download.objects.filter(host=host, state=State.WAITING).count() >= MOST_WAITING:
        raise Conflict("download.queue_full", _("This host has enough downloads in its queue."), "")
    row = Download(
        host=host,
        source=wish.hub.source,
        endpoint=wish.hub.endpoint,
        repo=wish.repo.found.repo,
        revision=wish.repo.commit,
        ref=wish.repo.ref if wish.repo.ref != wish.repo.commit else "",
        label=wish.choice.label[:120],
        licence=wish.repo.found.licence,
        files=files,
        folder=wish.folder,
        layout=layout,
        name=name,
        limit_mib_s=wish.limit,
        bytes_total=wish.choice.size,
        asked_by=name_of(actor),
        asked_by_id=getattr(actor, "id", None),
    )
    return _queue(row, actor, "download.started")


def _check(host: Host, wish: Wish) -> None:
    if host.forgotten_at is not None:
        raise Conflict("host.forgotten", _("This host does not belong to the panel any more."), "")
    if host.facts.get("allow_download") is False:
        raise Forbidden
    place = next((place for place in places.of(host) if place.path == wish.folder), None)
    if place is None:
        raise Invalid({"folder": _("Choose one of the model folders of this host.")})
    if place.cache and wish.hub.source != Source.HUGGINGFACE:
        raise Invalid({"folder": _("This is the cache of Hugging Face tools. Choose a plain folder of models.")})
    if not wish.choice.complete or not wish.choice.files or len(wish.choice.files) > MAX_FILES:
        raise Incomplete
    if not 0 <= wish.limit <= 1e6:
        raise Invalid({"limit_mib_s": _("Give MiB per second, or 0 for no limit.")})


def _again(row: Download, actor: Any, verb: str) -> Download:
    """Go on with one that ended: from the hub's address of now, and with the access of whoever goes on with it."""
    row.endpoint = hubs.at(row.source).endpoint  # a mirror that was set since then counts
    person = getattr(actor, "id", None)
    if access.has_own(row.source, person):
        row.asked_by_id = person
    row.moved_by = name_of(actor)
    return _queue(row, actor, verb)


def _queue(row: Download, actor: Any, verb: str) -> Download:
    """Put it at the end of its host's queue, and begin it when there is room. The host is locked."""
    row.state, row.job, row.refusal, row.ended_at = State.WAITING, None, None, None
    row.queued_at = timezone.now()
    row.save()
    audit.record(verb, row, actor=actor, host=row.host.name, hub=row.get_source_display())
    advance(row.host)
    row.refresh_from_db()
    events.announce(row)
    return row


def advance(host: Host) -> None:
    """Order the next downloads of a host, as many as may go on at the same time. The host is locked."""
    rows = Download.objects.filter(host=host, state__in=ACTIVE)
    room = settings.BERTH_DOWNLOADS_PER_HOST - rows.exclude(job=None).count()
    for row in rows.filter(state=State.WAITING, job=None).order_by("queued_at")[: max(0, room)]:
        row.job = fleet.order_job(host=host, task=task_of(row), grace_s=STOP_GRACE_S)
        row.tries += 1
        row.save(update_fields=["job", "tries", "updated_at"])
        events.announce(row)


def task_of(row: Download, *, discard: bool = False) -> wire.DownloadTask:
    """The order for the host; the token is the one of whoever asked, as it is now."""
    fields, secret = hubs.proxy_fields()
    token = _token(row)
    env = {**secret, **({hubs.TOKEN_ENV[Source(row.source)]: token} if token and not discard else {})}
    return wire.DownloadTask.model_validate(
        {
            "source": row.source,
            "endpoint": row.endpoint,
            "repo": row.repo,
            "revision": row.revision,
            "ref": row.ref if row.layout == "hf_cache" else "",
            "files": row.files,
            "folder": row.folder,
            "layout": row.layout,
            "name": row.name,
            "limit_mib_s": row.limit_mib_s,
            "stall_s": settings.BERTH_DOWNLOAD_STALL_S,
            "replace": row.replace,
            "discard": discard,
            "secret_env": env,
            **fields,
        }
    )


def _token(row: Download) -> str:
    """For the address that the download was made for; a mirror that was set since gets no token of it."""
    if hubs.at(row.source).endpoint != row.endpoint:
        return ""
    return access.token_of(row.source, row.asked_by_id)


# --- pause, resume, cancel --------------------------------------------------------------------------------------------


def _locked(download: Download) -> Download:
    fleet.lock_host(download.host_id)
    return Download.objects.select_for_update(of=("self",)).select_related("host").get(pk=download.pk)


@guarded
@transaction.atomic
def pause(download: Download, *, actor: Any) -> Download:
    """Stop it and keep what came. Pressed twice, or when it is over, it changes nothing."""
    row = _locked(download)
    if row.state not in (State.WAITING, State.RUNNING):
        return row
    row.moved_by = name_of(actor)
    audit.record("download.paused", row, actor=actor, host=row.host.name)
    return _stop(row, State.PAUSING, State.PAUSED)


@guarded
@transaction.atomic
def cancel(download: Download, *, actor: Any) -> Download:
    """Stop it and delete what came of it. Pressed twice, or when it is done, it changes nothing."""
    row = _locked(download)
    if row.state in (State.CANCELLING, State.CANCELLED, State.DONE):
        return row
    row.moved_by = name_of(actor)
    audit.record("download.cancelled", row, actor=actor, host=row.host.name)
    return _stop(row, State.CANCELLING, State.CANCELLED)


def _stop(row: Download, going: State, over: State) -> Download:
    if row.state in ACTIVE and row.job_id:
        row.state = going
        row.save(update_fields=["state", "moved_by", "updated_at"])
        fleet.stop_job(row.job_id, grace_s=STOP_GRACE_S)
        events.announce(row)
        return row
    ended(row, over)
    return row


def ended(row: Download, state: State, refusal: dict[str, Any] | None = None) -> None:
    """Write an end, delete what a cancelled one left, and begin the next. The host is locked."""
    row.state, row.refusal, row.ended_at = state, refusal, timezone.now()
    row.save()
    if state == State.CANCELLED and row.tries and row.host.forgotten_at is None:
        fleet.order_job(host=row.host, task=task_of(row, discard=True), grace_s=STOP_GRACE_S)
    if row.host.forgotten_at is None:
        advance(row.host)
    events.announce(row)


def go_on(row: Download) -> None:
    """The panel itself goes on with one that its host's restart ended. The host is locked."""
    _queue(row, None, "download.resumed")


@guarded
@transaction.atomic
def resume(download: Download, *, actor: Any) -> Download:
    """Go on where it ended: of a paused, failed or cancelled one. While it goes on it changes nothing."""
    row = _locked(download)
    if row.state not in (State.PAUSED, State.FAILED, State.CANCELLED):
        return row
    if row.host.facts.get("allow_download") is False:
        raise Forbidden
    return _again(row, actor, "download.resumed")


@guarded
@transaction.atomic
def repair(copy: Copy, *, actor: Any) -> Download:
    """Fetch again what a copy lacks or what is damaged: the host compares all files and fetches those only.

    Raises Unknown when the copy did not come by a download of this panel.
    """
    fleet.lock_host(copy.host_id)
    row = origins.of(copy)
    if row is None:
        raise Unknown
    if row.state in ACTIVE:
        return row
    row.replace = True
    return _again(row, actor, "download.repaired")
