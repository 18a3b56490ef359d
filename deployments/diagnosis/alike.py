"""Errors that say the same though their numbers, names and places differ: one short key for all of them. Pure."""

from __future__ import annotations

import hashlib
import re

LONGEST = 400  # characters of the line that count
# In this order: a path may hold digits, and what is quoted may be a path.
_SAME: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"'[^'\n]{0,300}'|\"[^\"\n]{0,300}\"|`[^`\n]{0,300}`"), "'…'"),
    (re.compile(r"\b0x[0-9a-fA-F]{1,40}\b"), "#"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.@+~-]{1,200}){2,40}"), "/…"),
    (re.compile(r"\b[0-9a-f]{8,64}\b"), "#"),
    (re.compile(r"\d+"), "#"),
    (re.compile(r"(?:#[.,:xX-]?){2,}"), "#"),
    (re.compile(r"\s+"), " "),
)


def normalised(line: str) -> str:
    """The line without what differs from one start to the next."""
    text = line[:LONGEST]
    for pattern, instead in _SAME:
        text = pattern.sub(instead, text)
    return text.strip().lower()


def key_of(line: str) -> str:
    """32 hexadecimal digits that errors of the same words share; "" for a line without words."""
    text = normalised(line)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32] if re.search(r"[a-z]", text) else ""
