"""systemd units: the command of ExecStart with its variables. Pure."""

from __future__ import annotations

import re

from deployments.pasting.shell import split
from deployments.pasting.start import Finding, Start
from deployments.pasting.text import DOLLAR

_EXEC = re.compile(r"^[ \t]*ExecStart[ \t]*=", re.MULTILINE)
_LINE = re.compile(r"[ \t]*([A-Za-z]{1,40})[ \t]*=[ \t]*(.*)", re.DOTALL)


def read(text: str) -> Start | None:
    """What a unit starts; None when the text is no unit. The engine is not known yet."""
    text = text[:200_000]
    if not _EXEC.search(text):
        return None
    start: Start | None = None
    settings: list[tuple[str, str]] = []
    for line in re.sub(r"\\\r?\n[ \t]*", " ", text).splitlines():
        found = _LINE.match(line) if not line.lstrip().startswith(("#", ";")) else None
        if found is None:
            continue
        if found[1] == "ExecStart" and start is None:
            words = _words(found[2].lstrip("@-:+!"))
            start = Start("", words) if words else None
        else:
            settings.append((found[1], found[2].strip()))
    if start is None:
        return None
    for name, value in settings:
        _setting(start, name, value)
    return start


def _setting(start: Start, name: str, value: str) -> None:
    if name == "Environment":
        for word in _words(value):
            key, sign, text = word.partition("=")
            if sign:
                start.env[key] = text
    elif name == "EnvironmentFile":
        start.findings.append(Finding("note", "paste.env_file", {"file": value.lstrip("-")[:200]}, outcome="left_out"))
    elif name == "WorkingDirectory":
        start.cwd = value
    elif name == "Restart":
        start.restart = value
    elif name == "TimeoutStopSec" and re.fullmatch(r"\d{1,4}", value):
        start.grace_s = float(value)


def _words(text: str) -> list[str]:
    """Words as systemd splits them: `%%` and `$$` are one sign each, variables are not known."""
    script = split(text.replace("$$", DOLLAR).replace("%%", "%"))
    return [word.text for command in script.commands[:1] for word in command.words]
