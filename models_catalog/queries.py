"""Reads for the catalog's pages: a number of queries that does not grow with the rows."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Lower

from models_catalog import uses
from models_catalog.disk import room
from models_catalog.models import Artifact, CatalogModel, Copy, ScannedRoot
from models_catalog.record import WHOLE
from models_catalog.services import roots_of
from panel.core.errors import NotFound
from panel.fleet.models import Host, Job, Runtime
from panel.fleet.wire import JOB_OVER

SHOW = ("", "whole", "problems", "fits", "approved", "unused", "gguf", "embed", "gone")
BY_NAME = [Lower("name"), "pk"]
SORTS: dict[str, list[Any]] = {"name": BY_NAME, "size": ["-size", *BY_NAME], "new": ["-created_at", *BY_NAME]}
SIZES = {"4": (0, 4), "16": (4, 16), "64": (16, 64), "more": (64, 1 << 20)}  # GiB, from and below
TASKS = ("generate", "embed", "score")
FORMATS = ("hf", "gguf")
MAX_WORDS = 5
OF_HOST = ("host__name", "host__is_local", "host__lost_at")  # what pages of models say of a host


@dataclass(frozen=True)
class Wish:
    """What a list is narrowed to; "" is everything. Unknown words of `show`, `size`, `format` and `task` are ""."""

    show: str = ""
    text: str = ""
    host: str = ""
    format: str = ""
    task: str = ""
    size: str = ""
    label: str = ""  # the quantisation or number format, as the list shows it
    tag: str = ""

    def artifacts(self) -> Q:
        """What one and the same form must be."""
        found = Q()
        if self.format in FORMATS or self.show == "gguf":
            found &= Q(format="gguf" if self.show == "gguf" else self.format)
        if self.task in TASKS or self.show == "embed":
            found &= Q(facts__tasks__contains=["embed" if self.show == "embed" else self.task])
        if self.size in SIZES:
            low, high = SIZES[self.size]
            found &= Q(size_bytes__gte=low << 30, size_bytes__lt=high << 30)
        if self.label:
            found &= Q(label=self.label)
        if self.show == "fits":
            found &= Q(fits__best="fits")
        return found


def _artifacts(*wanted: Q, **filters: Any) -> QuerySet[Artifact]:
    return Artifact.objects.filter(*wanted, model=OuterRef("pk"), **filters)


def _copies(**filters: Any) -> QuerySet[Copy]:
    return Copy.objects.filter(artifact__model=OuterRef("pk"), **filters)


def listed(wish: Wish = Wish(), *, sort: str = "") -> QuerySet[CatalogModel]:
    """Models with their artifacts, copies and hosts. Models without files anywhere show only under "gone"."""
    there = _copies(present=True)
    gone = wish.show == "gone"
    rows = CatalogModel.objects.filter(~Exists(there) & Exists(_copies()) if gone else Exists(there))
    if wish.show in ("whole", "problems"):
        rows = rows.filter(Exists(_copies(present=True, usable=wish.show == "whole")))
    elif wish.show == "approved":
        rows = rows.filter(approved=True)
    elif wish.show == "unused":
        rows = rows.filter(~Exists(_artifacts(pk__in=uses.ever_used())))
    if form := wish.artifacts():
        rows = rows.filter(Exists(_artifacts(form) if gone else _artifacts(form, copies__present=True)))
    if wish.host:
        rows = rows.filter(Exists(_copies(present=True, host__name=wish.host)))
    if wish.tag:
        rows = rows.filter(tags__contains=[wish.tag])
    for word in wish.text.split()[:MAX_WORDS]:
        rows = rows.filter(_holds(word))
    if sort == "size":
        largest = Artifact.objects.filter(model=OuterRef("pk")).order_by("-size_bytes").values("size_bytes")[:1]
        rows = rows.annotate(size=Subquery(largest))
    return rows.order_by(*SORTS.get(sort, SORTS["name"])).prefetch_related(*_whole())


def _holds(word: str) -> Q:
    return (
        Q(name__icontains=word)
        | Q(notes__icontains=word)
        | Q(tags__icontains=word)
        | Exists(_artifacts(label__icontains=word))
        | Exists(_artifacts(facts__architectures__icontains=word))
        | Exists(_copies(path__icontains=word))
        | Exists(_copies(host__name__icontains=word))
    )


def labels() -> list[str]:
    """The number formats that are there, for the filter."""
    rows = Artifact.objects.filter(copies__present=True).values_list("label", flat=True)
    return list(rows.order_by("label").distinct()[:100])


def tags() -> list[str]:
    """The tags that people gave, each once."""
    found: dict[str, str] = {}
    for row in CatalogModel.objects.exclude(tags=[]).order_by("name").values_list("tags", flat=True)[:2000]:
        for tag in row:
            found.setdefault(tag.casefold(), tag)
    return [found[key] for key in sorted(found)][:200]


def artifact(pk: int) -> Artifact:
    """A form of a model with its copies. Raises NotFound."""
    row = Artifact.objects.select_related("model").prefetch_related("copies").filter(pk=pk).first()
    if row is None:
        raise NotFound
    return row


def copy(pk: int) -> Copy:
    """A copy with its model and host. Raises NotFound."""
    row = Copy.objects.select_related("host", "artifact__model").filter(pk=pk).first()
    if row is None:
        raise NotFound
    return row


def _whole() -> list[Any]:
    own = [field.name for field in Copy._meta.concrete_fields]
    copies = Copy.objects.select_related("host").only(*own, *OF_HOST).order_by("host__name", "path")
    artifacts = Artifact.objects.prefetch_related(Prefetch("copies", copies))  # that of a model knows its model
    return [Prefetch("artifacts", artifacts)]


def one(pk: int) -> CatalogModel:
    """A model with all that its page shows. Raises NotFound."""
    row = CatalogModel.objects.prefetch_related(*_whole()).filter(pk=pk).first()
    if row is None:
        raise NotFound
    return row


def engines() -> list[Runtime]:
    """The engines that are there and work, on all hosts; without the long schemas of their parsers."""
    rows = Runtime.objects.filter(present=True, refusal__isnull=True).select_related("host")
    own = [field.name for field in Runtime._meta.concrete_fields if field.name != "flags"]
    return list(rows.only(*own, *OF_HOST))


def any_model() -> bool:
    return CatalogModel.objects.exists()


def host_names() -> list[str]:
    return list(Host.objects.order_by("name").values_list("name", flat=True))


def host(pk: int) -> Host:
    """Raises NotFound."""
    row = Host.objects.filter(pk=pk).first()
    if row is None:
        raise NotFound
    return row


@dataclass(frozen=True)
class Folder:
    """A folder that is searched; `added` by an admin, else taken by the agent itself."""

    path: str
    added: bool
    models: int
    problems: list[dict[str, Any]]
    scanned_at: datetime | None


@dataclass(frozen=True)
class HostFolders:
    """A host with its folders, what the newest scan as a whole said, and the scan that runs."""

    host: Host
    folders: list[Folder]
    problems: list[dict[str, Any]]
    scanned_at: datetime | None
    scan: Job | None
    models: int
    bytes: int


def hosts() -> list[HostFolders]:
    """All hosts, in five queries; the database sums their bytes."""
    rows = list(Host.objects.order_by("name"))
    scanned: dict[int, dict[str, ScannedRoot]] = {}
    for root in ScannedRoot.objects.all():
        scanned.setdefault(root.host_id, {})[root.path] = root
    present = Copy.objects.filter(present=True).order_by()
    sums = present.values("host_id").annotate(bytes=Sum(room()))  # a file that several models share takes its room once
    held = {one["host_id"]: int(one["bytes"]) for one in sums}
    copies: dict[int, list[str]] = {}
    for host_id, path in present.values_list("host_id", "path"):
        copies.setdefault(host_id, []).append(path)
    scans = {job.host_id: job for job in _running_scans()}
    return [
        _host_folders(row, scanned.get(row.pk, {}), copies.get(row.pk, []), held.get(row.pk, 0), scans.get(row.pk))
        for row in rows
    ]


def scanning() -> bool:
    """Whether any host looks for models now."""
    return _running_scans().exists()


def _running_scans() -> QuerySet[Job]:
    return Job.objects.filter(kind="scan", open=True, desired="run").exclude(state__in=JOB_OVER).order_by("created_at")


def _host_folders(
    host: Host, scanned: dict[str, ScannedRoot], copies: list[str], size: int, scan: Job | None
) -> HostFolders:
    folders = []
    for path in dict.fromkeys([*roots_of(host), *(path for path in scanned if path != WHOLE)]):
        root = scanned.get(path)
        below = path.rstrip("/") + "/"
        count = sum(place == path or place.startswith(below) for place in copies)
        at, problems = (root.scanned_at, root.problems) if root else (None, [])
        folders.append(Folder(path, path in host.model_roots, count, problems, at))
    whole = scanned.get(WHOLE)
    return HostFolders(
        host=host,
        folders=folders,
        problems=whole.problems if whole else [],
        scanned_at=whole.scanned_at if whole else None,
        scan=scan,
        models=len(copies),
        bytes=size,
    )
