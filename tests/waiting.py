"""Waiting in tests: until something is true, never for a fixed time."""

import socket
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 3.0  # limits are for a quiet machine; a busy one is slower, not wrong


def until(what: Callable[[], Any], timeout: float = 20.0, why: str = "") -> Any:
    """The first true value of `what()`; AssertionError with `why` and the last value when none comes in time."""
    end = time.monotonic() + timeout * PATIENCE
    while not (value := what()):
        assert time.monotonic() < end, f"not within {timeout:g} s: {why or what} (last: {value!r})"
        time.sleep(0.01)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
