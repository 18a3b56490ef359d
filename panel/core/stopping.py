"""What has to hear at once that the web process is told to stop."""

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any


def when_server_stops(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Uvicorn waits for open streams when it is told to stop, so they must hear of it too: chain its signal handler."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if not type(getattr(before, "__self__", None)).__module__.startswith("uvicorn"):
            continue

        def handler(received: int, frame: Any, before: Any = before) -> None:
            loop.call_soon_threadsafe(act)
            before(received, frame)

        signal.signal(number, handler)
