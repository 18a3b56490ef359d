"""Lines of the panel's own log: whatever is written, secrets are hidden, also those in addresses and tracebacks."""

import logging

from panel.core.mask import mask_text


class Line(logging.Formatter):
    """Hides last, when the line is whole: a secret may come as a parameter, a path, or the text of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record))
