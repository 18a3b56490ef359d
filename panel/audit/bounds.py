"""What a record may hold: JSON of a bounded size with secrets hidden, and one-line texts. Knows no Django."""

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from enum import Enum
from typing import Any

from panel.core.mask import mask, mask_text

TEXT = 2000  # characters of one text
ITEMS = 100  # entries of one list or mapping
DEPTH = 6
DOCUMENT = 16 << 10  # bytes of one document


def bounded(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as plain JSON, secrets hidden, cut to size. What was cut says so."""
    plain: dict[str, Any] = _plain(mask(dict(document)), 0)
    if len(json.dumps(plain)) <= DOCUMENT:
        return plain
    short: dict[str, Any] = {}
    for name, value in plain.items():
        text = value if isinstance(value, str | int | float | bool | None) else json.dumps(value)
        short[name[:100]] = text[:200] + "…" if isinstance(text, str) and len(text) > 200 else text
        if len(json.dumps(short)) > DOCUMENT:
            short.pop(name[:100])
            break
    return {**short, "cut": True}


def line(text: Any, limit: int) -> str:
    """One line of at most `limit` characters, without control characters, secrets hidden."""
    clean = "".join(sign if sign.isprintable() else " " for sign in _text(str(text))[: limit * 4])
    clean = mask_text(" ".join(clean.split()))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _text(text: str) -> str:
    """Without what PostgreSQL cannot store: NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, depth)
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)[:TEXT]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return _plain_mapping(value, depth)
    if isinstance(value, list | tuple):
        if depth >= DEPTH:
            return "…"
        items = [_plain(item, depth + 1) for item in value[:ITEMS]]
        return [*items, f"… {len(value) - ITEMS} more"] if len(value) > ITEMS else items
    text = _text(str(value))
    return text if len(text) <= TEXT else text[:TEXT] + "…"


def _plain_mapping(value: Mapping[Any, Any], depth: int) -> Any:
    if depth >= DEPTH:
        return "…"
    items = list(value.items())
    plain = {_text(str(name))[:100]: _plain(item, depth + 1) for name, item in items[:ITEMS]}
    if len(items) > ITEMS:
        plain["…"] = f"{len(items) - ITEMS} more"
    return plain
