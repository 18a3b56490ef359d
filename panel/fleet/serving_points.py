"""What engines said of themselves in the last minutes: a short list for each, in the broker's memory and in no row.

The list is bounded and expires, and may be lost at any time: whoever judges by it waits until it is long enough again.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from panel.fleet import samples, wire
from panel.fleet.wire_serving import Point

KEY = "berth:fleet:serving:"  # + job: its points, the newest last
SPAN_S = 1000.0  # a little more than any finding looks back
LEAST, MOST = 100, 1000  # points of one engine; the least at the usual pace of 10 s, and after a gap
LASTS_S = 1800  # after the last one


@dataclass(frozen=True)
class New:
    """A point to be added, and how many are then kept."""

    point: Point
    kept: int


def new_point(status: wire.JobStatus, before: Mapping[str, Any], report: wire.Report, now: float) -> New | None:
    """The point that a report brings; None when it tells none, or the one that was kept before."""
    seen, last = status.serving, (before.get("serving") or {}).get("at")
    if seen is None or seen.at == last:
        return None
    kept = math.ceil(SPAN_S / (seen.at - last)) if last is not None and seen.at > last else MOST
    age = min(LASTS_S, max(0.0, report.sent_at - seen.at))  # both by the host's clock, however wrong that is
    measured = {"rss_mib": status.rss_mib, "processes": status.processes, "gpu_mib": status.gpu_used_mib}
    measured["gpu_pct"] = _gpu_pct(report, status.id)
    return New(Point.of(seen, round(now - age, 3), **measured), min(MOST, max(LEAST, kept)))


def _gpu_pct(report: wire.Report, job_id: str) -> float | None:
    """How busy the GPUs are that hold processes of this job, the mean."""
    gpus = report.facts.gpus if report.facts is not None else []
    told = [
        gpu.utilisation_pct
        for gpu in gpus
        if gpu.utilisation_pct is not None and any(process.job_id == job_id for process in gpu.processes)
    ]
    return sum(told) / len(told) if told else None


def commands(points: Mapping[str, New]) -> list[tuple[Any, ...]]:
    """What keeps them: commands for the broker."""
    found: list[tuple[Any, ...]] = []
    for job_id, new in points.items():
        key = f"{KEY}{job_id}"
        packed = json.dumps(new.point.pack(), separators=(",", ":"))
        found += [("RPUSH", key, packed), ("LTRIM", key, -new.kept, -1), ("EXPIRE", key, LASTS_S)]
    return found


def read(job_ids: Iterable[Any], newest: int = MOST) -> dict[str, list[Point]]:
    """Points by job, the oldest first; all in one round. Empty lists while the broker is away."""
    wanted = [str(job_id) for job_id in job_ids]
    if not wanted:
        return {}
    try:
        found = samples.ask(*(("LRANGE", f"{KEY}{job_id}", -newest, -1) for job_id in wanted))
    except samples.Away:
        return {job_id: [] for job_id in wanted}
    return {job_id: [Point.unpack(json.loads(raw)) for raw in raws] for job_id, raws in zip(wanted, found, strict=True)}
