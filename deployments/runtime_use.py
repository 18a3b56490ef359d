"""Which deployments use an engine, for the rooms below: running from it now, chosen in the settings, or used last."""

from collections import defaultdict

from django.db.models import BigIntegerField, F, Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.urls import reverse

from deployments.models import Deployment, Run
from panel.fleet.runtimes.users import Kind, Use


def of_runtimes(runtime_ids: list[int]) -> dict[int, list[Use]]:
    """Uses by runtime, by name; each deployment once per runtime, its strongest use first. Two queries."""
    found: dict[int, dict[int, Use]] = defaultdict(dict)

    def add(kind: Kind, runtime_id: int, pk: int, name: str, *, shown: bool = True) -> None:
        if pk not in found[runtime_id]:
            found[runtime_id][pk] = Use(name, kind, there.replace("/0/", f"/{pk}/") if shown else "")

    # Thousands of rows may use one engine: only what is shown of them is read, and their addresses are made here.
    there = reverse("deployment", args=[0])
    running = Run.objects.filter(runtime_id__in=runtime_ids, ended_at=None)
    fields = ("runtime_id", "deployment_id", "deployment__name", "deployment__deleted_at")
    for runtime_id, pk, name, deleted in running.values_list(*fields):
        add("running", runtime_id, pk, name, shown=deleted is None)
    chosen = Q(revision__spec__runtime_id__in=runtime_ids)
    # What runs on it still is told above; a number comes as one, not as JSON, which costs more than all the rest.
    last = Q(run__runtime_id__in=runtime_ids, revision__spec__runtime_id=None, run__ended_at__isnull=False)
    kept = Deployment.objects.filter(chosen | last, deleted_at=None).order_by()
    number = KeyTextTransform("runtime_id", "revision__spec")
    wanted = kept.annotate(named=Cast(number, BigIntegerField()), used=F("run__runtime_id"))
    for named, used, pk, name in wanted.values_list("named", "used", "pk", "name"):
        add("chosen" if named is not None else "last", used if named is None else named, pk, name)
    order = {"running": 0, "chosen": 1, "last": 2}
    return {pk: sorted(uses.values(), key=lambda use: (order[use.kind], use.text)) for pk, uses in found.items()}
