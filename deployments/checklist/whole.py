"""Whether the weights lie on the host as they were found there: what the host compares, and what it says. Pure.

Names and sizes alone: a look that costs nothing, where a scan may be days old.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.checklist.findings import Finding
from deployments.mending.around import Around
from deployments.mending.fix import Fix
from panel.fleet.wire_base import MAX_NUMBER

MOST = 1000  # files that an order names
MOST_TOLD = 5
ODD = "\ufffd"  # stands in a name for what no text can hold


def inventory(path: str, form: str, facts: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(name beside or within `path`, bytes) of the weights. A lone GGUF may be called otherwise on each host."""
    files = [file for file in facts.get("files") or [] if file.get("kind") == "weights"]
    own = path.rpartition("/")[2]
    if form == "gguf" and len(files) == 1:
        return [(own, int(files[0]["size"]))]
    if form == "gguf" and own not in [file["name"] for file in files]:
        return []
    return [(file["name"], int(file["size"])) for file in files[:MOST] if ODD not in file["name"]]


def findings(said: Mapping[str, Any], around: Around) -> list[Finding]:
    """What the host, whose words may be anything, found missing or of another size."""
    told = said.get("files")
    found = []
    for file in told[:MOST_TOLD] if isinstance(told, list) else []:
        if not isinstance(file, dict) or not isinstance(file.get("name"), str):
            continue
        now, was = file.get("now"), file.get("was")
        if now is None and not _is_size(was):
            continue
        params = {"file": file["name"][:200], "now": now, "was": was}
        if now is None:
            code = "check.file_gone"
        elif _is_size(now) and _is_size(was):
            code = "check.file_short" if now < was else "check.file_other"
        else:
            continue
        fix = Fix("repair", "fix.at_model", link="model", target=around.model)
        level = "warning" if code == "check.file_other" else "error"
        found.append(Finding(level, code, params, "", (fix,) if around.model is not None else ()))  # type: ignore[arg-type]
    return found


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_NUMBER
