"""What ends a process or a thread is said without secrets: an exception quotes what it was given. Pure."""

from __future__ import annotations

import sys
import threading
import traceback
from types import TracebackType

from panel.core.mask import mask_text


def hide_secrets() -> None:
    """From now on in this process, in all its threads."""
    sys.excepthook = _say
    threading.excepthook = lambda args: _say(args.exc_type, args.exc_value, args.exc_traceback)


def _say(kind: type[BaseException], exc: BaseException | None, trace: TracebackType | None) -> None:
    if not issubclass(kind, SystemExit):
        sys.stderr.write(mask_text("".join(traceback.format_exception(kind, exc, trace))))
