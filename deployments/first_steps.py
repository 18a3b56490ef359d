"""The page of a panel that has no deployment yet: what is there, and the one thing to do next."""

from typing import Any

from models_catalog.models import Copy
from panel.fleet import queries, wording


def context() -> dict[str, Any]:
    """`open` is the number of the step that waits for a person: 1 host and engine, 2 model, 3 deploy."""
    views = queries.hosts()
    connected = [view for view in views if not view.silent]
    working = [runtime for view in connected for runtime in view.runtimes if runtime.present and not runtime.refusal]
    refused = [runtime for view in connected for runtime in view.runtimes if runtime.present and runtime.refusal]
    broken = [runtime for runtime in refused if runtime.refusal.get("code") != "engine_not_used_yet"]
    here = Copy.objects.filter(present=True, host__in=[view.host for view in connected])
    usable = here.filter(usable=True)
    names = list(
        usable.values_list("artifact__model__name", flat=True).distinct().order_by("artifact__model__name")[:4]
    )
    return {
        "section": "deployments",
        "hosts": [{"name": view.host.name, "what": wording.subtitle(view)} for view in connected],
        "engines": sorted({wording.engine(runtime) for runtime in working}),
        "broken": [{"name": wording.engine(r), "why": wording.refusal(r.refusal)} for r in broken],
        "searching": any(view.searching for view in connected),
        "models": names[:3],
        "more_models": len(names) > 3,
        "unusable": not names and here.exists(),
        "open": 1 if not connected or not working else 2 if not names else 3,
        "moving": True,
    }
