"""The HTTP client's library, loaded by who asks and not by every process: it costs megabytes in each of them."""

import sys
from typing import Any


def library() -> Any:
    """httpx, without its command line, which would load click and rich."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None makes the import fail, as documented
    import httpx

    return httpx
