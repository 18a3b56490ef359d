"""What goes into a diagnosis beside the log, and what comes out of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OOM_NEAR_S = 60.0  # within which an engine ends after one of its processes was ended
SURE = 0.6  # below this a diagnosis is only a guess, and is not shown as one
MAX_SHOWN = 2000  # characters of the root line that are kept and shown
# Instructions by which engines are built for a CPU, as the system names them and as people do.
INSTRUCTIONS = {"avx2": "AVX2", "avx512f": "AVX-512"}


@dataclass(frozen=True)
class Machine:
    """What the host said of itself. Memory is in GiB; None and "" mean that it is not known.

    `cpu_flags` are those of an x86 processor on which engines depend, None for another one. `disks` are (path, GiB
    free) at the end of the run; `shm_gib` and `open_files` (-1: no limit) are so too, or as the engine's own check met
    them there; `ram_free_gib` is what was free before the start.
    """

    cpu_flags: frozenset[str] | None = None
    driver: str = ""
    cuda: str = ""
    disks: tuple[tuple[str, float], ...] = ()
    shm_gib: float | None = None
    open_files: int | None = None
    ram_total_gib: float | None = None
    ram_free_gib: float | None = None

    def lacks(self) -> tuple[str, ...]:
        """Instructions that it does not have."""
        flags = self.cpu_flags
        return () if flags is None else tuple(name for flag, name in INSTRUCTIONS.items() if flag not in flags)

    def has(self) -> tuple[str, ...]:
        """Those that it has, where it has all of them."""
        return () if self.cpu_flags is None or self.lacks() else tuple(INSTRUCTIONS.values())


@dataclass(frozen=True)
class Evidence:
    """What the panel knows beside the log. Memory is in GiB; everything may be unknown.

    `options` are those of this run and `last_good` those of the last one that worked, both by the names that the
    engine uses. `oom_kills` counts what the kernel ended for lack of memory while the run lived, in the whole cgroup or
    on the whole machine; `oom_others` of these are known to be other runs, and `oom_ago_s` lie between the newest and
    the end. `format` is that of the model's files: hf or gguf.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    last_good: Mapping[str, Any] | None = None
    gpus: int | None = None
    gpu_total_gib: float | None = None
    gpu_free_gib: float | None = None
    host_free_gib: float | None = None
    weights_gib: float | None = None
    heads: int | None = None
    kv_heads: int | None = None
    numa_nodes: int | None = None
    port: int | None = None
    port_holder: str = ""
    oom_kills: int | None = None
    oom_others: int = 0
    oom_ago_s: float | None = None
    format: str = ""
    gguf_files: tuple[str, ...] = ()
    machine: Machine = field(default_factory=Machine)

    @property
    def oom(self) -> Literal["none", "unknown", "meanwhile", "just_before"]:
        """What the kernel's count says of this run. "none": it ended no process of it, as far as others are known;
        "meanwhile", "just_before" its end: it ended one that may be of it.
        """
        if self.oom_kills is None:
            return "unknown"
        if self.oom_kills <= self.oom_others:
            return "none"
        if self.oom_ago_s is None:
            return "meanwhile"
        return "just_before" if self.oom_ago_s <= OOM_NEAR_S else "unknown"

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Options that differ from the last run that worked: name -> (then, now)."""
        if self.last_good is None:
            return {}
        names = {*self.options, *self.last_good}
        pairs = {name: (self.last_good.get(name), self.options.get(name)) for name in sorted(names)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@dataclass(frozen=True)
class Offer:
    """A fix with its number. `text` is English with %(name)s places for `params`, to be translated where it is shown.

    `before` and `after` are the option's values, where one changes. `ready` tells that nothing is left to fill in.
    Decisions look at `kind`, `name` and `about`, never at `text`.
    """

    kind: str
    name: str
    before: Any = None
    after: Any = None
    text: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    chance: int = 0
    cost: str = ""
    ready: bool = True
    about: str = ""  # what it is about, as `rule.About` has it

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        said = self.text % dict(self.params) if self.text else ""
        return {"kind": self.kind, "name": self.name, "from": self.before, "to": self.after, "text": said,
                "command": self.command, "chance": self.chance, "cost": self.cost, "ready": self.ready}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """Why a run failed. `code` "" means that nothing failed or that it was not recognised (`recognised` False).

    `root_line` is the 1-based number of the line that proves it, None where the log shows none. `lines` and `numbers`
    are the error block around it. `ruled_out` are (code, line) of what looked like a cause and is a consequence.
    `phases` are those that were reached (phases.phases_of), `told` is what the line says in numbers (told.Told).
    """

    code: str = ""
    phase: str = "start"
    root_line: int | None = None
    root: str = ""
    confidence: float = 0.0
    title: str = ""
    why: str = ""
    doc: str = ""
    curable: bool = False
    failed: bool = False
    fixes: tuple[Offer, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    ruled_out: tuple[tuple[str, int], ...] = ()
    phases: tuple[Mapping[str, Any], ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def recognised(self) -> bool:
        """Whether it is sure enough to be said."""
        return bool(self.code) and self.confidence >= SURE

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON, with the keys that `manage.py diagnose --json` prints."""
        return {
            "class": self.code or None,
            "phase": self.phase,
            "root_line": self.root_line,
            "confidence": round(self.confidence, 2),
            "title": self.title,
            "explanation": self.why,
            "recognised": self.recognised,
            "root": self.root,
            "fixes": [fix.as_dict() for fix in self.fixes],
            "facts": dict(self.facts),
            "evidence": [{"line": number, "text": text}
                         for number, text in zip(self.numbers, self.lines, strict=True)],
            "ruled_out": [{"class": code, "line": number} for code, number in self.ruled_out],
            "phases": [dict(phase) for phase in self.phases],
            "numbers": dict(self.told),
            "doc": self.doc,
        }  # fmt: skip
