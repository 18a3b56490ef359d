"""Typed options from the schema of the runtime's own parser: what exists, what it takes, what the house denies. Pure.

A schema is a list of rows {group, flags, dest, default, choices, nargs, type, help}, as argparse holds them, and
`known` names where the host told them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from deployments.engines import denied
from deployments.engines.reason import Reason

Kind = Literal["bool", "int", "float", "size", "json", "text"]
MAX_VALUE = 20_000  # characters of one value
_SIZE = re.compile(r"-?\d+(\.\d+)?[kKmMgGtT]?(iB|i)?")
_SIZE_TYPES = ("human_readable_int",)
# Long help texts are cut, and the words above stand at their end; the names tell as well.
_JSON_NAMES = re.compile(r"\w+_(config|kwargs|overrides)|rope_scaling|default_mm_loras|custom_histogram_buckets")
_JSON_TYPES = ("optional_dict", "parse_dataclass", "loads", "union_dict_and_str", "_parse_type")
_JSON_HELP = ("Should either be a valid JSON string", "API docs: https://docs.vllm.ai/")

# What most people may want to change, in this order; all else is for experts.
COMMON = (
    "max_model_len",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "enforce_eager",
    "enable_prefix_caching",
    "tensor_parallel_size",
    "enable_auto_tool_choice",
    "tool_call_parser",
    "reasoning_parser",
    "chat_template",
    "limit_mm_per_prompt",
    "seed",
)
# Lowest and highest sensible value; the engine has the last word, these catch slips before a start.
RANGES: dict[str, tuple[float, float]] = {
    "max_model_len": (-1, 100_000_000),
    "gpu_memory_utilization": (0.01, 1),
    "max_num_seqs": (1, 65_536),
    "max_num_batched_tokens": (1, 10_000_000),
    "tensor_parallel_size": (1, 64),
    "pipeline_parallel_size": (1, 64),
    "data_parallel_size": (1, 64),
    "cpu_offload_gb": (0, 100_000),
    "max_loras": (1, 1_000),
}


@dataclass(frozen=True)
class Option:
    """One flag of the parser. `many` takes several values; `negative` is its --no- form, "" when it has none."""

    name: str
    flag: str
    flags: tuple[str, ...]
    kind: Kind
    many: bool = False
    optional_value: bool = False
    negative: str = ""
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()  # names that it takes; a plug-in of the engine may add more
    default: str = ""
    allows_auto: bool = False
    free_text: bool = False  # a JSON option that takes a plain word as well
    group: str = ""
    help: str = ""
    denied: str = ""  # why the house does not let people set it: house, code, network, secret, file

    @property
    def level(self) -> Literal["common", "expert", "denied"]:
        if self.denied:
            return "denied"
        return "common" if self.name in COMMON else "expert"


@dataclass(frozen=True)
class Schema:
    """All options of one runtime, found by name or by any spelling of the flag."""

    options: tuple[Option, ...] = ()
    by_name: Mapping[str, Option] = field(default_factory=dict)

    @cached_property
    def by_flag(self) -> dict[str, Option]:
        return {flag: option for option in self.options for flag in option.flags}

    def get(self, name: str) -> Option | None:
        return self.by_name.get(name)

    def find(self, flag: str) -> Option | None:
        """By flag as typed: `--a_b` is `--a-b`. Abbreviations, which argparse would guess at, are not taken."""
        return self.by_flag.get(normal_flag(flag))

    def common(self) -> list[Option]:
        return [self.by_name[name] for name in COMMON if name in self.by_name]

    def expert(self) -> dict[str, list[Option]]:
        """{group: options} of everything else that may be set."""
        groups: dict[str, list[Option]] = {}
        for option in self.options:
            if option.level == "expert":
                groups.setdefault(option.group, []).append(option)
        return groups


def normal_flag(flag: str) -> str:
    return "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag


def parse_schema(rows: Iterable[Mapping[str, Any]]) -> Schema:
    """The schema of a runtime; rows that are not flags (the positional model, --help) are left out."""
    options = [option for option in map(_option, rows) if option is not None]
    return Schema(tuple(options), {option.name: option for option in options})


def _option(row: Mapping[str, Any]) -> Option | None:
    flags = tuple(str(flag) for flag in row.get("flags") or ())
    positive = [flag for flag in flags if not flag.startswith("--no-")]
    long = [flag for flag in positive if flag.startswith("--")]
    if not positive or "--help" in flags:
        return None
    flag = long[0] if long else positive[0]
    nargs, type_name, text = str(row.get("nargs")), str(row.get("type")), str(row.get("help") or "")
    name = str(row.get("dest") or flag.lstrip("-").replace("-", "_"))
    default = str(row.get("default") if row.get("default") is not None else "None")
    return Option(
        name=name,
        flag=flag,
        flags=flags,
        kind=_kind(name, nargs, type_name, text),
        many=nargs in ("+", "*"),
        optional_value=nargs == "?",
        negative=next((flag for flag in flags if flag.startswith("--no-")), ""),
        choices=tuple(str(choice) for choice in row.get("choices") or ()),
        known=tuple(str(name) for name in row.get("known") or ()),
        default="" if default in ("None", "'==SUPPRESS=='") else default.strip("'"),
        allows_auto=type_name.endswith("_or_auto"),
        free_text=type_name == "union_dict_and_str",
        group=str(row.get("group") or ""),
        help=" ".join(text.split()),
        denied=denied.FLAGS.get(name, ""),
    )


def _kind(name: str, nargs: str, type_name: str, help_text: str) -> Kind:
    if nargs == "0":
        return "bool"
    if type_name in ("int", "optional_int"):
        return "int"
    if type_name in ("float", "optional_float"):
        return "float"
    if type_name.startswith(_SIZE_TYPES) or "human-readable integers" in help_text:
        return "size"
    named = type_name in ("_optional_type", "None") and _JSON_NAMES.fullmatch(name)
    if type_name in _JSON_TYPES or named or any(mark in help_text for mark in _JSON_HELP):
        return "json"
    return "text"


# --- values ----------------------------------------------------------------------------------------------------------


def check_value(option: Option, value: Any, roots: Iterable[str] = ()) -> Reason | None:
    """Why this value cannot be; None when it can. Values are typed as JSON, or text as typed by a person."""
    if option.denied:
        return Reason(f"option.denied_{option.denied}", {"flag": option.flag}, option.name)
    items = value if option.many and isinstance(value, list) else [value]
    if not items:
        return _reason(option, "option.missing_value")
    for item in items:
        reason = _check_item(option, item) or denied.check_content(option.name, option.flag, item, tuple(roots))
        if reason:
            return reason
    return None


def _reason(option: Option, code: str, **params: Any) -> Reason:
    return Reason(code, {"flag": option.flag, **params}, option.name)


def _check_item(option: Option, value: Any) -> Reason | None:
    text = to_text(value)
    if (
        len(text) > MAX_VALUE
        or "\x00" in text
        or (option.kind != "json" and "\n" in text and option.name != "chat_template")
    ):
        return _reason(option, "option.bad_text")
    if text == "{port}":
        return _reason(option, "option.bad_text")
    if option.choices and text not in option.choices:
        return _reason(option, "option.not_a_choice", value=text[:100], choices=list(option.choices))
    if option.kind == "bool":
        return None if isinstance(value, bool) else _reason(option, "option.not_a_switch", value=text[:100])
    if option.kind in ("int", "float", "size"):
        return _check_number(option, text)
    if option.kind == "json":
        return _check_json(option, value, text)
    if isinstance(value, dict | list):
        return _reason(option, "option.not_text", value=text[:100])
    return None if text.strip() else _reason(option, "option.missing_value")


def _check_number(option: Option, text: str) -> Reason | None:
    if option.allows_auto and text == "auto":
        return None
    if option.kind == "size":
        if not _SIZE.fullmatch(text):
            return _reason(option, "option.not_a_size", value=text[:100])
        number = float(re.sub(r"[kKmMgGtTiB]+$", "", text))
        if text[-1:].isalpha():
            return None if number > 0 else _reason(option, "option.not_a_size", value=text[:100])
    else:
        try:
            number = int(text) if option.kind == "int" else float(text)
        except ValueError:
            return _reason(option, f"option.not_{'an_int' if option.kind == 'int' else 'a_number'}", value=text[:100])
    low, high = RANGES.get(option.name, (-(2.0**63), 2.0**63))
    if not low <= number <= high:  # NaN is in no range
        return _reason(option, "option.out_of_range", value=text[:100], low=low, high=high)
    return None


def _check_json(option: Option, value: Any, text: str) -> Reason | None:
    if isinstance(value, dict | list):
        return None
    try:
        json.loads(text)
    except RecursionError:
        return _reason(option, "option.bad_json", value=text[:100], error="nested too deep")
    except ValueError as exc:
        plain = option.free_text and not text.lstrip().startswith(("{", "["))
        return None if plain and text.strip() else _reason(option, "option.bad_json", value=text[:100], error=str(exc))
    return None


def to_text(value: Any) -> str:
    """One value as argv text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def to_argv(option: Option, value: Any) -> list[str]:
    """argv elements of one checked value. None and a switch that is off without a --no- form give none.

    A value that begins with a dash goes behind `=`, or the parser would take it for a flag.
    """
    if value is None:
        return []
    if option.kind == "bool":
        if value:
            return [option.flag]
        return [option.negative] if option.negative else []
    if option.many and isinstance(value, list):
        return [option.flag, *map(to_text, value)]
    text = to_text(value)
    return [f"{option.flag}={text}"] if text.startswith("-") else [option.flag, text]
