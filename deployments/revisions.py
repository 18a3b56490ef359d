"""What came of each settings of a deployment: the start that tells most, and what its golden questions gave."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from django.db.models import F

from deployments.models import Deployment, Revision, Run
from panel.core.errors import NotFound
from panel.fleet.wording import ENGINES

COLUMNS = 6  # kinds of starts whose answers stand side by side
LOOKED_AT = 200  # newest starts among which they are looked for
OF_RUN = (
    "created_at", "ready_at", "foreseen", "measured", "answer", "golden", "engine_version", "number", "revision_id",
    "deployment_id", "host_name", "placement", "outcome", "reason", "ended_at",
)  # fmt: skip


def best_starts(revisions: Iterable[Revision]) -> dict[int, Run]:
    """{revision: its newest start that got ready; where none did, its newest}. One query."""
    rows = Run.objects.filter(revision__in=[revision.pk for revision in revisions])
    order = rows.order_by("revision_id", F("ready_at").desc(nulls_last=True), "-created_at")
    return {run.revision_id: run for run in order.distinct("revision_id").only(*OF_RUN)}


def pair(row: Deployment, first: int | None, second: int | None) -> tuple[Revision, Revision]:
    """Two settings by their numbers, the older first; what is left out is the newest, or the one before. NotFound."""
    numbers = list(row.revisions.order_by("-number").values_list("number", flat=True)[:2])
    if len(numbers) < 2:
        raise NotFound
    second = numbers[0] if second is None else second
    first = second - 1 if first is None else first
    found = {revision.number: revision for revision in row.revisions.filter(number__in=[first, second])}
    if len(found) != 2:
        raise NotFound
    return found[min(found)], found[max(found)]


@dataclass(frozen=True)
class Column:
    """Starts of one kind: settings, engine version, GPUs that share each layer. `run` is the newest of them."""

    run: Run
    revision: int
    version: str
    tp: int

    @property
    def engine(self) -> str:
        return f"{ENGINES.get(self.run.revision.spec.get('engine', 'vllm'), '')} {self.version}".strip()

    @property
    def on_gpu(self) -> bool:
        return bool(self.run.placement.get("gpus"))


@dataclass(frozen=True)
class Cell:
    """`differs`: from the newest answer to the same question. `answer` None: `error` says why, or it was not asked."""

    answer: str | None
    error: str = ""
    differs: bool = False
    latency_ms: int | None = None


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]  # (question, a cell for each column)

    @property
    def lines(self) -> list[tuple[str, list[tuple[Column, Cell]]]]:
        """(question, each cell with its column)."""
        return [(question, list(zip(self.columns, cells, strict=True))) for question, cells in self.rows]

    @property
    def differing(self) -> int:
        """Questions that were not answered alike everywhere."""
        return sum(any(cell.differs for cell in cells) for _question, cells in self.rows)


def answers(row: Deployment, numbers: Iterable[int] | None = None) -> Table:
    """Answers side by side, the newest kind of start first. One query.

    `numbers` name settings to look at alone; these stand in their order.
    """
    rows = Run.objects.filter(deployment=row, golden__has_key="answers").select_related("revision")
    if numbers is not None:
        rows = rows.filter(revision__number__in=list(numbers))
    columns: dict[tuple[int, str, int], Column] = {}
    for run in rows.order_by("-created_at").only(*OF_RUN, "revision__number", "revision__spec")[:LOOKED_AT]:
        tp = int(run.foreseen.get("tp") or len(run.placement.get("gpus") or []) or 1)
        kind = (run.revision.number, run.engine_version, tp)
        if kind not in columns and len(columns) < COLUMNS and run.golden["answers"]:
            columns[kind] = Column(run, *kind)
    order = sorted(columns.values(), key=lambda column: column.revision) if numbers is not None else columns.values()
    return _table(tuple(order))


@dataclass(frozen=True)
class Differing:
    """Of `both` questions answered then and now, `differ` were answered otherwise than by settings `than`.

    `version` is the engine's of then, where these are the same settings on another version.
    """

    differ: int
    both: int
    than: int
    version: str = ""


def differing(row: Deployment, numbers: Iterable[int]) -> dict[int, Differing]:
    """{settings: how their newest golden answers compare with those of the kind of start before them}. One query.

    Only settings among `numbers` are looked at; what has nothing before it is left out.
    """
    asked = Run.objects.filter(deployment=row, revision__number__in=list(numbers), golden__has_key="answers")
    kinds = asked.order_by("revision__number", "engine_version", "-created_at")
    told = kinds.distinct("revision__number", "engine_version")
    found = told.values_list("revision__number", "created_at", "engine_version", "golden__answers")
    rows = sorted((each for each in found if each[3]), key=lambda each: each[:2])
    pairs = pairwise(rows)
    return {new[0]: _differing(old, new) for old, new in pairs}  # of several versions the newest counts


def _differing(old: tuple[Any, ...], new: tuple[Any, ...]) -> Differing:
    before = {each["question"]: each["answer"] for each in old[3] if each["answer"] is not None}
    both = [(before[each["question"]], each["answer"]) for each in new[3] if each["question"] in before]
    answered = [pair for pair in both if pair[1] is not None]
    version = old[2] if old[0] == new[0] else ""
    return Differing(sum(then != now for then, now in answered), len(answered), old[0], version)


def _table(columns: tuple[Column, ...]) -> Table:
    said = [{each["question"]: each for each in column.run.golden["answers"]} for column in columns]
    questions = list(dict.fromkeys(question for each in said for question in each))
    newest = sorted(range(len(columns)), key=lambda place: columns[place].run.created_at, reverse=True)
    return Table(
        columns, tuple((question, _cells([each.get(question) for each in said], newest)) for question in questions)
    )


def _cells(given: list[dict[str, Any] | None], order: list[int]) -> tuple[Cell, ...]:
    """What each column gave to one question; `order` are the columns, the newest first."""
    answered = (each["answer"] for place in order if (each := given[place]) is not None)
    newest = next((answer for answer in answered if answer is not None), None)
    return tuple(
        Cell(None)
        if each is None
        else Cell(
            each["answer"],
            each.get("error", ""),
            each["answer"] is not None and each["answer"] != newest,
            each.get("latency_ms"),
        )
        for each in given
    )
