"""Options and further flags of a spec brought together into one checked set of values. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.engines import changes
from deployments.engines.base import EngineRefusal, Reason
from deployments.engines.options import Option, Schema, check_value, normal_flag, to_argv
from deployments.engines.tokens import expand

_SHORT_LEVEL = re.compile(r"-O=?([0-3])?")


@dataclass
class Values:
    """Checked values by option name, dotted ones (`--speculative-config.model x`) apart, and what was changed."""

    schema: Schema
    device: str
    version: str
    roots: tuple[str, ...] = ()
    set: dict[str, Any] = field(default_factory=dict)
    dotted: list[tuple[str, str]] = field(default_factory=list)
    notes: list[Reason] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)

    def add(self, name: str, value: Any) -> None:
        """One option by name; translated or refused when the parser does not have it."""
        if value is None:
            return
        option = self.schema.get(name)
        if option is None:
            self._add_gone(name, value)
            return
        value = _typed(option, value)
        reason = check_value(option, value, self.roots)
        if reason:
            self.reasons.append(reason)
        elif name in self.set and isinstance(self.set[name], dict) and isinstance(value, dict):
            self.set[name] = self.set[name] | value
        elif name in self.set and self.set[name] != value:
            self.reasons.append(Reason("option.twice", {"flag": option.flag}, name))
        else:
            self.set[name] = value

    def _add_gone(self, name: str, value: Any) -> None:
        done = changes.apply(name, value, self.schema, device=self.device, version=self.version)
        if done.refusal:
            self.reasons.append(done.refusal)
        if done.note:
            self.notes.append(done.note)
        for new, new_value in done.values.items():
            self.add(new, new_value)

    def add_words(self, elements: Iterable[str]) -> None:
        """Further flags as argv elements or pasted lines; `--a b` and `--a=b` alike."""
        try:
            words = expand(elements)
        except EngineRefusal as refusal:
            self.reasons += refusal.reasons
            return
        while words:
            word = words.pop(0)
            if not _is_flag(word):
                self.reasons.append(Reason("args.stray", {"word": word[:100]}, "extra_args"))
                continue
            head, has_value, value = word.partition("=")
            self._add_flag(normal_flag(head), value if has_value else None, words)

    def _add_flag(self, flag: str, value: str | None, words: list[str]) -> None:
        if _SHORT_LEVEL.fullmatch(flag):
            level = flag[2:].lstrip("=") or value or (words.pop(0) if words and words[0].isdigit() else "")
            if self.schema.get("optimization_level"):
                self.add("optimization_level", level)
            else:
                self.add("compilation_config", {"level": int(level or 0)})
            return
        head, dot, _key = flag.partition(".")
        option = self.schema.find(head)
        if option is None:
            self._add_unknown(head, value, words)
        elif dot:
            self._add_dotted(option, flag, value, words)
        elif option.kind == "bool":
            self.add(option.name, self._switch(option, head, value, words))
        else:
            self._add_valued(option, value, words)

    def _switch(self, option: Option, flag: str, value: str | None, words: list[str]) -> Any:
        if value is None and words and words[0].lower() in ("true", "false"):
            value = words.pop(0)
        if value is not None and value.lower() not in ("true", "false"):
            return value  # check_value says what is wrong
        on = value is None or value.lower() == "true"
        return on != (flag == option.negative)

    def _add_valued(self, option: Option, value: str | None, words: list[str]) -> None:
        if option.many:
            items = [] if value is None else [value]
            while words and not _is_flag(words[0]):
                items.append(words.pop(0))
            self.add(option.name, items)
            return
        if value is None and words and not _is_flag(words[0]):
            value = words.pop(0)
        if value is None and option.optional_value:  # a switch of old releases: `--enable-chunked-prefill [true]`
            self.add(option.name, True)
        elif value is None and not option.denied:
            self.reasons.append(Reason("option.missing_value", {"flag": option.flag}, option.name))
        else:
            self.add(option.name, value if value is not None else "")

    def _add_dotted(self, option: Option, flag: str, value: str | None, words: list[str]) -> None:
        if value is None:
            value = words.pop(0) if words and not _is_flag(words[0]) else "true"
        inner: Any = _json_or_text(value)
        for key in reversed(flag.split(".")[1:]):
            inner = {key.replace("-", "_"): inner}
        reason = check_value(option, inner, self.roots)
        if option.kind != "json" or "" in flag.split("."):
            reason = reason or Reason("option.not_structured", {"flag": flag}, option.name)
        if reason:
            self.reasons.append(reason)
        else:
            self.dotted.append((flag, value))

    def _add_unknown(self, flag: str, value: str | None, words: list[str]) -> None:
        """A flag that the parser does not have: its value belongs to it, so that it is not reported as well."""
        name = flag.lstrip("-").replace("-", "_")
        negated = name.startswith("no_") and name[3:] in changes.CHANGES
        change = changes.CHANGES.get(name[3:] if negated else name)
        takes_value = value is None and not (change and change.switch) and words and not _is_flag(words[0])
        if takes_value:
            value = words.pop(0)
        if change and change.switch:
            on = value is None or value.lower() == "true"
            self.add(name[3:] if negated else name, on != negated)
        else:
            self.add(name, value if value is not None else True)

    def argv(self) -> list[str]:
        """argv elements of everything that was set, in the order it came."""
        words: list[str] = []
        for name, value in self.set.items():
            words += to_argv(self.schema.by_name[name], value)
        for flag, value in self.dotted:
            words.append(f"{flag}={value}")
        return words


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-[0-9.]+", word)


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _typed(option: Option, value: Any) -> Any:
    """Text that stands for a number or JSON becomes one, so that `"4"` and `4` are the same value."""
    if not isinstance(value, str):
        return value
    if option.kind == "int" and re.fullmatch(r"-?\d+", value.strip()):
        return int(value)
    if option.kind == "float" and re.fullmatch(r"-?\d+(\.\d*)?", value.strip()):
        return float(value)
    if option.kind == "json":
        if option.name == "limit_mm_per_prompt" and re.fullmatch(r"\w+=\d+(,\w+=\d+)*", value):
            return {key: int(number) for key, number in (pair.split("=") for pair in value.split(","))}  # until 0.8
        parsed = _json_or_text(value)
        return parsed if isinstance(parsed, dict | list) else value
    return value


def from_spec(values: Values, options: Mapping[str, Any], extra_args: Iterable[str]) -> None:
    """Fill `values` from a spec's typed options and its further flags."""
    for name, value in options.items():
        values.add(str(name).replace("-", "_"), value)
    values.add_words(extra_args)
