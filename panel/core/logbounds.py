"""What strangers can write into the panel's log: bounded in number, length and meaning.

Whoever reaches the port can cause lines: a Host name that the panel does not have, addresses that do not exist, forms
without their token, messages that are none. Of each kind a few dozen a minute are written and the rest are counted;
what they typed cannot begin a line of its own, move a terminal's cursor, or be a book.
"""

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

# Loggers that write because of what somebody sent, whoever it was.
OUTSIDE = (
    "django.request",
    "django.security",
    "panel.core.pages",
    "panel.fleet.link",
    "panel.fleet.line",
    "panel.fleet.door",
    "berth.door",
    "uvicorn.error",
)
A_MINUTE = 30  # lines of one kind
MOST = 2000  # characters of one typed value
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """A typed text as it may stand in a log: one line, no escapes, no reversed words, not endless."""
    cut = text if len(text) <= MOST else f"{text[:MOST]}… ({len(text)} characters)"
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", cut)


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,4000}(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f]"
)


def for_terminal(text: str) -> str:
    """A text of others as a terminal may get it: lines and tabs stay, nothing moves the cursor or asks the terminal."""
    return _ESCAPES.sub("", text)


def _bounded(value: object) -> object:
    """A parameter of a line: an exception, too, may quote what somebody sent."""
    return value if isinstance(value, int | float | None) else harmless(str(value))


class Outside(logging.Filter):
    """Stands before the handler, so that it sees the lines of all loggers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        self._seen: dict[tuple[str, int, str], list[float]] = {}  # kind → [minute, lines of it]

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(OUTSIDE):
            return True
        if isinstance(record.args, tuple):
            record.args = tuple(map(_bounded, record.args))
        else:
            record.msg, record.args = harmless(record.getMessage()), None
        if record.name.startswith("django.security"):  # where in Django it was noticed is no news
            record.levelno, record.levelname = min(record.levelno, logging.WARNING), "WARNING"
            record.msg, record.args = harmless(record.getMessage()), None
            record.exc_info = record.exc_text = None
        own = record.exc_info is not None or (record.levelno >= logging.ERROR and record.name.startswith("panel."))
        return own or self._let_in(record)  # failures of the panel itself are always written

    def _let_in(self, record: logging.LogRecord) -> bool:
        kind = (record.name, record.levelno, self._kind(record))
        minute = self._clock() // 60
        with self._lock:
            if len(self._seen) > 1000:
                self._seen = {key: value for key, value in self._seen.items() if value[0] == minute}
            seen = self._seen.setdefault(kind, [minute, 0])
            dropped = int(seen[1]) - A_MINUTE if seen[0] != minute else 0
            if seen[0] != minute:
                seen[:] = [minute, 0]
            seen[1] += 1
            count = int(seen[1])
        if dropped > 0:
            record.msg, record.args = f"{record.getMessage()} (and {dropped} more like it before)", None
        return count <= A_MINUTE

    @staticmethod
    def _kind(record: logging.LogRecord) -> str:
        """The words of the line without what was typed."""
        text: Any = record.msg
        return str(text)[:60] if record.args else str(text).split(":", 1)[0][:40]
