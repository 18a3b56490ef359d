"""Counts what the log of a serving engine says of requests that failed, class by class. Pure; bounded in time and size.

The engine lives on after these lines, so they are no cause of an end; many of them are a finding (serving.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from deployments.diagnosis import words
from deployments.diagnosis.lines import clean
from deployments.diagnosis.reader import MAX_LOOKED, match
from deployments.diagnosis.rules import BY_CODE

TOO_LONG = "run.ctx_too_long"
COUNTED = ("request", "cause")  # roles of rules that count: a cause that did not end the engine cost a request
OWN = (TOO_LONG, "run.preempt", "run.shm_wait")  # said by findings of their own, or harmless
KEPT_S = 600.0  # how long a line counts
MAX_LINES = 400  # that are compared with the rules in one go
MAX_CLASSES = 20
ONE_FAILURE = 60  # lines within which the same words are of the same failure
_WORDS = re.compile(b"|".join(re.escape(word) for word in (*words.ERROR_WORDS, b"preempted")))
_ASKED = re.compile(r"(?:requested (?:about )?|total length |contains at least )(\d{1,9})")


def count(data: bytes, before: Mapping[str, Any], engine: str, now: float) -> dict[str, Any]:
    """{class: {counts: [[minute, times], …], last, asked}} after these bytes; only whole lines count."""
    found = {code: {**kept, "counts": [list(c) for c in kept["counts"]]} for code, kept in _newer(before, now).items()}
    looked = 0
    heard: dict[str, int] = {}
    for number, raw in enumerate(data.split(b"\n")[:-1]):
        if not _WORDS.search(raw[:MAX_LOOKED]):
            continue
        looked += 1
        if looked > MAX_LINES:
            break
        text = clean(raw[:MAX_LOOKED].decode("utf-8", "replace").replace("\0", " ")).text
        rule, _groups = match(engine, text)
        if rule is None or rule.role not in COUNTED or (rule.code not in found and len(found) >= MAX_CLASSES):
            continue
        # One failure is printed several times: by each process, and again by whoever caught it.
        same = rule.code if rule.role == "cause" else f"{rule.code} {text}"
        if number - heard.get(same, -ONE_FAILURE) >= ONE_FAILURE:
            _add(found.setdefault(rule.code, {"counts": []}), text, now)
        heard[same] = number
    return found


def _add(kept: dict[str, Any], text: str, now: float) -> None:
    minute = int(now // 60)
    if kept["counts"] and kept["counts"][-1][0] == minute:
        kept["counts"][-1][1] += 1
    else:
        kept["counts"].append([minute, 1])
    kept["line"] = text[:300]
    if asked := _ASKED.search(text):
        kept["asked"] = max(kept.get("asked", 0), int(asked[1]))


def _newer(classes: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Without what is too long ago to count."""
    first = (now - KEPT_S) // 60
    kept = {code: {**seen, "counts": [c for c in seen["counts"] if c[0] > first]} for code, seen in classes.items()}
    return {code: seen for code, seen in kept.items() if seen["counts"]}


def recent(classes: Mapping[str, Any], now: float, which: Callable[[str], bool]) -> int:
    """How many lines of these classes came in the last ten minutes."""
    return sum(times for code, seen in _newer(classes, now).items() if which(code) for _minute, times in seen["counts"])


def of_memory(code: str) -> bool:
    """Whether a class means that memory was short."""
    return code.startswith("mem.") or "oom" in code


def others(classes: Mapping[str, Any], now: float) -> list[tuple[str, int]]:
    """(class, times) of what no finding of its own speaks of, the most frequent first."""
    codes = [code for code in _newer(classes, now) if code not in OWN and not of_memory(code) and code in BY_CODE]
    counted = [(code, recent(classes, now, {code}.__contains__)) for code in codes]
    return sorted(counted, key=lambda pair: -pair[1])


def said(seen: Mapping[str, Any], code: str) -> dict[str, Any]:
    """The class in its own words, with a line that shows it."""
    rule = BY_CODE[code]
    return {"title": rule.title, "why": rule.why, "line": seen.get("line", "")}
