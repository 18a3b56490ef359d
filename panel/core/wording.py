"""Codes with parameters as sentences in the viewer's language. Rooms bring the tables, this fills their places."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from panel.core.numbers import gib

Pair = tuple[Any, Any]  # what is so, and what to do next ("" when there is nothing to do); lazy translations
UNKNOWN: Pair = (_("It does not work, for a reason that has no words yet: %(code)s."), "")
_PLACE = re.compile(r"%\((\w+)(:gib)?\)s")


@dataclass(frozen=True)
class Words:
    """What is so and what to do next; `code` is for the API and support, `bad` marks what stands in the way."""

    code: str
    text: str
    hint: str = ""
    bad: bool = False


def said(table: Mapping[str, Pair], reason: Mapping[str, Any], *, other: Pair = UNKNOWN, bad: bool = False) -> Words:
    """A {code, params} in the words of `table`; a code that is not in it is said by `other`, and never hidden."""
    code = str(reason.get("code", ""))[:80]
    params = {"code": code, **(reason.get("params") or {})}
    text, hint = table.get(code, other)
    return Words(code, fill(text, params), fill(hint, params), bad)


def fill(text: Any, params: Mapping[str, Any]) -> str:
    """Put parameters into their places: `%(name)s`, or `%(name:gib)s` for MiB as GiB. What is missing is a dash."""

    def value(place: re.Match[str]) -> str:
        found = params.get(place[1])
        if found is None or found == "":
            return "—"
        if place[2]:
            try:
                return gib(found)
            except (TypeError, ValueError):  # a host said so, and may say anything
                return "—"
        return ", ".join(map(str, found)) if isinstance(found, list | tuple) else str(found)

    return _PLACE.sub(value, str(text))
