"""What engines said of themselves in the last minutes: a short list for each, in the broker's memory and in no row.

The list is bounded and expires, and may be lost at any time: whoever judges by it waits until it is long enough again.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from panel.fleet import samples, wire
from panel.fleet.wire_serving import Point

KEY = "berth:fleet:serving:"  # + job: its points, the newest last
KEPT = 150  # points of one engine: 25 min at one each 10 s
LASTS_S = 1800  # after the last one


def new_point(status: wire.JobStatus, before: Mapping[str, Any], report: wire.Report, now: float) -> Point | None:
    """The point that a report brings; None when it tells none, or the one that was kept before."""
    seen = status.serving
    if seen is None or seen.at == (before.get("serving") or {}).get("at"):
        return None
    age = min(LASTS_S, max(0.0, report.sent_at - seen.at))  # both by the host's clock, however wrong that is
    measured = {"rss_mib": status.rss_mib, "processes": status.processes, "gpu_pct": _gpu_pct(report, status.id)}
    return Point.of(seen, round(now - age, 3), **measured)


def _gpu_pct(report: wire.Report, job_id: str) -> float | None:
    """How busy the GPUs are that hold processes of this job, the mean."""
    gpus = report.facts.gpus if report.facts is not None else []
    told = [
        gpu.utilisation_pct
        for gpu in gpus
        if gpu.utilisation_pct is not None and any(process.job_id == job_id for process in gpu.processes)
    ]
    return sum(told) / len(told) if told else None


def commands(points: Mapping[str, Point]) -> list[tuple[Any, ...]]:
    """What keeps them: commands for the broker."""
    found: list[tuple[Any, ...]] = []
    for job_id, point in points.items():
        key = f"{KEY}{job_id}"
        packed = json.dumps(point.pack(), separators=(",", ":"))
        found += [("RPUSH", key, packed), ("LTRIM", key, -KEPT, -1), ("EXPIRE", key, LASTS_S)]
    return found


def read(job_ids: Iterable[Any], newest: int = KEPT) -> dict[str, list[Point]]:
    """Points by job, the oldest first; all in one round. Empty lists while the broker is away."""
    wanted = [str(job_id) for job_id in job_ids]
    if not wanted:
        return {}
    try:
        found = samples.ask(*(("LRANGE", f"{KEY}{job_id}", -newest, -1) for job_id in wanted))
    except samples.Away:
        return {job_id: [] for job_id in wanted}
    return {job_id: [Point.unpack(json.loads(raw)) for raw in raws] for job_id, raws in zip(wanted, found, strict=True)}
