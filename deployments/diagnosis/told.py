"""The numbers of a failure: in its sentence, as two bars, and marked in the line that proves it. Pure.

What a class tells in numbers stands in `rules/numbers.py`. Kept with the run as plain JSON (`Told.as_dict`), with the
sentence in English and its places open, so that it is said in the reader's language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.diagnosis.result import MAX_SHOWN, Evidence
from deployments.diagnosis.rule import Rule
from deployments.diagnosis.rules.numbers import GIB, NUMBERS, Numbers

NBSP = "\u00a0"
LONGEST = 120  # characters of a value in a sentence
LONGEST_MARK = 80  # characters of a mark: more is no detail
MOST_MARKS = 8
_UNIT = re.compile(r"\s?(?:[KMGT]i?B|tokens)\b")
_PLACES = re.compile(r"%\((\w+)\)s")
_FILE = re.compile(r"[\w.-]+\.(?:safetensors|bin|pt|pth|gguf)")
_DERIVED = {"capability": "need", "found": "current", "cuda_found": "driver"}  # what is said, and which part tells it
_TRIM = " .,;:'\"{}[]"
# Numbers that are names: no groups of three digits in them.
_NAMES = frozenset({"port", "version", "driver_now", "cuda_now", "cuda_found", "capability", "found"})
_IN_GIB = {"K": 1 / (1 << 20), "M": 1 / (1 << 10), "G": 1.0, "T": 1024.0}


@dataclass(frozen=True)
class Told:
    """`say` has places for `values`, whole texts. `bars` is (needed, there is, unit); marks are [from, to)."""

    say: str = ""
    adds: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    bars: tuple[float, float, str] | None = None
    limit: bool = False
    marks: tuple[tuple[int, int], ...] = ()
    clock: str = ""  # the log's own stamp of the root line

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON; {} when there is nothing to tell."""
        if not (self.say or self.bars or self.marks):
            return {}
        return {
            "say": self.say, "adds": self.adds, "values": dict(self.values), "limit": self.limit, "clock": self.clock,
            "bars": list(self.bars) if self.bars else None, "marks": [list(mark) for mark in self.marks],
        }  # fmt: skip


def of(rule: Rule, text: str, facts: Mapping[str, Any], evidence: Evidence, clock: str = "") -> Told:
    """What the root line `text` of a class tells in numbers, with what is known beside it."""
    numbers = NUMBERS.get(rule.code)
    spans = _spans(rule, numbers, text)
    if numbers is None:
        return Told(marks=_marks(text, list(spans.values())), clock=clock)
    values = known_values(facts, evidence) | {name: text[a:b] for name, (a, b) in spans.items()}
    values |= _derived(values)
    for name in _too_coarse(numbers, values):
        del values[name]
    said = {name: _shown(name, value, values) for name, value in values.items() if not name.endswith("_unit")}
    say = next((each for each in numbers.say if _places(each) <= {name for name in said if said[name]}), "")
    bars, used = _bars(numbers, values)
    used |= _places(say) | {_DERIVED[name] for name in _places(say) if name in _DERIVED}
    own = [span for name, span in spans.items() if name in used or not used]
    needed = {name: said[name] for name in sorted(_places(say))}
    return Told(say, numbers.adds, needed, bars, numbers.limit, _marks(text, own), clock)


def sentence(why: str, told: Mapping[str, Any] | None, translate: Callable[[str], str] = str) -> str:
    """Why it failed, with its numbers where they are known; `translate` puts a text into the reader's language."""
    plain = translate(why) if why else ""
    say = str((told or {}).get("say") or "")
    if not told or not say:
        return plain
    values = told.get("values") or {}
    if not _places(say) <= set(values):
        return plain
    said = translate(say) % values
    return f"{plain} {said}".strip() if told.get("adds") else said


def known_values(facts: Mapping[str, Any], evidence: Evidence) -> dict[str, str]:
    """What is known beside the root line, by the names that sentences use. Sizes are GiB."""
    machine, options = evidence.machine, evidence.options
    room = min(machine.disks, key=lambda disk: disk[1], default=None)
    found: dict[str, Any] = {
        "weights": facts.get("weights_gib"),
        "version": facts.get("version"),
        "gpu_total": evidence.gpu_total_gib,
        "share": options.get("gpu_memory_utilization"),
        "cpu_kv": options.get("VLLM_CPU_KVCACHE_SPACE"),
        "holder": evidence.port_holder,
        "port": evidence.port if evidence.port_holder else None,
        "driver_now": machine.driver,
        "cuda_now": machine.cuda,
        "ram_free": machine.ram_free_gib,
        "ram_total": machine.ram_total_gib,
        "shm": machine.shm_gib,
        "files": machine.open_files,
        "disk": room[0] if room else None,
        "disk_free": room[1] if room else None,
        "lacks": ", ".join(machine.lacks()),
        "has": ", ".join(machine.has()),
    }
    return {name: str(value) for name, value in found.items() if value not in (None, "", False)}


def _derived(values: Mapping[str, str]) -> dict[str, str]:
    """Versions that engines print as one number: 12020 is CUDA 12.2, 75 is the capability 7.5."""
    found = {}
    for name, to in (("need", "capability"), ("current", "found")):
        if len(values.get(name, "")) in (2, 3) and values[name].isdecimal():
            found[to] = f"{values[name][:-1]}.{values[name][-1]}"
    if values.get("driver", "").isdecimal():
        number = int(values["driver"])
        found["cuda_found"] = f"{number // 1000}.{number % 1000 // 10}"
    return found


def _too_coarse(numbers: Numbers, values: Mapping[str, str]) -> set[str]:
    """Sizes that were rounded until what was needed looks no larger than what there was: they tell nothing."""
    found: set[str] = set()
    for need, have, unit in numbers.bars:
        pair = _number(need, values, unit), _number(have, values, unit)
        if unit == GIB and pair[0] is not None and pair[1] is not None and pair[0] <= pair[1]:
            found |= {need, have}
    return found


def _spans(rule: Rule, numbers: Numbers | None, text: str) -> dict[str, tuple[int, int]]:
    """Where each named part stands in the line; the rule's own pattern is heard first."""
    matches = [rule.match(text), *(pattern.search(text) for pattern in (numbers.patterns if numbers else ()))]
    spans: dict[str, tuple[int, int]] = {}
    for match in matches:
        for name, value in (match.groupdict() if match else {}).items():
            if value and value.strip(_TRIM) and name not in spans:
                start, end = match.span(name)  # type: ignore[union-attr]
                left, right = (len(value) - len(cut) for cut in (value.lstrip(_TRIM), value.rstrip(_TRIM)))
                spans[name] = (start + left, end - right)
    return spans


def _places(text: str) -> set[str]:
    return set(_PLACES.findall(text))


def _shown(name: str, value: str, values: Mapping[str, str]) -> str:
    """One value as it stands in a sentence."""
    text = value.strip()
    if name == "file":
        found = _FILE.search(text)
        text = found[0] if found else text
    elif name in ("arch", "flags"):
        parts = [part for part in re.split(r"[\s,'\"]+", text) if part]
        text = ", ".join([part for part in parts if part.startswith("-")] or parts)
    elif text.isdecimal() and name not in _NAMES and len(text) < 16:
        text = f"{int(text):,}"
    elif re.fullmatch(r"\d+\.\d{3,}", text):
        text = f"{float(text):.2f}"
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    unit = values.get(f"{name}_unit", "")
    return f"{text}{NBSP}{unit}" if unit else text


def _bars(numbers: Numbers, values: Mapping[str, str]) -> tuple[tuple[float, float, str] | None, set[str]]:
    """The first pair whose numbers are known, and the names that it takes."""
    for need, have, unit in numbers.bars:
        pair = [_number(name, values, unit) for name in (need, have)]
        if pair[0] is not None and pair[1] is not None and pair[0] > 0:
            return (pair[0], pair[1], unit), {need, have}
    return None, set()


def _number(name: str, values: Mapping[str, str], unit: str) -> float | None:
    text = values.get(name, "").replace(",", "").rstrip(".")
    try:
        number = float(text)
    except ValueError:
        return None
    if not 0 <= number < 1e12:
        return None
    own = values.get(f"{name}_unit", "")
    if unit == GIB and own:
        number *= _IN_GIB.get(own[0], 1.0)
    return round(number, 3)


def _marks(text: str, spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The parts to mark, each with its unit, in order and apart from each other."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        unit = _UNIT.match(text, end)
        end = unit.end() if unit else end
        if end > MAX_SHOWN or end - start > LONGEST_MARK or (found and start < found[-1][1]):
            continue
        found.append((start, end))
    return tuple(found[:MOST_MARKS])
