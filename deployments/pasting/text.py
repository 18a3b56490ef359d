"""Words of a command as they stand in a text, with the variables in them; and what signs were meant. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST = 65_536  # characters of a text
DASHES = "-‐‑‒–—―−－﹣﹘⸺"
_LONG_DASHES = "—―⸺"
VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w{0,100})|\{([A-Za-z_]\w{0,100})(?::?-([^{}\n$`]{0,500}))?\})")

# Stand for `$` and a backtick that are meant as they are: single quotes or a backslash protect them.
DOLLAR, TICK = "\ue000", "\ue001"
Part = tuple[str, str, str | None]  # as written, the name of the variable or "", what stands for it where it has none


@dataclass(frozen=True)
class Word:
    """One word. `parts` are texts and variables in it: (text as written, name of the variable or "", its default)."""

    parts: tuple[Part, ...]
    quoted: bool = False

    @property
    def text(self) -> str:
        """As written, without its quotes."""
        return "".join(part[0] for part in self.parts)

    def filled(self, known: Mapping[str, str]) -> str:
        """With the variables that the pasted text itself gives a value; others stay as they are written."""
        texts = []
        for text, name, default in self.parts:
            texts.append((known.get(name) or default or text) if name else text)
        return "".join(texts)[:LONGEST]


@dataclass
class Command:
    """One command line: its words, and whether it was put together from lines that a shell would have kept apart."""

    words: list[Word] = field(default_factory=list)


@dataclass
class Script:
    """Everything in a text. `marks` say what had to be mended: typography, joined, open_quote, windows, too_long."""

    commands: list[Command] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)


def protected(text: str) -> str:
    """A text in which no sign stands for anything else."""
    return text.replace("$", DOLLAR).replace("`", TICK)


def plain(text: str) -> str:
    """The text as it was meant."""
    return text.replace(DOLLAR, "$").replace(TICK, "`")


def joined(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbouring texts as one."""
    found: list[Part] = []
    plain: list[str] = []
    for part in parts:
        if not part[1]:
            plain.append(part[0])
            continue
        if plain:
            found.append(("".join(plain), "", None))
            plain = []
        found.append(part)
    if plain or not found:
        found.append(("".join(plain), "", None))
    return tuple(found)


def meant(run: str, after: str) -> str:
    """The plain dashes that a run of others stands for; `after` is what follows (two characters)."""
    if not after.strip() or not (after[0].isalpha()):
        return "-" * min(len(run), 2)
    count = sum(2 if char in _LONG_DASHES else 1 for char in run)
    if run in ("–", "‒") and len(after) == 2 and (after[1].isalpha() or after[1] in "-_"):
        count = 2  # editors make one short dash of two
    return "-" * min(count, 2)


def interpolated(text: str) -> Word:
    """A text that is one word already (of a compose file, a unit), with the variables in it."""
    parts: list[Part] = []
    at = 0
    for found in VARIABLE.finditer(text):
        parts += [(text[at : found.start()], "", None), (found[0], found[1] or found[2], found[3])]
        at = found.end()
    return Word(joined([*parts, (text[at:], "", None)]))
