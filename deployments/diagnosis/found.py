"""What a reader of logs keeps of a start: the lines that may tell why it failed, and how far it came. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from deployments.diagnosis import error_lines, phases
from deployments.diagnosis.lines import Line
from deployments.diagnosis.rule import Rule

MAX_FOUND = 200  # candidates that are kept of one start
DULL = ("request", "quiet", "aside", "echo", "unknown")  # kinds of which many that begin alike tell no more than a few


@dataclass
class Found:
    """A line that may tell the cause. `kind` is the role of its rule, or unknown for an error that no rule knows."""

    number: int
    text: str
    process: str
    kind: str
    rule: Rule | None
    groups: dict[str, str]
    phase: str  # how far the start had come
    weights_in: bool
    served: bool
    lines: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    clock: str = ""  # the log's own stamp


@dataclass
class Start:
    """One start of the engine within a log: its phases, its facts, and the lines that may tell why it failed."""

    state: phases.State
    found: list[Found] = field(default_factory=list)
    late: list[Found] = field(default_factory=list)  # while it served
    processes: set[str] = field(default_factory=set)  # those that told a phase
    up: bool = False  # it said that it takes requests
    stopped: bool = False  # it was told to stop
    options: dict[str, str] = field(default_factory=dict)
    first_line: int = 1

    @property
    def all(self) -> list[Found]:
        """What was found before it was up and after, in order."""
        return [*self.found, *self.late]

    @property
    def phase(self) -> str:
        """How far it came."""
        return phases.current(self.state)

    @property
    def served(self) -> bool:
        """Whether it was up."""
        return self.phase in ("serving", "answered")


def kind_of(rule: Rule | None, line: Line) -> str:
    """What a line is to the diagnosis."""
    if rule is None and "returned non-zero exit status" in line.text:
        return "echo"
    if error_lines.is_echo(line):
        # Some echoes repeat the cause in their own text, and it may be all that is left of it.
        told = rule is not None and (rule.role == "cause" or rule.code == "mem.host_oom_killed")
        return "late" if told else "peer" if rule is not None and rule.role == "peer" else "echo"
    if "Failed to import from vllm._C" in line.text:
        return "quiet"
    return rule.role if rule else "unknown"


def make_room(late: list[Found]) -> None:
    """Forget what is worth least of what was found while it served: requests that failed, then echoes save the first
    that says that the engine is gone, then errors that no rule knows; of two alike the older one.
    """
    gone = next((item for item in late if item.rule and item.rule.code == "run.engine_dead"), None)
    for kinds in (("request", "quiet", "aside"), ("echo",), ("unknown",)):
        for index, item in enumerate(late):
            if item.kind in kinds and item is not gone:
                del late[index]
                return
    del late[0]
