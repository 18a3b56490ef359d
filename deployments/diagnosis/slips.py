"""Whether a word is surely a slip of the pen for another one. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

OPPOSITES = (("enable", "disable"), ("min", "max"), ("input", "output"), ("prefill", "decode"), ("key", "value"))
SURE = 0.8  # how much of both words is the same, as difflib counts it


def meant(word: str, choices: Iterable[str]) -> str | None:
    """The choice that was surely meant; None where none is.

    Names that differ in a digit (deepseek_v3, deepseek_v31) or in a word that says the opposite (enable, disable) are
    names of different things, however alike they look.
    """
    known = list(dict.fromkeys(choices))
    for choice in known:
        if word and _plain(choice) == _plain(word):
            return choice
    same = [name for name in known if _digits(name) == _digits(word) and not _opposite(name, word)]
    near = difflib.get_close_matches(word, same, 1, SURE)
    return near[0] if near else None


def _plain(word: str) -> str:
    return re.sub(r"[\s_.-]", "", word).lower()


def _digits(word: str) -> list[str]:
    return re.findall(r"\d", word)


def _opposite(one: str, other: str) -> bool:
    words = [set(re.split(r"[\s_.-]", word.lower())) for word in (one, other)]
    return any({a, b} <= words[0] ^ words[1] for a, b in OPPOSITES)
