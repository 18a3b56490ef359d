"""Where a smaller form of a model can be had: the catalog's own forms that no host has, and a search on the hub.

Only links: nothing is asked of a hub here. Reads only.
"""

from collections.abc import Mapping
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from pydantic import ValidationError

from deployments.placement import Change
from deployments.planner.nearest import SIZE
from deployments.preflight import Check
from deployments.twins import stem
from models_catalog.contexts_model import source_of
from models_catalog.downloads import hubs
from models_catalog.downloads.models import Source
from models_catalog.facts import ModelFacts
from models_catalog.models import Artifact
from panel.accounts.access import can

TWINS = ("change.twin", "change.twin_away")


def links(check: Check, artifact_id: int, actor: Any) -> dict[str, Any]:
    """`by_artifact`: where each form that is proposed and lies nowhere is fetched; `hub`: where to look for others.

    At most one query, and none where something fits.
    """
    away = [_artifact_of(change) for change in check.changes if change.reason.code == "change.twin_away"]
    may = can(actor, "models.download")
    has_twin = any(change.reason.code in TWINS for change in check.changes)
    wanted = [*away, *([artifact_id] if may and not has_twin and _too_big(check) else [])]
    rows = Artifact.objects.select_related("model").in_bulk(wanted) if wanted else {}
    found = {pk: _fetch(row, may=may) for pk, row in rows.items() if pk in away}
    return {"by_artifact": found, "hub": search(rows[artifact_id]) if artifact_id in rows else None}


def _artifact_of(change: Change) -> int:
    return int(change.reason.params["artifact"])


def _too_big(check: Check) -> bool:
    """Whether the model's size is what stands in the way somewhere."""
    return check.placement is None and is_too_big(check.reason)


def is_too_big(reason: Mapping[str, Any]) -> bool:
    """The same of a reason that was kept."""
    return any(one.get("code") in SIZE for one in (reason.get("params") or {}).get("candidates") or [])


def _repo(artifact: Artifact) -> tuple[str, str]:
    """(hub, "owner/name") that it came from, "" as far as that is not known."""
    try:
        facts = ModelFacts.from_dict(artifact.facts)
    except ValidationError:
        facts = None
    url, word = source_of(artifact.model, facts)
    return hubs.pasted(url or word)


def _fetch(artifact: Artifact, *, may: bool) -> dict[str, str]:
    source, repo = _repo(artifact) if may else ("", "")
    if not repo:
        return {"url": reverse("model", args=[artifact.model_id]), "label": _("Open the model")}
    query = urlencode({"source": source or Source.HUGGINGFACE, "repo": repo})
    return {"url": f"{reverse('download-new')}?{query}", "label": _("Download it")}


def search(artifact: Artifact) -> dict[str, str]:
    """A search for the same name, on the hub that it came from."""
    source, repo = _repo(artifact)
    query = urlencode({"source": source or Source.HUGGINGFACE, "q": stem(repo or artifact.model.name)})
    return {"url": f"{reverse('download-find')}?{query}", "label": _("Look for a smaller form on the Hub")}
