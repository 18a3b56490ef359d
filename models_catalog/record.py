"""What a finished scan found becomes rows: models, artifacts, copies, folders. One transaction, few statements."""

import hashlib
import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from models_catalog.facts import ModelFacts, Problem
from models_catalog.models import COPY_FACTS, Artifact, CatalogModel, Copy, ScannedRoot
from models_catalog.shelf import withdraw_changed
from panel.core.locks import Lock, lock_until_commit
from panel.fleet import wire
from panel.fleet.models import Host
from panel.fleet.wire_base import is_absurd

log = logging.getLogger(__name__)

MOST_NUMBER = 1 << 64  # of what a file says of itself; headers hold no larger one
MOST_FINGERPRINT = 64
MOST_CODE = 100  # files of code that a scan lists
UNFINISHED = frozenset({"too_many_entries", "not_scanned"})  # what was not seen may still be there
WHOLE = ""  # the path of the ScannedRoot that stands for the scan as a whole
UNSEEN = frozenset({"no_permission", "cannot_read", "too_deep", "link_outside"})  # what lies below was not looked at


@dataclass
class Outcome:
    """Counts for the log and tests."""

    seen: int = 0
    gone: int = 0
    unreadable: int = 0


@dataclass
class _Item:
    path: str
    root: str
    format: str
    name: str
    size: int
    facts: ModelFacts
    problems: list[dict[str, Any]]

    @property
    def usable(self) -> bool:
        return not any(Problem.model_validate(problem).blocking for problem in self.problems)

    def copy_values(self) -> dict[str, Any]:
        own = self.facts.to_dict()
        code = {"code": _code(self.facts)} if self.facts.needs_remote_code else {}
        return {
            "root": self.root,
            "present": True,
            "usable": self.usable,
            "problems": self.problems,
            "extra": {name: own[name] for name in COPY_FACTS} | code,
        }

    def artifact_values(self) -> dict[str, Any]:
        shared = {name: value for name, value in self.facts.to_dict().items() if name not in COPY_FACTS}
        label = (self.facts.label or self.format)[:200]
        return {"format": self.format, "label": label, "size_bytes": self.size, "facts": shared}


def _code(facts: ModelFacts) -> list[list[str]]:
    """[[file, SHA-256], …] of its program code. A list that may be cut off is never wholly known."""
    sums = {file.name: file.sha256 for file in facts.files if file.kind == "code"}
    found = {name: sums.get(name, "") for name in [*facts.code_files, *sums]}
    if len(found) >= MOST_CODE:
        found["…"] = ""
    return [[name, found[name]] for name in sorted(found)]


@dataclass
class _Scan:
    items: dict[str, _Item] = field(default_factory=dict)
    roots: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unreadable: int = 0


@transaction.atomic
def record_scan(host: Host, items: list[dict[str, Any]], *, seen_at: datetime | None = None) -> Outcome:
    """Write what a scan of `host` found (wire.ScannedModel dicts); the same result twice changes nothing.

    A root is known by its item of format "folder". Copies below such a root that the scan did not see become
    present=False, unless the scan says that it could not look there. A result older than what is known of a root
    is left out for that root.
    """
    lock_until_commit(Lock.CATALOG)
    at = seen_at or timezone.now()
    scan = _read(host, items)
    newer = set(
        ScannedRoot.objects.filter(host=host, path__in=scan.roots, scanned_at__gt=at).values_list("path", flat=True)
    )
    scan.roots = {path: problems for path, problems in scan.roots.items() if path not in newer}
    scan.items = {path: item for path, item in scan.items.items() if item.root not in newer}
    known = {copy.path: copy for copy in Copy.objects.filter(host=host).select_related("artifact")}
    artifacts = _artifacts(host, scan, known)
    _copies(host, scan, known, artifacts, at)
    withdraw_changed(
        {artifacts[item.facts.fingerprint].model_id for item in scan.items.values() if item.facts.needs_remote_code}
    )
    gone = _vanished(host, scan)
    _roots(host, scan, at)
    return Outcome(seen=len(scan.items), gone=gone, unreadable=scan.unreadable)


def _read(host: Host, items: list[dict[str, Any]]) -> _Scan:
    scan = _Scan()
    for raw in items:
        try:
            found = wire.ScannedModel.model_validate(raw)
            problems = [problem.model_dump(mode="json") for problem in found.problems]
            if found.format == "folder":
                scan.roots[found.path[:1000]] = problems
                continue
            facts = ModelFacts.from_dict({"format": found.format, **found.facts})
            if is_absurd(found.facts, MOST_NUMBER) or len(facts.fingerprint) > MOST_FINGERPRINT:
                raise ValueError("no such model is there")
        except ValueError as exc:  # also pydantic's
            log.warning("an item of the scan of %s is not readable: %s", host, str(exc)[:200])
            scan.unreadable += 1
            continue
        if not facts.fingerprint:  # nothing to hash: then only the place tells it apart
            place = hashlib.sha256(f"{host.pk}:{found.path}".encode()).hexdigest()
            facts = facts.model_copy(update={"fingerprint": place})
        name = found.name[:200] or "model"
        scan.items[found.path[:1000]] = _Item(
            found.path[:1000], found.root[:1000], found.format, name, found.size_bytes, facts, problems
        )
    return scan


def _artifacts(host: Host, scan: _Scan, known: dict[str, Copy]) -> dict[str, Artifact]:
    """The artifact of each fingerprint of the scan: known, updated in place, or new."""
    wanted = {item.facts.fingerprint: item for item in scan.items.values()}
    found = {row.fingerprint: row for row in Artifact.objects.filter(fingerprint__in=wanted)}
    changed = [row for print_, row in found.items() if _update(row, wanted[print_])]
    sole = _sole_owners(known.values())
    for path, item in scan.items.items():
        copy = known.get(path)
        if item.facts.fingerprint in found or copy is None or copy.artifact_id not in sole:
            continue
        # The files changed under a path that nobody else has: the artifact, which deployments name, goes along.
        row = copy.artifact
        sole.discard(row.pk)
        row.fingerprint = item.facts.fingerprint
        _update(row, item)
        found[row.fingerprint] = row
        changed.append(row)
    if changed:
        fields = ["fingerprint", "format", "label", "size_bytes", "facts", "fits_for", "updated_at"]
        Artifact.objects.bulk_update(changed, fields)
    fresh = {print_: item for print_, item in wanted.items() if print_ not in found}
    models = _models({item.name: item for item in fresh.values()}, host)
    made = Artifact.objects.bulk_create(
        Artifact(model=models[item.name], fingerprint=print_, **item.artifact_values())
        for print_, item in fresh.items()
    )
    return found | {row.fingerprint: row for row in made}


def _update(row: Artifact, item: _Item) -> bool:
    """Take over what the scan says; True when something differs."""
    values = item.artifact_values()
    if all(getattr(row, name) == value for name, value in values.items()):
        return False
    for name, value in values.items():
        setattr(row, name, value)
    row.fits_for = ""  # the estimate is made anew
    row.updated_at = timezone.now()
    return True


def _sole_owners(copies: Any) -> set[int]:
    """Artifacts of these copies that have no other copy anywhere."""
    ids = {copy.artifact_id for copy in copies}
    rows = Artifact.objects.filter(pk__in=ids).annotate(n=Count("copies")).filter(n=1)
    return set(rows.values_list("pk", flat=True))


def _models(items: dict[str, _Item], host: Host) -> dict[str, CatalogModel]:
    """Models by name; new ones remember where they were found first."""
    found = {row.name: row for row in CatalogModel.objects.filter(name__in=items)}
    made = CatalogModel.objects.bulk_create(
        CatalogModel(
            name=name, added_from={"how": "found", "host": host.name, "place": item.facts.source, "path": item.path}
        )
        for name, item in sorted(items.items())
        if name not in found
    )
    return found | {row.name: row for row in made}


def _copies(host: Host, scan: _Scan, known: dict[str, Copy], artifacts: dict[str, Artifact], at: datetime) -> None:
    same, written, left = [], [], set()
    for path, item in scan.items.items():
        artifact, values, copy = artifacts[item.facts.fingerprint], item.copy_values(), known.get(path)
        if copy is not None:
            if copy.artifact_id == artifact.pk and all(getattr(copy, name) == value for name, value in values.items()):
                same.append(copy.pk)
                continue
            if copy.artifact_id != artifact.pk and not copy.usable:
                left.add(copy.artifact_id)
        written.append(Copy(host=host, path=path, artifact=artifact, seen_at=at, **values))
    Copy.objects.filter(pk__in=same).update(seen_at=at)
    Copy.objects.bulk_create(
        written,
        update_conflicts=True,
        unique_fields=["host", "path"],
        update_fields=["artifact", "root", "present", "usable", "problems", "extra", "seen_at", "updated_at"],
    )
    if left:  # a half download that became whole: nothing can refer to the half
        Artifact.objects.filter(pk__in=left, copies=None).delete()
        CatalogModel.objects.filter(artifacts=None, notes="", tags=[], approved=False).delete()


def _below(path: str) -> Q:
    return Q(path=path) | Q(path__startswith=path.rstrip("/") + "/")


def _vanished(host: Host, scan: _Scan) -> int:
    """Copies below the scanned roots that were not seen."""
    scanned, unsure = Q(), Q()
    for root, problems in scan.roots.items():
        codes = {str(problem.get("code")) for problem in problems}
        if UNFINISHED & codes:
            continue
        scanned |= _below(root)
        for problem in problems:
            folder = problem.get("params", {}).get("folder") or problem.get("params", {}).get("file")
            if problem.get("code") in UNSEEN and folder:
                unsure |= _below(str(folder))
    if not scanned:
        return 0
    rows = Copy.objects.filter(scanned, host=host, present=True).exclude(path__in=scan.items)
    return rows.exclude(unsure).update(present=False) if unsure else rows.update(present=False)


def _roots(host: Host, scan: _Scan, at: datetime) -> None:
    problems = [{"code": "unreadable_items", "params": {"n": scan.unreadable}}] if scan.unreadable else []
    rows = {**scan.roots, WHOLE: problems}
    ScannedRoot.objects.bulk_create(
        [ScannedRoot(host=host, path=path, problems=found, scanned_at=at) for path, found in rows.items()],
        update_conflicts=True,
        unique_fields=["host", "path"],
        update_fields=["problems", "scanned_at", "updated_at"],
    )
