"""Read the panel's work without trusting it: one bad order hides no other, and none of them can break the agent."""

from __future__ import annotations

import json
import logging
import math
import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from panel.fleet.agent.journal import is_job_id
from panel.fleet.agent.version import VERSION
from panel.fleet.wire import WIRE_VERSION, AnyTask, JobOrder, Refusal

log = logging.getLogger(__name__)

MAX_ORDERS = 2000
MAX_GRACE_S = 900.0
MAX_REV = 1 << 62
TRACE = re.compile(r"[A-Za-z0-9._-]{0,64}")  # the shim writes it into JSON as it is
KINDS = (
    "engine", "scan", "runtimes", "install", "remove", "package", "download", "delete", "sidecar", "convert",
    "check",
)  # fmt: skip


class Unreadable(Exception):
    """The work as a whole makes no sense. What runs goes on."""


class OtherWire(Unreadable):
    """The panel is of a version whose work could be misread. What runs goes on; a person has to act."""

    def __init__(self, wire: Any) -> None:
        super().__init__(
            f"the panel speaks wire {str(wire)[:20]} and this agent, {VERSION}, speaks {WIRE_VERSION}. Run on this "
            "host: berth-agent --update. It installs the panel's version of the agent; engines go on meanwhile."
        )


@dataclass(frozen=True)
class Order:
    """One thing that should be so. `refusal` says why the order itself cannot be read; then `task` is None."""

    id: str
    desired: str
    grace_s: float
    kind: str
    task: AnyTask | None = None
    refusal: Refusal | None = None
    begun: bool = False
    trace: str = ""


def parse(raw: bytes) -> tuple[int, list[Order]]:
    """(revision, orders). Raises Unreadable."""
    try:
        work = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise Unreadable(str(exc)) from exc
    if not isinstance(work, dict):
        raise Unreadable("not an object")
    if work.get("wire", WIRE_VERSION) != WIRE_VERSION:
        raise OtherWire(work["wire"])
    rev, jobs = work.get("rev"), work.get("jobs", [])
    if not isinstance(rev, int) or isinstance(rev, bool) or not 0 <= rev < MAX_REV:
        raise Unreadable("no revision")
    if not isinstance(jobs, list) or len(jobs) > MAX_ORDERS:
        raise Unreadable("no list of jobs")
    orders: dict[str, Order] = {}
    for item in jobs:
        job_id = item.get("id") if isinstance(item, dict) else None
        if not isinstance(job_id, str) or not is_job_id(job_id):
            # Without a name it cannot even be refused; and it must not be taken for the end of another job.
            raise Unreadable("a job without a proper id")
        orders.setdefault(job_id, _order(job_id, item))
    return rev, list(orders.values())


def _order(job_id: str, item: dict[str, Any]) -> Order:
    task = item.get("task")
    kind = str(task.get("kind", ""))[:16] if isinstance(task, dict) else ""
    desired = item.get("desired", "run")
    try:
        order = JobOrder.model_validate(item)
    except (ValidationError, RecursionError) as exc:
        where = ".".join(map(str, exc.errors()[0]["loc"])) if isinstance(exc, ValidationError) else ""
        log.warning("order %s cannot be read at %s", job_id, where)
        code = "order_unreadable" if kind in KINDS else "kind_unknown"
        refusal = Refusal(code=code, params={"where": where[:200], "kind": kind})
        # A stop must work whatever the rest looks like.
        return Order(job_id, "stop" if desired == "stop" else "run", 30.0, kind, refusal=refusal)
    grace = order.grace_s if math.isfinite(order.grace_s) else 30.0
    grace = min(MAX_GRACE_S, max(0.0, grace))
    trace = order.trace if TRACE.fullmatch(order.trace) else ""
    return Order(job_id, order.desired, grace, order.task.kind, task=order.task, begun=order.begun, trace=trace)
