"""Lines of an engine's log: cut at \\n and \\r, without colours, process prefixes and stamps. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# Some tools lose the escape byte of a colour and leave the rest.
_BARE_COLOUR = re.compile(r"^(?:\[[0-9]{1,2}(?:;[0-9]{1,2})*m)+|(?<=\))\[0;0m|(?<=\))\[0m")
_PROCESS = re.compile(
    r"\((?P<name>(?:EngineCore|APIServer|ApiServer|Worker|VllmWorker|VllmWorkerProcess|RayWorker\w*|DPCoordinator|"
    r"DPSupervisor|ReplicaPool)[\w-]*)(?:[ ,]+(?:pid|rank|ip)=[\w.:]+)*[^)\n]{0,40}\)\s?"
)
_RANK = re.compile(r"\[rank\d+\]:\s?")
_SERVICE = re.compile(r"[\w.-]{1,40}\s+\|\s")  # docker compose
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?\s")
_JOURNAL = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ \S+\[\d+\]:\s")
_QUOTE = re.compile(r"> (?=\S)")
_LEVEL = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<date>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d)(?:\.\d+)? "
    r"\[?(?P<place>[\w./-]+:\d+)\]\s?"
)


@dataclass(frozen=True)
class Line:
    """One line. `process` is the name of the engine's process ("" unknown), `clock` is "MM-DD HH:MM:SS" or ""."""

    text: str
    process: str = ""
    level: str = ""
    clock: str = ""
    place: str = ""


def clean(raw: str) -> Line:
    """A raw line without all that stands before its text; prefixes come in any order and several times."""
    text = ANSI.sub("", raw) if "\x1b" in raw else raw
    if text.startswith("[") or ")[0" in text[:120]:
        text = _BARE_COLOUR.sub("", text)
    process, level, clock, place = "", "", "", ""
    for _ in range(6):
        head = text[:1]
        found: re.Match[str] | None
        if head == "(" and (found := _PROCESS.match(text)):
            process = process or found[0].strip(" ()")
        elif head == "[" and (found := _RANK.match(text)):
            process = process or found[0].strip("[]: ")
        elif head in "DIWEC" and (found := _LEVEL.match(text)):
            level, clock, place = found["level"], f"{found['date']} {found['time']}", found["place"]
        else:
            found = _outer(text)
        if not found:
            break
        text = text[found.end() :]
        if text.startswith("[0") and _BARE_COLOUR.match(text):
            text = _BARE_COLOUR.sub("", text)
    return Line(text.rstrip(), process, level, clock, place)


def _outer(text: str) -> re.Match[str] | None:
    """What containers, journals and people put before a line."""
    head = text[:1]
    if head.isdigit():
        return _STAMP.match(text)
    if head == ">":
        return _QUOTE.match(text)
    found = _JOURNAL.match(text) if head.isupper() else None
    return found or (_SERVICE.match(text) if "|" in text[:44] else None)
