"""What a serving engine says of itself, in one set of names, and how the panel keeps it: points by time. Pure.

Totals count from the engine's start and only grow. None: this engine does not tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Annotated, Any

from pydantic import BeforeValidator

from panel.fleet.wire_base import Message, Text, Time

ASKED_PATHS = ("/health", "/metrics")  # of each engine that listens
MOST = float(1 << 53)  # a larger number is none that anything counted


def number(value: Any) -> float | None:
    """A number that something can have measured, else None: an engine's odd number must not make its host silent."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST else None  # NaN is not, and 10^400 has no float


Number = Annotated[float | None, BeforeValidator(number)]


class Serving(Message):
    """One look at an engine that serves. `problem` is a code why its numbers could not be read: timeout, refused,
    http_<status>, too_large, empty. `health` is the status of its own /health, None where it gave none.

    `kv_usage` is the share of the memory for conversations that is in use, 0 to 1. `steps` are rounds of calculation, a
    sign of life while one long answer is made. `done` requests were answered, `failed` ended by an error of the engine,
    `aborted` were left by whoever asked; `http_ok`, `http_4xx` and `http_5xx` are answers below /v1 by their status.
    """

    at: Time  # host clock
    problem: Text = ""
    health: int | None = None
    running: Number = None
    waiting: Number = None
    kv_usage: Number = None
    preemptions: Number = None
    prompt_tokens: Number = None
    generation_tokens: Number = None
    steps: Number = None
    done: Number = None
    failed: Number = None
    aborted: Number = None
    http_ok: Number = None
    http_4xx: Number = None
    http_5xx: Number = None


@dataclass(frozen=True)
class Point:
    """A look at an engine as the panel keeps it: its numbers beside what its host measured. `at` is by our clock.

    Kept as a list in the order of these fields, so new ones are added at the end.
    """

    at: float
    problem: str = ""
    health: int | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    steps: float | None = None
    done: float | None = None
    failed: float | None = None
    aborted: float | None = None
    http_ok: float | None = None
    http_4xx: float | None = None
    http_5xx: float | None = None
    rss_mib: int | None = None
    gpu_pct: float | None = None  # of the GPUs that hold its processes, the mean
    processes: int | None = None
    gpu_mib: int | None = None  # what its processes hold of GPUs

    def pack(self) -> list[Any]:
        """As a JSON list."""
        return list(astuple(self))

    @classmethod
    def unpack(cls, values: Sequence[Any]) -> Point:
        """One that an older or a newer panel kept."""
        return cls(*values[: len(_FIELDS)])

    @classmethod
    def of(cls, seen: Serving, at: float, **measured: Any) -> Point:
        """What an agent saw, at a time of our clock."""
        return cls(**{**seen.model_dump(), "at": at, "problem": seen.problem[:40], **measured})

    @property
    def life(self) -> float | None:
        """What grows whenever it calculates; None where nothing of the kind is told."""
        told = [n for n in (self.prompt_tokens, self.generation_tokens, self.steps) if n is not None]
        return sum(told) if told else None


_FIELDS = fields(Point)
