"""Reads for pages and API: rows with what their page shows, in a number of queries that does not grow with the rows."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median
from typing import Any

from django.db.models import Case, Count, Exists, F, OuterRef, Prefetch, Q, QuerySet, When

from deployments.diagnosis import phases
from deployments.models import Deployment, Run
from deployments.spec import DeploymentSpec
from models_catalog.models import Artifact, Copy
from panel.core.errors import NotFound

# What each filter chip of the list holds. Who stops what has failed has seen it: it needs nobody any more.
GROUPS: dict[str, Q] = {
    "ready": Q(state="ready"),
    "starting": Q(state__in=["placing", "preparing", "starting", "stopping"]),
    "waiting": Q(state="queued"),
    "attention": Q(state="failed", desired="running") | Q(state="lost"),
    "stopped": Q(state="failed", desired="stopped") | Q(state="stopped"),
}
# Kept with a run or its surroundings, large, and on no list: an engine's flags alone are 100 kB.
OF_ESTIMATE = ("foreseen", "measured", "golden", "live")
UNLISTED = (
    "secrets", "command", "env", "parser", "error_block", "diagnosis", *OF_ESTIMATE, "runtime__flags",
    "runtime__plugins",
)  # fmt: skip
OF_JOB = ("job__order", "job__secrets", "job__result", "job__log__tail", "job__log__segments")
UNSHOWN = ("host__facts", "host__door", *OF_JOB)
EARLIER_RUNS = 20  # successful starts on the same host that "usually" rests on


def listed(*, group: str = "", text: str = "") -> QuerySet[Deployment]:
    """Deployments that are not deleted, filtered, with all that a list row shows."""
    rows = Deployment.objects.filter(deleted_at=None).select_related("revision", "run__runtime")
    rows = rows.defer(*_of_run(UNLISTED))
    if group in GROUPS:
        rows = rows.filter(GROUPS[group])
    for word in text.split()[:5]:
        rows = rows.filter(
            Q(name__icontains=word)
            | Q(run__model_name__icontains=word)
            | Q(run__host_name__icontains=word)
            | Q(created_by__icontains=word)
            | Q(wanted_by__icontains=word)
        )
    return rows.order_by("name")


def _of_run(names: Iterable[str]) -> list[str]:
    return [f"run__{name}" for name in names]


def counts() -> dict[str, int]:
    """How many deployments each filter chip would show, and "all"."""
    numbers = {group: Count("pk", filter=which) for group, which in GROUPS.items()}
    return dict(Deployment.objects.filter(deleted_at=None).aggregate(all=Count("pk"), **numbers))


def one(pk: int) -> Deployment:
    """A deployment that is not deleted, with its newest run. Raises NotFound."""
    rows = Deployment.objects.select_related("revision", "run__revision", "run__runtime", "run__host", "run__job__log")
    rows = rows.defer("run__secrets", "run__runtime__flags", *_of_run(UNSHOWN))
    row = rows.filter(pk=pk, deleted_at=None).first()
    if row is None:
        raise NotFound
    return row


def known(pk: int) -> Deployment:
    """A deployment that is not deleted, to be acted on: nothing of it is shown. Raises NotFound."""
    row = Deployment.objects.filter(pk=pk, deleted_at=None).first()
    if row is None:
        raise NotFound
    return row


def model_names(rows: Iterable[Deployment]) -> dict[int, str]:
    """{deployment: name of the model that its settings say}; also before the first start. One query."""
    wanted = {row.pk: row.revision.spec.get("artifact_id") for row in rows if row.revision is not None}
    known = Artifact.objects.select_related("model").in_bulk({pk for pk in wanted.values() if pk is not None})
    return {row: str(known[pk]) if pk in known else "" for row, pk in wanted.items()}


def runs_of(deployment: Deployment) -> QuerySet[Run]:
    """Every start of it, newest first, with what a list shows."""
    return deployment.runs.select_related("revision", "runtime").defer(*UNLISTED).order_by("-number")


def records_of(deployment: Deployment) -> QuerySet[Run]:
    """Every start of it with its whole record."""
    rows = deployment.runs.select_related("deployment", "revision", "runtime", "job__log")
    return rows.defer("secrets", "parser", "runtime__flags", *OF_JOB)


def run(run_id: uuid.UUID) -> Run:
    """One run with its record; also of a deleted deployment. Raises NotFound."""
    rows = Run.objects.select_related("deployment", "revision", "host", "runtime", "job__log")
    found = rows.defer("secrets", "parser", "runtime__flags", *UNSHOWN).filter(pk=run_id).first()
    if found is None:
        raise NotFound
    return found


def may_name(actor: Any) -> Callable[[str], bool]:
    """Whether a deployment of a name may be told of to whoever looks; None sees everything. At most one query."""
    reach = getattr(actor, "deployments", None)
    if reach is None:
        return bool
    hidden = Deployment.objects.filter(deleted_at=None).exclude(pk__in=reach)
    names = frozenset(hidden.values_list("name", flat=True))
    return lambda name: name not in names


def deployable(chosen: str, find: str, most: int) -> tuple[list[tuple[Artifact, list[Copy]]], int]:
    """Artifacts that lie on some host, with those copies, and how many there are in all.

    The most promising first, by the estimate that is kept with each, at most `most` and the chosen one; `find` is part
    of the model's name, the form's or a host's. Four queries, however many there are.
    """
    copies = Copy.objects.filter(present=True).select_related("host").order_by("host__name")
    of_it = copies.filter(artifact=OuterRef("pk"))
    there = Artifact.objects.filter(Exists(of_it)).annotate(whole=Exists(of_it.filter(usable=True)))
    total = there.count()
    if find:
        on_host = Exists(of_it.filter(host__name__icontains=find))
        there = there.filter(Q(model__name__icontains=find) | Q(label__icontains=find) | on_host)
    verdict = Case(
        When(fits__best="fits", then=0), When(fits__best="tight", then=1), When(fits__best="does_not_fit", then=3),
        default=2,
    )  # fmt: skip
    large = Case(When(fits__best__in=["fits", "tight"], then=F("size_bytes")), default=0)
    best = there.order_by("-whole", verdict, large.desc(), "model__name", "label", "pk")
    ids = list(best.values_list("pk", flat=True)[:most])
    ids += [int(chosen)] if chosen.isdecimal() and len(chosen) < 19 else []
    rows = Artifact.objects.filter(Exists(of_it), pk__in=ids).select_related("model")
    rows = rows.prefetch_related(Prefetch("copies", copies, to_attr="copies_there"))
    return [(artifact, artifact.copies_there) for artifact in rows.order_by("model__name", "label", "pk")], total


def usual_times(run: Run) -> dict[str, dict[str, float]]:
    """{step: {median, low, high, runs}} seconds of earlier successful starts on the same host and engine.

    Only starts of the same copy count: another model takes other times.
    """
    earlier = Run.objects.filter(host_id=run.host_id, runtime_id=run.runtime_id).exclude(ready_at=None)
    earlier = earlier.only("created_at", "ready_at", "job_id", "phases", "probe", "answer")
    same = list(earlier.filter(copy_id=run.copy_id).exclude(pk=run.pk).order_by("-created_at")[:EARLIER_RUNS])
    times: dict[str, list[float]] = {}
    for old in same:
        for step in steps_of(old):
            if step.state == "yes" and step.seconds is not None:
                times.setdefault(step.code, []).append(step.seconds)
        if old.ready_at:
            times.setdefault("all", []).append((old.ready_at - old.created_at).total_seconds())
    return {
        step: {"median": median(values), "low": min(values), "high": max(values), "runs": len(values)}
        for step, values in times.items()
    }


def usual_start_s(host_id: int, runtime_id: int, copy_id: int) -> float | None:
    """How long earlier starts of this copy took there until they were ready, seconds; None before the first."""
    found = usual_start(host_id, runtime_id, copy_id)
    return found[0] if found is not None else None


def usual_start(host_id: int, runtime_id: int, copy_id: int) -> tuple[float, int] | None:
    """The same with the number of starts that it was learned from."""
    earlier = Run.objects.filter(host_id=host_id, runtime_id=runtime_id, copy_id=copy_id).exclude(ready_at=None)
    times = earlier.order_by("-created_at").values_list("created_at", "ready_at")[:EARLIER_RUNS]
    took = [(ready - created).total_seconds() for created, ready in times]
    return (median(took), len(took)) if took else None


def steps_of(run: Run) -> list[phases.StepState]:
    """The eight steps of a start: those of the log, `placed` before them, and `answered` from the probe."""
    created = run.created_at.timestamp()
    if run.job_id is None:
        return [phases.StepState(code, "now" if code == "placed" else "todo") for code, _members in phases.STEPS]
    found = [dict(phase) for phase in run.phases or phases.new_state(created)["phases"]]
    asked = run.probe.get("asked_at")
    if asked:
        if found[-1]["end"] is None:
            found[-1]["end"] = asked
        end = run.answer["at"] if run.answer else None
        found.append({"code": "answered", "start": asked, "end": end, "done": None, "total": None})
    first, *others = phases.step_states(found)
    return [replace(first, start=created, end=found[0]["start"]), *others]


def named(number: str) -> tuple[int, DeploymentSpec] | None:
    """A deployment by its number as an address or field says it, with its settings; None where there is none."""
    if not number.isdecimal() or len(number) > 18:
        return None
    row = Deployment.objects.filter(pk=int(number), deleted_at=None).select_related("revision").first()
    return (row.pk, DeploymentSpec.model_validate(row.revision.spec)) if row and row.revision else None


def run_of(pk: int) -> uuid.UUID | None:
    """The newest run of a deployment, which holds its memory while it runs."""
    return Deployment.objects.filter(pk=pk, deleted_at=None).values_list("run_id", flat=True).first()
