"""Single words of a command: names, sizes and numbers as people write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deployments.engines.options import normal_flag

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)(?:i|iB)?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def slug(text: str) -> str:
    """A deployment's name from any other: small letters, digits, dots and dashes, at most 63."""
    last = text.strip().rstrip("/").rpartition("/")[2].lower()
    clean = "".join(char if char.isascii() and (char.isalnum() or char in ".-") else "-" for char in last)
    return re.sub(r"-{2,}", "-", clean)[:63].strip("-.")


def size_of(text: str) -> int | None:
    """4096, 32k or 32K as a number; None for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if not found or len(text) > 20:
        return None
    number = int(float(found[1]) * _UNITS[found[2]])
    return number if 0 < number < 2**31 else None


def number_of(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{0,6}\.?\d{0,12}", text) and text.strip(".") else None


def whole(elements: Sequence[str]) -> str:
    """A flag and its one value behind `=`, so that a value with dashes or blanks stays one."""
    flag, value = elements
    return f"{normal_flag(flag)}={value}" if flag.startswith("--") else " ".join(elements)


def is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-[0-9.]+", word)
