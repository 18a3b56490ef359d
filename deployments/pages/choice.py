"""The models to choose from on the deploy page: whether each fits, what runs of it, and what tells equal ones apart."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from deployments import queries
from deployments.models import Deployment
from deployments.suggesting import free_name, names_taken, task_of
from models_catalog import queries as catalog
from models_catalog.contexts import fits_word
from models_catalog.models import Artifact, Copy
from models_catalog.serving import obstacles
from models_catalog.shelf import may_deploy
from models_catalog.wording import of_serving
from panel.core.numbers import ngroup, size
from panel.fleet.models import Runtime

STILL_OPEN = ("no_engine", "gguf_needs_plugin")  # the plan says what can be done
FEW = 6  # models that the page shows before someone asks for more
MOST = 30  # that it holds; a search asks the panel for the others
ORDER = {"ok": 0, "warn": 1, "off": 2, "": 2, "bad": 3}  # by the badge: what fits comes first


def choices(chosen: str, actor: Any, find: str = "") -> tuple[list[dict[str, Any]], int]:
    """(models that lie on a host, how many there are): the best first, the chosen one among them; those that cannot be
    deployed come last and say why. Of very many only the most promising, or those that somebody looks for.
    """
    engines = catalog.engines()
    taken, running = names_taken(), _running()
    rows, total = queries.deployable(chosen, find, MOST)
    found = [_choice(artifact, copies, engines, chosen, running) for artifact, copies in rows]
    for choice in found:
        artifact = choice["artifact"]
        if not may_deploy(artifact.model, actor):
            choice |= {
                "problem": _("It is not approved; people who can deploy may only use approved models here."),
                "closed": True,
            }
        # what the page fills in when the model is chosen
        fields = {
            "name": free_name(artifact.model.name, taken),
            "task": task_of(artifact),
            "gpu_count": _gpus(artifact),
        }
        choice["suggest"] = json.dumps({f"f-{name}": value for name, value in fields.items()})
    _tell_apart(found)
    return sorted(found, key=_rank), total


def best(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The one that the page opens with: it fits, surely or just so."""
    return next((one for one in found if not one["problem"] and one["fits_kind"] in ("ok", "warn")), None)


def _rank(choice: dict[str, Any]) -> tuple[Any, ...]:
    """What fits and does not run yet, the largest first, since that is mostly the best; the rest by name."""
    artifact = choice["artifact"]
    order = (bool(choice["problem"]), ORDER[choice["fits_kind"]])
    good = choice["fits_kind"] in ("ok", "warn")
    return (*order, bool(choice["running"]), -artifact.size_bytes if good else 0, choice["name"].lower(), artifact.pk)


def _choice(
    artifact: Artifact, copies: list[Copy], engines: Sequence[Runtime], chosen: str, running: dict[int, list[str]]
) -> dict[str, Any]:
    at = [copy for copy in copies if copy.usable] or copies
    obstacle = next(iter(obstacles(artifact, copies, engines)), None)
    is_chosen = str(artifact.pk) == chosen
    kind, word, on = fits_word(artifact.fits) if obstacle is None else ("", "", "")
    names = running.get(artifact.pk, [])
    few = _few(artifact) if kind == "warn" else ""
    runs = _("already runs as %(names)s") % {"names": ", ".join(names[:2])} if names else ""
    where = ", ".join(sorted({copy.host.name for copy in at}))
    return {
        "artifact": artifact,
        "id": artifact.pk,
        "name": artifact.model.name,
        "chosen": is_chosen,
        "running": names,
        "facts": " · ".join(part for part in (size(artifact.size_bytes), artifact.label, where, on, few, runs) if part),
        "fits_kind": kind,
        "fits_word": word,
        "problem": of_serving(obstacle).text if obstacle else "",
        # An engine or its plugin may still come, and the settings of a deployment keep the model that they have.
        "closed": obstacle is not None and obstacle["code"] not in STILL_OPEN and not is_chosen,
        "folder": at[0].path,
        "path": "",
    }


def _few(artifact: Artifact) -> str:
    """How many it is enough for, where that is tight."""
    counts = [one.get("requests") for one in artifact.fits.get("on", [])]
    most = max((count for count in counts if count), default=0)
    return _("about %(n)s at once") % {"n": ngroup(most)} if most else ""


def _running() -> dict[int, list[str]]:
    """{artifact: names of the deployments that should run it}. One query."""
    rows = Deployment.objects.filter(deleted_at=None, desired="running").order_by("name")
    found: dict[int, list[str]] = {}
    for artifact, name in rows.values_list("revision__spec__artifact_id", "name"):
        found.setdefault(artifact, []).append(name)
    return found


def _tell_apart(found: list[dict[str, Any]]) -> None:
    """Where two would read the same but for their host or size, the folder is said too."""
    seen = Counter((choice["name"], choice["artifact"].label) for choice in found)
    for choice in found:
        if seen[(choice["name"], choice["artifact"].label)] > 1:
            choice["path"] = choice["folder"]


def suggestion(artifact: Artifact) -> dict[str, Any]:
    """The form's values that follow from a model: itself, a free name, and what it is for."""
    name = free_name(artifact.model.name, names_taken())
    return {"artifact": artifact.pk, "name": name, "task": task_of(artifact), "gpu_count": _gpus(artifact)}


def _gpus(artifact: Artifact) -> int:
    """The fewest GPUs of one kind here that hold it, by the estimate that its badge tells."""
    on = [one for one in artifact.fits.get("on", []) if not one["cpu"]]
    sure = [one for one in on if one["verdict"] == "fits"]
    return min((one["count"] for one in sure or on), default=1)
