"""On which of the team's GPUs a model fits, by the estimate: the list's word, its filter, and the table of one model.

The list's word is kept with the artifact, and made anew by a task when GPUs, engine or facts changed.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from packaging.version import InvalidVersion, Version

from models_catalog.estimate import Gpu, Options, Plan, try_estimate
from models_catalog.facts import ModelFacts
from models_catalog.models import Artifact
from panel.fleet import models as fleet
from panel.fleet.runtimes.install_checks import GOOD_VERSION

RULES = "2"  # counted up when the estimate changes, so that kept words are made anew
USUAL_CONTEXT = 8192
CONTEXTS = (8192, 16384, 32768, 65536, 131072, 262144)
COUNTS = (1, 2, 4, 8)
MOST_KINDS = 12
CHUNK = 200
GOOD = ("fits", "tight")


@dataclass(frozen=True)
class Group:
    """So many GPUs of one kind in one host; `cpu`: a host without any, its memory is the machine's."""

    name: str
    total_mib: int
    count: int
    hosts: tuple[str, ...]
    cpu: bool = False

    @property
    def gpu(self) -> Gpu:
        return Gpu(self.name, total_gib=self.total_mib / 1024, cpu=self.cpu)


def groups() -> list[Group]:
    """What the team has, the smallest first. Two queries."""
    most: dict[tuple[str, int, bool], dict[str, int]] = {}
    rows = fleet.Gpu.objects.filter(present=True, host__forgotten_at=None, total_mib__gt=0)
    with_gpu = set()
    for host, name, total in rows.order_by("host__name").values_list("host__name", "name", "total_mib"):
        with_gpu.add(host)
        hosts = most.setdefault((name, total, False), {})
        hosts[host] = hosts.get(host, 0) + 1
    machines = fleet.Host.objects.filter(ram_total_mib__gt=0).order_by("name").values_list("name", "ram_total_mib")
    for host, ram in machines:
        if host not in with_gpu:
            most.setdefault(("CPU", ram // 4096 * 4096 or ram, True), {})[host] = 1
    found = []
    for (name, total, cpu), hosts in sorted(most.items(), key=lambda item: (item[0][2], item[0][1]))[:MOST_KINDS]:
        largest = max(hosts.values())
        for count in sorted({n for n in COUNTS if n <= largest} | ({largest} if largest <= 16 else set())):
            found.append(Group(name, total, count, tuple(h for h, n in hosts.items() if n >= count), cpu))
    return found


def engine_version() -> str:
    """The newest vLLM that is there, else the one that Berth was tested with."""
    found = []
    rows = fleet.Runtime.objects.filter(engine="vllm", present=True, refusal__isnull=True)
    for text in rows.values_list("version", flat=True).distinct():
        try:
            found.append((Version(text), text))
        except InvalidVersion:
            continue
    return max(found)[1] if found else GOOD_VERSION


def _plan(facts: ModelFacts, group: Group, context: int, version: str) -> Plan | None:
    options = Options(context=context, tp=1 if group.cpu else group.count)
    return try_estimate(facts, options, group.gpu, version)


def _suited(facts: ModelFacts, known: Iterable[Group]) -> list[Group]:
    """Room alone is not enough: the kernels that read a GGUF file need a GPU, see serving.reads_gguf."""
    return [group for group in known if not (group.cpu and facts.format == "gguf")]


# --- the list's word --------------------------------------------------------------------------------------------------


def signature(known: list[Group], version: str) -> str:
    """Names what an estimate depends on beside the model."""
    text = repr([RULES, version, *((g.name, g.total_mib, g.count, g.cpu) for g in known)])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _stale(mark: str) -> QuerySet[Artifact]:
    return Artifact.objects.filter(~Q(fits_for=mark), copies__present=True).distinct()


def any_stale() -> bool:
    return _stale(signature(groups(), engine_version())).exists()


def freshen() -> int:
    """Make the kept words anew where they are not of today; how many were."""
    known, version = groups(), engine_version()
    mark = signature(known, version)
    done = 0
    while rows := list(_stale(mark).order_by("pk")[:CHUNK]):
        for row in rows:
            row.fits, row.fits_for = word(ModelFacts.from_dict(row.facts), known, version), mark
        Artifact.objects.bulk_update(rows, ["fits", "fits_for"])
        done += len(rows)
    return done


def word(facts: ModelFacts, known: Iterable[Group], version: str) -> dict[str, Any]:
    """{best: verdict, on: [{name, count, cpu, total_mib, verdict, hosts}]}: of each kind the fewest GPUs that do."""
    context = min(USUAL_CONTEXT, facts.context_length or USUAL_CONTEXT)
    on: dict[tuple[str, int], dict[str, Any]] = {}
    seen = set()
    for group in _suited(facts, known):
        kind = (group.name, group.total_mib)
        if kind in on and on[kind]["verdict"] == "fits":
            continue
        plan = _plan(facts, group, context, version)
        verdict = plan.verdict if plan is not None else "unknown"
        seen.add(verdict)
        if verdict in GOOD and (kind not in on or verdict == "fits"):
            on[kind] = {
                "name": group.name,
                "count": group.count,
                "cpu": group.cpu,
                "total_mib": group.total_mib,
                "verdict": verdict,
            }
    order = ("fits", "tight", "unknown", "does_not_fit")
    best = next((verdict for verdict in order if verdict in seen), "")
    return {"best": best, "on": list(on.values())[:6]}


# --- the table of one model -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    context: int
    verdict: str
    requests: float | None  # of this length at the same time


@dataclass(frozen=True)
class Row:
    """One group of GPUs. `reasons` are those of the shortest context: why nothing fits, where that is so."""

    group: Group
    cells: tuple[Cell, ...]
    reasons: tuple[Any, ...] = ()

    @property
    def fits(self) -> bool:
        return any(cell.verdict != "does_not_fit" for cell in self.cells)


def _cell(length: int, plan: Plan | None) -> Cell:
    if plan is None:
        return Cell(length, "unknown", None)
    return Cell(length, plan.verdict, plan.concurrency.value)


def contexts_of(facts: ModelFacts) -> list[int]:
    """The columns: usual lengths that the model takes, and its own where that is shorter than all of them."""
    longest = facts.context_length
    if not longest:
        return list(CONTEXTS[:3])
    return [length for length in CONTEXTS if length <= longest] or [longest]


def table(facts: ModelFacts, known: Iterable[Group], version: str) -> list[Row]:
    """Estimated for GPUs that nothing else uses."""
    lengths = contexts_of(facts)
    rows = []
    for group in _suited(facts, known):
        plans = [_plan(facts, group, length, version) for length in lengths]
        cells = tuple(_cell(length, plan) for length, plan in zip(lengths, plans, strict=True))
        rows.append(Row(group, cells, plans[0].reasons if plans[0] is not None else ()))
    return rows
