"""The agent's log: plain lines for people, or one JSON object a line (BERTH_LOG_FORMAT=json), as the panel writes them.

A line that belongs to a job says the id of the request that ordered it (`extra={"trace": …}`), which is also in the
panel's lines and in the shim's run.json. Secrets are hidden last, when a line is whole, as the panel hides them: an
exception may quote the login of a package source or of a proxy.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime, timezone

from panel.core import tracebacks
from panel.core.mask import mask_text


class Plain(logging.Formatter):
    def __init__(self, form: str = "%(asctime)s %(name)s: %(shown)s%(message)s") -> None:
        super().__init__(form)

    def format(self, record: logging.LogRecord) -> str:
        found = getattr(record, "trace", "")
        record.shown = f"[{found}] " if found else ""
        return mask_text(super().format(record))


class JsonLine(logging.Formatter):
    """{"time", "level", "logger", "message", "id", "process", "error"}; what is empty is left out."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": mask_text(record.getMessage()),
            "id": getattr(record, "trace", ""),
            "process": record.process,
            "error": mask_text(self.formatException(record.exc_info)) if record.exc_info else "",
        }
        return json.dumps({key: value for key, value in values.items() if value not in ("", None)}, ensure_ascii=False)


def set_up(env: Mapping[str, str]) -> None:
    """To standard error; the form is that of the environment, plain unless it says json."""
    _begin(logging.StreamHandler(sys.stderr), JsonLine() if env.get("BERTH_LOG_FORMAT") == "json" else Plain())
    logging.getLogger("httpx").setLevel(logging.WARNING)


def set_up_job() -> None:
    """Of a job's own process: the bare messages to standard output, which is the job's log."""
    _begin(logging.StreamHandler(sys.stdout), Plain("%(message)s"))


def _begin(handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    tracebacks.hide_secrets()
