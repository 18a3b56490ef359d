"""What failed as a file: CSV for a spreadsheet, JSON for a program; written while it is read, in small parts."""

import csv
import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.db.models import QuerySet

from deployments import failures_read
from deployments.models import Failure
from panel.audit.export import safe_cell
from panel.core.mask import mask_text

CHUNK = 200  # rows in memory at a time
COLUMNS = (
    "at", "run", "deployment", "number", "class", "phase", "confidence", "engine", "engine_version", "host", "model",
    "root_line", "error", "mended_by", "mended_change", "right", "note", "judged_by", "judged_at",
)  # fmt: skip


def row_of(row: Failure) -> dict[str, Any]:
    """One failure. The log was masked when it was kept; its lines are looked at once more before they leave."""
    block, params = row.run.error_block or {}, row.run.reason.get("params") or {}
    return {
        "at": row.at.isoformat(),
        "run": str(row.run_id),
        "deployment": row.deployment.name,
        "number": row.run.number,
        "class": row.code or None,
        "phase": row.phase,
        "confidence": params.get("confidence"),
        "engine": row.engine,
        "engine_version": row.engine_version,
        "host": row.host_name,
        "model": row.model_name,
        "root_line": block.get("root_line"),
        "error": [mask_text(str(line)) for line in block.get("lines") or []],
        "mended_by": row.mended_by.number if row.mended_by is not None else None,
        "mended_change": row.mended_change,
        "right": row.right,
        "note": mask_text(row.note),
        "judged_by": row.judged_by,
        "judged_at": row.judged_at.isoformat() if row.judged_at else None,
    }


def as_csv(rows: list[dict[str, Any]], first: bool) -> str:
    """Lines of CSV; the first part begins with the names of the columns. An error is one cell of several lines."""
    out = io.StringIO()
    lines = csv.writer(out)
    if first:
        out.write("\ufeff")  # without it, spreadsheets take UTF-8 for something else
        lines.writerow(COLUMNS)
    lines.writerows([safe_cell(_cell(name, row[name])) for name in COLUMNS] for row in rows)
    return out.getvalue()


def _cell(name: str, value: Any) -> Any:
    return "\n".join(value) if name == "error" else value


def as_json(rows: list[dict[str, Any]], first: bool) -> str:
    """The rows of a JSON list, each with what must stand before it."""
    made = [json.dumps(row, ensure_ascii=False) for row in rows]
    return ("[\n" if first else "") + "".join((",\n" if n or not first else "") + row for n, row in enumerate(made))


WRITERS: dict[str, tuple[str, Callable[[list[dict[str, Any]], bool], str], str]] = {
    # format → its content type, what writes a part of it, and its end
    "csv": ("text/csv; charset=utf-8", as_csv, ""),
    "json": ("application/json; charset=utf-8", as_json, "\n]\n"),
}


def part_of(rows: "QuerySet[Failure]", before: int | None) -> tuple[list[dict[str, Any]], int | None]:
    """The next rows, and the id to go on from; None: these were the oldest."""
    older = rows if before is None else rows.filter(pk__lt=before)
    found = list(failures_read.with_errors(older)[:CHUNK])
    return [row_of(row) for row in found], found[-1].pk if len(found) == CHUNK else None


async def parts(form: str, rows: "QuerySet[Failure]") -> AsyncIterator[bytes]:
    """What matches, newest first, part by part."""
    _type, write, end = WRITERS[form]
    first, before, more = True, None, True

    def read(older: int | None) -> tuple[str, int | None]:
        try:
            found, left = part_of(rows, older)
            return write(found, first) if found or first else "", left
        finally:
            if not connection.in_atomic_block:  # a slow reader must not keep a connection
                connection.close()

    while more:
        text, before = await sync_to_async(read)(before)
        first, more = False, before is not None
        if text:
            yield text.encode()
    if end:
        yield end.encode()
