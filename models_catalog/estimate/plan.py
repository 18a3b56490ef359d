"""What an estimate answers. Every number has a range and a reason; nothing here is a sentence (words.py has those)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]


@dataclass(frozen=True)
class Reason:
    """Why something is so, as a code with parameters; the same shape as facts.Problem."""

    code: str
    params: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "params": self.params}


@dataclass(frozen=True)
class Amount:
    """The best guess and what it surely lies between. None: not known. GiB for memory, else tokens or requests."""

    value: float | None
    low: float | None
    high: float | None
    reason: Reason

    @classmethod
    def near(cls, value: float, less: float, more: float | None = None, *, reason: Reason) -> Amount:
        """`value`, at most `less` below and `more` (default: as much) above it; never below nothing by its range."""
        low = value - less
        return cls(value, max(0.0, low) if value >= 0 else low, value + (less if more is None else more), reason)

    @classmethod
    def of(cls, ends: Sequence[float], reason: Reason) -> Amount:
        """From (value, low, high)."""
        value, low, high = ends
        return cls(value, low, high, reason)

    @classmethod
    def unknown(cls, reason: Reason, low: float | None = None, high: float | None = None) -> Amount:
        return cls(None, low, high, reason)

    def map(self, change: Callable[[float], float], reason: Reason) -> Amount:
        """The same range seen through a growing function."""
        values = [None if end is None else change(end) for end in (self.value, self.low, self.high)]
        return Amount(values[0], values[1], values[2], reason)

    def to_dict(self, digits: int = 4) -> dict[str, Any]:
        return {
            "value": _rounded(self.value, digits),
            "range": [_rounded(self.low, digits), _rounded(self.high, digits)],
            "reason": self.reason.to_dict(),
        }


MEMORY = ("weights_gib", "activation_gib", "overhead_gib", "graphs_gib", "kv_gib")


@dataclass(frozen=True)
class Rank:
    """The memory of one GPU (or of the machine, on a CPU), GiB. Ranks of one pipeline stage are alike."""

    stage: int
    weights: Amount
    activation: Amount
    overhead: Amount
    graphs: Amount
    kv: Amount
    layers: int = 0

    def amounts(self) -> dict[str, Amount]:
        """By the names of the JSON answer."""
        return dict(zip(MEMORY, (self.weights, self.activation, self.overhead, self.graphs, self.kv), strict=True))


@dataclass(frozen=True)
class Plan:
    """What one engine would do with the memory of its GPUs.

    `ranks` has one entry a pipeline stage. `need_gib` is what each GPU of the fullest stage must have free.
    """

    engine: str
    engine_version: str
    ranks: tuple[Rank, ...]
    kv_tokens: Amount
    concurrency: Amount
    max_len: Amount
    verdict: Verdict
    reasons: tuple[Reason, ...]
    context: int | None = None
    need_gib: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready. Memory is that of the first stage, which the engine's log shows; `ranks` has all that differ."""
        first = self.ranks[0].amounts() if self.ranks else dict.fromkeys(MEMORY, self.kv_tokens)  # all unknown
        counts = {"kv_tokens": self.kv_tokens, "concurrency": self.concurrency, "max_len": self.max_len}
        answer: dict[str, Any] = {name: _rounded(amount.value, 4) for name, amount in {**first, **counts}.items()}
        answer["ranges"] = {name: amount.to_dict()["range"] for name, amount in {**first, **counts}.items()}
        answer["sources"] = {name: amount.reason.to_dict() for name, amount in {**first, **counts}.items()}
        answer |= {
            "engine": self.engine,
            "engine_version": self.engine_version,
            "context": self.context,
            "need_gib": _rounded(self.need_gib, 4),
            "verdict": self.verdict,
            "reasons": [reason.to_dict() for reason in self.reasons],
        }
        if len(self.ranks) > 1:
            answer["ranks"] = [
                {"stage": rank.stage, "layers": rank.layers}
                | {name: _rounded(amount.value, 4) for name, amount in rank.amounts().items()}
                for rank in self.ranks
            ]
        return answer


def _rounded(value: float | None, digits: int) -> float | int | None:
    if value is None or isinstance(value, int):
        return value
    return round(value, digits)
