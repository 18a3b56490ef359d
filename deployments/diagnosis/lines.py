"""Lines of an engine's log: cut at \\n and \\r, without colours, process prefixes and stamps. Pure."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

# Some tools write the escape byte out: ESC, #033 (syslog), ^[ (less), and #015 for the return before an end of line.
ANSI = re.compile(r"(?:\x1b|\bESC|#033|\^\[)\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|#015$")
# Some tools lose the escape byte of a colour and leave the rest.
_BARE_COLOUR = re.compile(r"^(?:\[[0-9]{1,2}(?:;[0-9]{1,2})*m)+|(?<=\))\[0;0m|(?<=\))\[0m")
_PROCESS = re.compile(
    r"\((?P<name>(?:(?:EngineCore|APIServer|ApiServer|Worker|VllmWorker|VllmWorkerProcess|RayWorker\w*|DPCoordinator|"
    r"DPSupervisor|ReplicaPool)[\w-]*(?:[ ,]+(?:pid|rank|ip)=[\w.:]+)*[^)\n]{0,40}"
    r"|[A-Za-z_][\w.:-]{0,60},?(?: rank=\d+,?)? pid=\d+(?:, ip=[\w.:]+)?))\)\s?"
)
_RANK = re.compile(r"\[(?:rank\d+\]:|Stage-\d+\])\s?")
# SGLang's stamp with its ranks.
_RANKS = re.compile(
    r"\[(?P<date>\d{4}-\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d)(?:[.,]\d+)?"
    r"(?P<ranks>(?: (?:DP|TP|PP|EP|ATTN|MOE|CP)\d+)*)\]\s?"
)
# Stamps in brackets (of a build server), the source that kubectl names, the port by which a router names its child.
_BRACKETS = re.compile(
    r"\[(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)|pod/[\w./-]{1,160}|"
    r"\d{4,5}(?=\] \d+\.\d\d\.))\]\s?"
)
# A line of a log that is kept as JSON.
_JSON = re.compile(r"\{(?:.{0,400}?,)?\s?\"(?:log|msg|message)\":\s?\"(?P<text>(?:[^\"\\]|\\.)*)\"")
# A line within one of another program's, as Docker's model runner prints it.
_LOGRUS = re.compile(r"time=\"[^\"]{1,40}\" level=\w+ msg=\"(?P<text>(?:[^\"\\]|\\.)*)\"")
# What a supervisor of actors puts into the text of an exception; the part before it belongs to the text.
_ADDRESS = re.compile(r"\[address=[\w.:-]{1,80}, pid=\d+\]\s?")
# llama.cpp: minutes.seconds.millis.micros and a letter for the level.
_LLAMA = re.compile(r"\d+\.\d\d\.\d{3}\.\d{3} (?P<letter>[DIWE]) ")
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR"}
# Python's logging in its plainest forms, and that of loguru.
_LOGGER = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:[+-]\d{4})? (?:\| \S{1,80} )?[-|] (?:[\w.]{1,80} - )?"
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s* [-|] "
)
# A program that starts the engine may log each of its lines as a notice of its own; an error remains one.
_PASSED_ON = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?::|$)|[\w. ]{1,40}: error: |Traceback \(most recent"
)
# Ollama: time=… level=… source=… msg=…
_SLOG = re.compile(r"time=\S{1,40} level=(?P<level>DEBUG|INFO|WARN|ERROR)\s+")
_SLOG_LEVELS = {"WARN": "WARNING"}
_SERVICE = re.compile(r"[\w.-]{1,40}\s+\|\s")  # docker compose
_POD = re.compile(r"[a-z][a-z0-9-]{1,80}-[a-z0-9]{8,10}-[a-z0-9]{5} [a-z][\w-]{0,40} ")  # stern: pod and container
_STAMP = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?\s(?:std(?:out|err) [FP] |\|(?: |$))?"
)
_JOURNAL = re.compile(
    r"(?:[^\W\d_]{3,4}\.? [ \d]?\d|[ \d]?\d\.? [^\W\d_]{3,4}\.?|\d\d[.-]\d\d) \d\d:\d\d:\d\d \S+ \S+\[\d+\]:\s"
)
_QUOTE = re.compile(r"> (?=\S)")
_LEVEL = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<date>\d\d-\d\d) (?P<time>\d\d:\d\d(?::\d\d)?)(?:\.\d+)? "
    r"\[?(?P<place>[\w./-]+:\d+)\]\s?"
)


class Line(NamedTuple):
    """One line. `process` is the name of the engine's process ("" unknown), `clock` is "MM-DD HH:MM:SS" or ""."""

    text: str
    process: str = ""
    level: str = ""
    clock: str = ""
    place: str = ""


def clean(raw: str) -> Line:
    """A raw line without all that stands before its text; prefixes come in any order and several times."""
    if raw.startswith(('{"', 'time="')) and (told := _JSON.match(raw) or _LOGRUS.match(raw)):
        raw = _unquoted(told["text"])
    escaped = "\x1b" in raw or "#0" in raw or "^[" in raw or "ESC[" in raw
    text = ANSI.sub("", raw) if escaped else raw
    if text.startswith("[") or ")[0" in text[:120]:
        text = _BARE_COLOUR.sub("", text)
    known: dict[str, str] = {}
    passed_on = False
    for _ in range(8):
        found = _prefix(text)
        if not found:
            break
        passed_on = found.re is _LOGGER or (passed_on and found.re not in (_LEVEL, _SLOG, _LLAMA))
        for name, value in _told(found).items():
            # The innermost level is the engine's own; the outermost process is the one that printed the line.
            if value and (name != "process" or "process" not in known):
                known[name] = value
        text = text[found.end() :]
        if text.startswith("[0") and _BARE_COLOUR.match(text):
            text = _BARE_COLOUR.sub("", text)
    if "[address=" in text[:120]:
        text = _ADDRESS.sub("", text, count=1)
    if passed_on and known["level"] in ("DEBUG", "INFO") and _PASSED_ON.match(text):
        del known["level"]
    return Line(text.rstrip(), **known)


def _unquoted(text: str) -> str:
    """The text of a JSON string, of several lines the last one; what cannot be read stays as it is."""
    try:
        plain = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
    return plain.encode("utf-8", "replace").decode().rstrip().rpartition("\n")[2]


def _told(found: re.Match[str]) -> dict[str, str]:
    """What a prefix tells: process, level, clock, place."""
    if found.re is _PROCESS:
        return {"process": found[0].strip(" ()")}
    if found.re is _RANK:
        return {"process": found[0].strip("[]: ")}
    if found.re is _RANKS:
        return {"process": found["ranks"].strip(), "clock": f"{found['date'][5:]} {found['time']}"}
    if found.re is _LEVEL:
        return {"level": found["level"], "clock": f"{found['date']} {found['time']}", "place": found["place"]}
    if found.re is _LLAMA:
        return {"level": _LETTERS[found["letter"]]}
    if found.re in (_LOGGER, _SLOG):
        return {"level": _SLOG_LEVELS.get(found["level"], found["level"])}
    return {}


def _prefix(text: str) -> re.Match[str] | None:
    """What stands before a line: a process, a rank, a level, or the stamp of a container, a journal or a person."""
    head = text[:1]
    if head == "(":
        return _PROCESS.match(text)
    if head == "[":
        return _RANK.match(text) or _RANKS.match(text) or _BRACKETS.match(text)
    if head.isdigit():
        return _LOGGER.match(text) or _STAMP.match(text) or _LLAMA.match(text) or _journal(text) or _service(text)
    if head == ">":
        return _QUOTE.match(text)
    if head == "t" and text.startswith("time="):
        return _SLOG.match(text)
    found = _LEVEL.match(text) if head in "DIWEC" else None
    return found or (_journal(text) if head.isalpha() else None) or _service(text)


def _journal(text: str) -> re.Match[str] | None:
    return _JOURNAL.match(text) if "]: " in text[:120] else None


def _service(text: str) -> re.Match[str] | None:
    if "|" in text[:44] and (found := _SERVICE.match(text)):
        return found
    return _POD.match(text) if text[:1].islower() and "-" in text[:24] else None
