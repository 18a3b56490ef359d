"""Lines of the panel's own log: whatever is written, secrets are hidden, also those in addresses and tracebacks.

Plain lines for people, or one JSON object a line for programs (BERTH_LOG_FORMAT=json). Both say the id of what the line
belongs to (trace.py). The agent writes the same two forms, see panel/fleet/agent/loglines.py.
"""

import json
import logging
from datetime import UTC, datetime

from panel.core import trace
from panel.core.mask import mask_text

FORMS = ("plain", "json")


class Line(logging.Formatter):
    """Hides last, when the line is whole: a secret may come as a parameter, a path, or the text of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        identity = trace_of(record)
        record.trace = f"[{identity}] " if identity else ""
        try:
            return mask_text(super().format(record))
        finally:
            record.trace = identity


class JsonLine(logging.Formatter):
    """{"time", "level", "logger", "message", "id", "process", "error"}; what is empty is left out."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": mask_text(record.getMessage()),
            "id": trace_of(record),
            "process": record.process,
            "error": mask_text(self.formatException(record.exc_info)) if record.exc_info else "",
        }
        return json.dumps({key: value for key, value in values.items() if value not in ("", None)}, ensure_ascii=False)


def trace_of(record: logging.LogRecord) -> str:
    """The id that the line was given, or that of what is going on."""
    return str(getattr(record, "trace", "") or trace.current())


def as_settings(form: str, level: str) -> dict[str, object]:
    """Django's LOGGING; `form` is plain or json."""
    plain = "%(asctime)s %(levelname)s %(name)s %(trace)s%(message)s"
    formatters = {
        "plain": {"()": "panel.core.loglines.Line", "format": plain},
        "json": {"()": "panel.core.loglines.JsonLine"},
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": formatters[form]},
        "filters": {"outside": {"()": "panel.core.logbounds.Outside"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["outside"]}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {"httpx": {"level": "WARNING"}, "celery": {"level": "WARNING"}},
    }
