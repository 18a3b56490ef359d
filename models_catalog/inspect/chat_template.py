"""Where a Hugging Face folder keeps its chat templates. Pure; a template is read and never rendered here."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

from models_catalog.inspect.listing import Listing
from models_catalog.inspect.reading import Unusable, clean, open_regular, read_json_object

FILE = "chat_template.jinja"
JSON_FILE = "chat_template.json"
CONFIG = "tokenizer_config.json"
FOLDER = "additional_chat_templates"  # of named ones, beside the default
TEKKEN = "tekken.json"  # Mistral's tokenizer lays out a chat by itself
MAX_NAMED = 20
MAX_TEXT = 64 << 10  # characters; the longest real ones have 30,000
DEFAULT = "default"


def templates_of(listing: Listing, tokenizer_config: dict[str, Any]) -> tuple[str, list[str]]:
    """(place of the template that engines will use, names of all there are); ("", []) when there is none.

    A file of its own wins over the tokenizer's configuration, as in transformers.
    """
    named = [name for name in _in_folder(listing) if name != DEFAULT]
    if listing.has(FILE) and listing.files[FILE].size:
        return FILE, [DEFAULT, *named]
    if found := _in_json(listing):
        return JSON_FILE, _all(found, named)
    if found := _names(tokenizer_config.get("chat_template")):
        return CONFIG, _all(found, named)
    if named:
        return f"{FOLDER}/{named[0]}.jinja", named
    return (TEKKEN, [DEFAULT]) if listing.has(TEKKEN) else ("", [])


def text_of(listing: Listing, tokenizer_config: dict[str, Any], source: str, names: list[str]) -> str:
    """The template that engines use, from the place that `templates_of` named. "" when it is not text, or too long."""
    try:
        if source.endswith(".jinja"):
            path = listing.files[FILE].real if source == FILE else str(Path(listing.path) / source)
            with open_regular(path) as stream:
                return template_text(stream.read(MAX_TEXT + 1).decode("utf-8", "replace"))
        config = read_json_object(listing.files[JSON_FILE].real) if source == JSON_FILE else tokenizer_config
    except (Unusable, OSError, KeyError):
        return ""
    return template_text(_chosen(config.get("chat_template"), names)) if source in (JSON_FILE, CONFIG) else ""


def _chosen(value: object, names: list[str]) -> object:
    """The default one, else the first."""
    if isinstance(value, list):
        value = {
            clean(item.get("name"), 40) or DEFAULT: item.get("template") for item in value if isinstance(item, dict)
        }
    return value.get(names[0] if names else DEFAULT) if isinstance(value, dict) else value


def template_text(text: object) -> str:
    """As a database takes it. "" when it is too long: half a template is none."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        return ""
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" or c == "\0" else c for c in text)


def _all(found: list[str], named: list[str]) -> list[str]:
    return list(dict.fromkeys([*found, *named]))[:MAX_NAMED]


def _in_json(listing: Listing) -> list[str]:
    if not listing.has(JSON_FILE):
        return []
    try:
        return _names(read_json_object(listing.files[JSON_FILE].real).get("chat_template"))
    except (Unusable, OSError):
        return []  # an unreadable extra file is no template; the next home may have one


def _names(value: object) -> list[str]:
    """Names of the templates that are not empty: one text, a list of named texts, or an object of them."""
    if isinstance(value, list):
        pairs = [(item.get("name"), item.get("template")) for item in value[:MAX_NAMED] if isinstance(item, dict)]
    elif isinstance(value, dict):
        pairs = list(islice(value.items(), MAX_NAMED))
    else:
        pairs = [(DEFAULT, value)]
    found = [clean(name, 40) or DEFAULT for name, text in pairs if isinstance(text, str) and text.strip()]
    return sorted(dict.fromkeys(found), key=lambda name: name != DEFAULT)


def _in_folder(listing: Listing) -> list[str]:
    """Names of the templates in the folder for further ones."""
    if FOLDER not in listing.folders:
        return []
    try:
        with os.scandir(Path(listing.path) / FOLDER) as entries:
            names = [entry.name for entry in islice(entries, 200) if entry.name.endswith(".jinja") and entry.is_file()]
    except OSError:
        return []
    return sorted(clean(name.removesuffix(".jinja"), 40) for name in names)[:MAX_NAMED]
