"""The settings that a deployment had, as its page shows them: what changed from one to the next, and the way back."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from deployments import revisions as store
from deployments import setting_words
from deployments.models import Deployment, Revision
from deployments.spec import DeploymentSpec, diff
from panel.core.mask import mask
from panel.fleet.models import Runtime
from panel.fleet.wording import engine

SHOWN = 10


def revisions(row: Deployment, before: int | None = None) -> dict[str, Any]:
    """The newest settings first, or the newest before a number: each with what it changed and the start that tells
    most of it. Nothing while there is only one. Four queries."""
    found = row.revisions.all() if before is None else row.revisions.filter(number__lt=before)
    rows = list(found.order_by("-number")[: SHOWN + 1])
    if before is None and len(rows) < 2:
        return {}
    older = rows[SHOWN - 1].number if len(rows) > SHOWN else None
    return {"revisions": _rows(row, rows), "older_settings": older, "newest_settings": before is not None}


def _rows(row: Deployment, rows: list[Revision]) -> list[dict[str, Any]]:
    specs = [DeploymentSpec.model_validate(revision.spec) for revision in rows]
    engines = _engines({spec.runtime_id for spec in specs if spec.runtime_id is not None})
    starts = store.best_starts(rows[:SHOWN])
    said = store.differing(row, [revision.number for revision in rows])
    if not rows:
        return []
    befores: list[DeploymentSpec | None] = [*specs[1:], None]
    return [
        {
            "revision": revision,
            "current": revision.pk == row.revision_id,
            "changes": [_change(*item, engines) for item in diff(before, spec).items()] if before else [],
            "first": before is None and revision.number == 1,
            "before": before is not None and revision.number - 1,
            "run": starts.get(revision.pk),
            "said": said.get(revision.number),
        }
        for revision, spec, before in zip(rows, specs, befores, strict=True)
    ][:SHOWN]


def changes_between(old: Revision, new: Revision) -> list[dict[str, Any]]:
    """One row a parameter that differs."""
    before, after = (DeploymentSpec.model_validate(each.spec) for each in (old, new))
    engines = _engines({spec.runtime_id for spec in (before, after) if spec.runtime_id is not None})
    return [_change(*item, engines) for item in diff(before, after).items()]


def _engines(pks: set[int]) -> dict[int, str]:
    rows = Runtime.objects.filter(pk__in=pks).defer("flags").select_related("host")
    return {row.pk: f"{engine(row)} ({row.host.name})" for row in rows}


def _change(name: str, pair: tuple[Any, Any], engines: Mapping[int, str]) -> dict[str, Any]:
    if name == "runtime_id":
        before, after = (_("Berth decides") if pk is None else engines.get(pk, f"#{pk}") for pk in pair)
        return {"name": _("Engine"), "before": before, "after": after}
    before, after = (setting_words.value(name, mask({name: each})[name]) for each in pair)
    called = setting_words.named(name)
    return {"name": called.label, "flag": called.flag, "before": before, "after": after}
