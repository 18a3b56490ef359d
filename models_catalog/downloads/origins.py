"""Which download a copy came from: for its repair, and for what the model's page says of where it is from."""

from collections.abc import Iterable
from datetime import timedelta

from django.urls import reverse
from django.utils import timezone

from models_catalog.downloads import hubs
from models_catalog.downloads.models import ACTIVE, Download, Source, State
from models_catalog.models import Copy
from models_catalog.shelf import came_by
from panel.fleet.models import Host

NEWEST = timedelta(days=1)
_SHORT = ("host", "folder", "layout", "name", "repo", "revision", "made", "state", "source", "created_at")


def of(copy: Copy) -> Download | None:
    """The newest download that put a copy where it lies, if any."""
    found = _found([copy]).get(copy.pk)
    return Download.objects.select_related("host").get(pk=found.pk) if found is not None else None


def known(copies: list[Copy]) -> set[int]:
    """The copies, by id, that came by a download; in one query."""
    return set(_found(copies))


def running(copies: list[Copy]) -> dict[int, str]:
    """By copy, the page of the download that is at work on its files now; in one query."""
    found = _found(copies)
    return {pk: reverse("download", args=[row.pk]) for pk, row in found.items() if row.state in ACTIVE}


def _found(copies: Iterable[Copy]) -> dict[int, Download]:
    wanted = list(copies)
    rows = Download.objects.filter(host_id__in={copy.host_id for copy in wanted}).order_by("created_at")
    found: dict[int, Download] = {}
    for row in rows.only(*_SHORT).iterator():
        for copy in wanted:
            if copy.host_id == row.host_id and (copy.path in row.made or _is_below(copy.path, row)):
                found[copy.pk] = row
    return found


def _is_below(path: str, row: Download) -> bool:
    base = row.folder.rstrip("/")
    if row.layout == "hf_cache":
        base = f"{base}/models--{row.repo.replace('/', '--')}/snapshots/{row.revision}"
    else:
        base = f"{base}/{row.name}"
    return path == base or path.startswith(f"{base}/")


def page_of(row: Download) -> str:
    """The model's page on the hub."""
    return hubs.HubAt(Source(row.source), row.endpoint).page_of(row.repo)


def note(host: Host) -> None:
    """After a search: tell the catalog who had what it found fetched, and from where. Twice changes nothing."""
    recent = Download.objects.filter(host=host, state=State.DONE, ended_at__gt=timezone.now() - NEWEST)
    for row in recent.defer("files"):
        copies = Copy.objects.filter(host=host, path__in=row.made, present=True)
        for copy in copies.select_related("artifact__model"):
            place = hubs.HubAt(Source(row.source), row.endpoint).mirror or row.get_source_display()
            came_by(
                copy.artifact.model,
                by=row.asked_by,
                since=row.created_at,
                host=host.name,
                place=f"{place}: {row.repo}",
                source_url=page_of(row),
            )
