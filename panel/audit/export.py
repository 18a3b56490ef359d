"""The record as a file: CSV for a spreadsheet, JSON for a program; written while it is read, in small parts."""

import csv
import io
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from panel.audit.models import Event
from panel.audit.queries import Filters, page_of
from panel.audit.wording import plain_sentence

CHUNK = 500  # rows in memory at a time
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # what a spreadsheet would run or move
# The same behind what a spreadsheet may take for the end of a cell: in half of Europe that is a semicolon.
INNER = re.compile(r"([;|\t][\s\"']*)(?=[=+\-@＝＋－＠])")
COLUMNS = (
    "id", "at", "actor", "actor_id", "address", "verb", "text", "target_kind", "target_id", "target", "story",
    "outcome", "count", "before", "after", "facts",
)  # fmt: skip


def row_of(event: Event) -> dict[str, Any]:
    """One record with its sentence in the active language. Secrets were hidden when it was written."""
    computed = {"at": event.at.isoformat(), "text": plain_sentence(event)}
    return {name: computed[name] if name in computed else getattr(event, name) for name in COLUMNS}


def safe_cell(value: Any) -> str:
    """A value as a cell that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = INNER.sub(r"\1'", text)
    return f"'{text}" if text.startswith(FORMULA) else text


def as_csv(events: list[Event], first: bool) -> str:
    """Lines of CSV; the first part begins with the names of the columns."""
    out = io.StringIO()
    lines = csv.writer(out)
    if first:
        out.write("\ufeff")  # without it, spreadsheets take UTF-8 for something else
        lines.writerow(COLUMNS)
    lines.writerows([safe_cell(value) for value in row_of(event).values()] for event in events)
    return out.getvalue()


def as_json(events: list[Event], first: bool) -> str:
    """The rows of a JSON list, each with what must stand before it."""
    rows = [json.dumps(row_of(event), ensure_ascii=False) for event in events]
    return ("[\n" if first else "") + "".join((",\n" if n or not first else "") + row for n, row in enumerate(rows))


WRITERS: dict[str, tuple[str, Callable[[list[Event], bool], str], str]] = {
    # format → its content type, what writes a part of it, and its end
    "csv": ("text/csv; charset=utf-8", as_csv, ""),
    "json": ("application/json; charset=utf-8", as_json, "\n]\n"),
}


async def parts(form: str, filters: Filters, *, before: int) -> AsyncIterator[bytes]:
    """What matches and is older than the row `before`, newest first, part by part."""
    _type, write, end = WRITERS[form]
    first = True
    left: int | None = before

    def read(older: int) -> tuple[str, int | None]:
        try:
            found = page_of(filters, before=older, size=CHUNK)
            return write(found.events, first) if found.events or first else "", found.older
        finally:
            if not connection.in_atomic_block:  # a slow reader must not keep a connection
                connection.close()

    while left is not None:
        text, left = await sync_to_async(read)(left)
        if text:
            first = False
            yield text.encode()
    if end:
        yield end.encode()
