"""Smaller things that a Hugging Face folder tells: defaults for answering, licence, what a download left. Pure."""

from __future__ import annotations

import re
from typing import Any

from models_catalog.inspect.listing import Listing
from models_catalog.inspect.reading import clean, open_regular, real

GENERATION = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "max_new_tokens", "max_length",
)  # fmt: skip
# What downloaders leave beside a file that is not whole. aria2 makes it as long as the whole one from the start.
CONTROL = ".aria2"
PARTS = (".part", ".incomplete", ".crdownload", ".partial", ".download", ".aria2", ".!qb", ".tmp")
README_HEAD = 16 << 10
_LICENCE = re.compile(r"^(license(?:_name)?):[ \t]*['\"]?([^'\"\n]{1,100}?)['\"]?[ \t]*$", re.MULTILINE)
_FRONT = re.compile(r"\A---\s*\n(.*?)\n---", re.DOTALL)


def generation_of(config: dict[str, Any]) -> dict[str, float]:
    """The numbers of generation_config.json that engines take as their defaults."""
    return {name: number for name in GENERATION if (number := real(config.get(name))) is not None}


def licence_of(listing: Listing) -> str:
    """As the head of README.md names it; the name of an own licence rather than "other". "" when nothing does."""
    file = listing.files.get("README.md")
    if file is None:
        return ""
    try:
        with open_regular(file.real) as stream:
            text = stream.read(README_HEAD).decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError:
        return ""
    front = _FRONT.match(text)
    told = dict(_LICENCE.findall(front[1])) if front else {}
    named = told.get("license_name", "") if told.get("license") in (None, "other") else ""
    return clean(named or told.get("license"), 60)


def unfinished(listing: Listing) -> list[str]:
    """Names of files that belong to a download which has not ended."""
    return [clean(name) for name in sorted(listing.files) if name.lower().endswith(PARTS) and _of_weights(name)]


def _of_weights(name: str) -> bool:
    low = name.lower()
    return any(end in low for end in (".safetensors", ".gguf", ".bin", ".pt", ".pth")) or low.endswith(".incomplete")


def not_whole_yet(listing: Listing, name: str) -> bool:
    """Whether a downloader is still at work on a file, whatever its length."""
    return name + CONTROL in listing.files
