"""A log that strangers can make longer must not fill the disk."""

from __future__ import annotations

import logging
import time

MOST, WINDOW_S = 30, 60.0


class Sparse(logging.Filter):
    """At most `most` records in `window_s`; the first of the next window says how many were left out."""

    def __init__(self, most: int = MOST, window_s: float = WINDOW_S) -> None:
        super().__init__()
        self.most, self.window_s = most, window_s
        self._began, self._count = float("-inf"), 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._began >= self.window_s:
            left_out, self._began, self._count = max(0, self._count - self.most), now, 0
            if left_out:
                record.msg, record.args = f"{record.getMessage()} (before it {left_out} more were left out)", ()
        self._count += 1
        return self._count <= self.most
