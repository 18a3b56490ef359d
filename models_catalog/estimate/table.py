"""Where one model fits: kinds of GPUs by lengths of context, estimated for GPUs that nothing else uses. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from models_catalog.estimate.kernels import Capability
from models_catalog.estimate.machines import Answer, Machine, answer, usual
from models_catalog.estimate.need import Needs
from models_catalog.estimate.plan import Reason, Verdict
from models_catalog.estimate.short import Short, short, usual_by_size
from models_catalog.facts import ModelFacts

CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)
NOT_TOLD = CONTEXTS[:4]  # where the model does not say how long it can be
ALWAYS = 2  # so many GPUs are shown of each kind that has them; more, where fewer do not hold every length


@dataclass(frozen=True)
class Group:
    """So many GPUs of one kind in one host; `cpu`: a host without any, its memory is the machine's.

    `there` counts such GPUs on all hosts; `cards` are the uuids of this kind on hosts that have others beside them.
    """

    name: str
    total_mib: int
    count: int
    hosts: tuple[str, ...]
    cpu: bool = False
    capability: Capability | None = None
    there: int = 0
    cards: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def machine(self) -> Machine:
        return Machine(self.name, self.total_mib, self.count, self.cpu, self.capability)


@dataclass(frozen=True)
class Cell:
    context: int
    verdict: Verdict
    requests: float | None  # of this length at the same time


@dataclass(frozen=True)
class Row:
    """One group of GPUs. `reasons` are those of the shortest context: why nothing fits, where that is so."""

    group: Group
    cells: tuple[Cell, ...]
    reasons: tuple[Reason, ...] = ()
    short: Short | None = None  # where not even the shortest fits

    @property
    def fits(self) -> bool:
        return any(cell.verdict != "does_not_fit" for cell in self.cells)

    @property
    def full(self) -> bool:
        """Every length fits surely: more of these GPUs would only let more people in."""
        return all(cell.verdict == "fits" for cell in self.cells)


def contexts_of(facts: ModelFacts) -> list[int]:
    """The columns: usual lengths that the model takes, and its own."""
    longest = facts.context_length
    if not longest:
        return list(NOT_TOLD)
    return [*(length for length in CONTEXTS if length < longest), longest]


def suited(facts: ModelFacts, known: Iterable[Group]) -> list[Group]:
    """Room alone is not enough: the kernels that read a GGUF file need a GPU, see serving.reads_gguf."""
    return [group for group in known if not (group.cpu and facts.format == "gguf")]


def table(facts: ModelFacts, known: Iterable[Group], version: str) -> list[Row]:
    """Rows of the team's GPUs. None for more GPUs of a kind than a model divides into, or than it is worth to have."""
    needs, lengths = Needs(facts), contexts_of(facts)
    rows: list[Row] = []
    last: dict[tuple[str, int, bool], Row] = {}
    for group in suited(facts, known):
        kind = (group.name, group.total_mib, group.cpu)
        if group.count > ALWAYS and kind in last and last[kind].full:
            continue
        row = _row(needs, group, lengths, version)
        if row is not None:
            last[kind] = row
            rows.append(row)
    return rows


def elsewhere(facts: ModelFacts, known: Iterable[Group], version: str) -> list[Row]:
    """The same of usual GPUs that the team does not have."""
    names = [group.name for group in known if not group.cpu]
    return table(facts, [_group(machine) for machine in usual(names)], version)


def _group(machine: Machine) -> Group:
    return Group(machine.name, machine.total_mib, machine.count, (), capability=machine.capability)


def _row(needs: Needs, group: Group, lengths: list[int], version: str) -> Row | None:
    """More context never takes less memory: what follows a length that does not fit is not asked for."""
    cells: list[Cell] = []
    first: Answer | None = None
    for length in lengths:
        if cells and cells[-1].verdict == "does_not_fit":
            cells.append(Cell(length, "does_not_fit", None))
            continue
        found = answer(needs, group.machine, length, version)
        if not found.divides and group.count > 1:
            return None
        first = first or found
        cells.append(Cell(length, found.verdict, found.requests.value if found.requests is not None else None))
    lacks = first is not None and first.verdict == "does_not_fit"
    missing = short(needs, group.machine, lengths[0], version, usual_by_size()) if lacks else None
    return Row(group, tuple(cells), first.reasons if first is not None else (), missing)
