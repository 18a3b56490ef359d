"""Which deployments use an engine, for the rooms below: running from it now, chosen in the settings, or used last."""

from collections import defaultdict
from collections.abc import Iterable

from django.urls import reverse

from deployments.models import Deployment, Run
from panel.fleet.runtimes.users import Kind, Use


def of_runtimes(runtime_ids: list[int]) -> dict[int, list[Use]]:
    """Uses by runtime, by name; each deployment once per runtime, its strongest use first. Four queries."""
    found: dict[int, dict[int, Use]] = defaultdict(dict)

    def add(kind: Kind, rows: Iterable[tuple[int, int, str]], *, shown: bool = True) -> None:
        for runtime_id, pk, name in rows:
            if pk not in found[runtime_id]:
                found[runtime_id][pk] = Use(name, kind, there.replace("/0/", f"/{pk}/") if shown else "")

    # Thousands of rows may use one engine: only what is shown of them is read, and their addresses are made here.
    there = reverse("deployment", args=[0])
    running = Run.objects.filter(runtime_id__in=runtime_ids, ended_at=None)
    running_rows = running.values_list("runtime_id", "deployment_id", "deployment__name")
    add("running", running_rows.filter(deployment__deleted_at=None))
    add("running", running_rows.exclude(deployment__deleted_at=None), shown=False)
    kept = Deployment.objects.filter(deleted_at=None)
    chosen = kept.filter(revision__spec__runtime_id__in=runtime_ids)
    add("chosen", chosen.values_list("revision__spec__runtime_id", "pk", "name"))
    last = kept.filter(run__runtime_id__in=runtime_ids, revision__spec__runtime_id=None)
    add("last", last.values_list("run__runtime_id", "pk", "name"))
    order = {"running": 0, "chosen": 1, "last": 2}
    return {pk: sorted(uses.values(), key=lambda use: (order[use.kind], use.text)) for pk, uses in found.items()}
