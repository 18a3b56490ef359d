"""Where a Hugging Face folder keeps its chat template. Pure; a template is never rendered here."""

from __future__ import annotations

from typing import Any

from models_catalog.inspect.listing import Listing
from models_catalog.inspect.reading import Unusable, read_json_object

FILE = "chat_template.jinja"
JSON_FILE = "chat_template.json"
CONFIG = "tokenizer_config.json"


def template_source(listing: Listing, tokenizer_config: dict[str, Any]) -> str:
    """The place of the template that engines will use ("chat_template.jinja", "tokenizer_config.json"), or "".

    A file of its own wins over the tokenizer's configuration, as in transformers.
    """
    if listing.has(FILE) and listing.files[FILE].size:
        return FILE
    if listing.has(JSON_FILE):
        try:
            if _is_template(read_json_object(listing.files[JSON_FILE].real).get("chat_template")):
                return JSON_FILE
        except (Unusable, OSError):
            pass  # an unreadable extra file is no template; the next home may have one
    return CONFIG if _is_template(tokenizer_config.get("chat_template")) else ""


def _is_template(value: object) -> bool:
    """A text, or a list of named texts of which one is the default."""
    if isinstance(value, list):
        return any(isinstance(item, dict) and _is_template(item.get("template")) for item in value[:20])
    return isinstance(value, str) and bool(value.strip())
