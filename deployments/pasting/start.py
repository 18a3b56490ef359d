"""What a pasted text starts: which engine, with which words, variables, folders and GPUs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deployments.pasting.text import plain

Level = Literal["error", "warning", "note"]
Outcome = Literal["taken", "changed", "left_out", ""]


@dataclass(frozen=True)
class Finding:
    """Something a person should know of what became of the command; `place` is the form's field that it is about."""

    level: Level
    code: str
    params: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    outcome: Outcome = ""

    def as_dict(self) -> dict[str, Any]:
        params = dict(self.params)
        return {"level": self.level, "code": self.code, "params": params, "place": self.place, "outcome": self.outcome}


@dataclass
class Start:
    """One engine that is started. `gpus`: None not said, [] none, else indexes or UUIDs; `gpu_count` where only that.

    `words` are the engine's own, after its name. `mounts` are (folder of the machine, folder in the container).
    `loose` names variables that were exported, and may be meant for something else.
    """

    engine: str
    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)
    mounts: list[tuple[str, str]] = field(default_factory=list)
    gpus: list[str] | None = None
    gpu_count: int | None = None
    name: str = ""
    cwd: str = ""
    image: str = ""
    executable: str = ""
    restart: str = ""
    grace_s: float | None = None
    findings: list[Finding] = field(default_factory=list)

    def on_host(self, path: str) -> str:
        """A path as the machine itself calls it; relative ones stand below the folder that `cd` went to."""
        return plain(self._on_host(path))

    def _on_host(self, path: str) -> str:
        best = ("", "")
        for host, inside in self.mounts:
            inside = inside.rstrip("/") or "/"
            below = path == inside or path.startswith(inside.rstrip("/") + "/")
            if below and len(inside) > len(best[1]):
                best = (host, inside)
        if best[1]:
            path = best[0].rstrip("/") + path[len(best[1].rstrip("/")) :]
        if path.startswith(("./", "../")) and self.cwd.startswith(("/", "~")):
            path = f"{self.cwd.rstrip('/')}/{path.removeprefix('./')}"
        return path


def listed(text: str) -> tuple[str, ...]:
    """A list written as running text."""
    return tuple(text.split())


# --- paths and texts --------------------------------------------------------------------------------------------------

UNRESOLVED = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]|\()|`|%[A-Z_]{2,40}%")
PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./:-]{0,60}>")


def unresolved(value: str) -> str:
    """What in a value nobody can know from the text alone: `$NAME`, `$(…)`, `<your-model>`; "" when nothing is."""
    if value.lstrip()[:1] in ("{", "["):
        return ""
    found = UNRESOLVED.search(value) or PLACEHOLDER.search(value)
    return value[found.start() : found.start() + 60] if found else ""


def base_name(path: str) -> str:
    """The last part of a path of any system, without `.exe`."""
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return name[:-4] if name.lower().endswith(".exe") else name


def devices(text: str) -> list[str]:
    """`0,1` or UUIDs as a list; what is empty, or -1, is none at all."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    return [] if found[:1] == ["-1"] else found[:64]
