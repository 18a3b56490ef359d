"""Whether a report says anything new, beyond figures that move all the time; see samples.py.

What a host told is kept as a digest in its row, so a database that was restored does not take old news for known.
"""

import hashlib
from datetime import datetime
from typing import Any

from panel.fleet import hostclock, samples, serving_points, wire
from panel.fleet.models import Host

# Figures of a job that move while nothing happens.
MOVING = (
    "log_size", "log_hole", "last_output_at", "read_bytes", "rss_mib", "own_mib", "gpu_used_mib", "processes",
    "serving",
)  # fmt: skip
ALIVE = ("log_size", "read_bytes", "rss_mib", "gpu_used_mib", "processes")  # signs of life
COUNTS = ("done", "rate", "silent_s")  # of a job's progress
PARTS = 20  # so often in each phase a progress is news, and a row
SKEW_S = 1.0  # a clock's difference that moved less is the same
FAR_MIB, FAR_SHARE = 128, 0.02  # figures that moved less from what the row says are near enough for it

ROOM = ("shm_mib", "log_mib", "cache_mib")  # what is free of it now

_REPORT = {"sent_at": True, "seq": True, "round_trip_s": True, "rev": True, "facts": True, "instance": True}
_GPU_MOVES = {"used_mib", "utilisation_pct", "temperature_c", "power_w", "processes"}
_FACTS: dict[str, Any] = {
    "ram_available_mib": True,
    "boot_time": True,  # derived from the clock, so it trembles; boot_id tells a restart
    "disks": {"__all__": {"free_mib"}},
    **dict.fromkeys(ROOM, True),
    "gpus": {"__all__": _GPU_MOVES},
}


def told(report: wire.Report, before: str = "") -> str:
    """A digest of what the report says without the moving figures: of the jobs, and of the facts.

    Where it brings no facts, those of `before` still hold.
    """
    moving = {**_REPORT, "jobs": {"__all__": {**dict.fromkeys(MOVING, True), "progress": set(COUNTS)}}}
    parts = [part_of(status.progress.model_dump()) for status in report.jobs if status.progress is not None]
    jobs = _digest(f"{report.model_dump_json(exclude=moving)}{parts}")
    facts = before.partition(".")[2]
    if report.facts is not None:
        facts = _digest(report.facts.model_dump_json(exclude=_FACTS))
    return f"{jobs}.{facts}"


def part_of(progress: dict[str, Any]) -> int:
    """In which part of its phase a job is, 0 to PARTS."""
    total = int(progress.get("total") or 0)
    return min(PARTS, PARTS * int(progress.get("done") or 0) // total) if total > 0 else 0


def same_progress(old: dict[str, Any] | None, new: dict[str, Any] | None) -> bool:
    """Whether nothing of a job's progress is news: its phase, its file, its trouble, a twentieth of the way."""
    if not old or not new:
        return old == new
    keys = (old.keys() | new.keys()) - set(COUNTS)
    return part_of(old) == part_of(new) and all(old.get(key) == new.get(key) for key in keys)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:30]


def quiet(host: Host, report: wire.Report, before: dict[str, Any] | None, skew: float, now: datetime) -> bool:
    """Whether the rows already say all that this report says, near enough."""
    if host.last_seen_at is None or host.lost_at is not None or not host.told or before is None:
        return False
    return (
        now - host.last_seen_at < samples.row_age()
        and report.rev <= host.work_rev
        and abs(skew - host.clock_skew_s) <= SKEW_S
        and before.get("told") == host.told == told(report, host.told)
        and (report.facts is None or near(before.get("rows", {}), figures(report.facts)))
    )


def figures(facts: wire.HostFacts) -> dict[str, int]:
    """The moving figures that decide where something starts, by name; MiB."""
    found = {"ram": facts.ram_available_mib}
    found |= {f"disk {disk.path}": disk.free_mib for disk in facts.disks}
    found |= {name: free for name in ROOM if (free := getattr(facts, name)) is not None}
    for gpu in facts.gpus:
        found[gpu.uuid] = gpu.used_mib
        found |= {f"{gpu.uuid} {p.pid} {p.job_id or ''}": p.used_mib or 0 for p in gpu.processes}
    return found


def near(rows: dict[str, int], now: dict[str, int]) -> bool:
    """Whether the same things are measured and none moved far."""
    if rows.keys() != now.keys():
        return False
    return all(abs(now[name] - was) <= max(FAR_MIB, FAR_SHARE * was) for name, was in rows.items())


def sample(
    report: wire.Report, before: dict[str, Any] | None, still: dict[str, dict[str, Any]], skew: float, now: datetime
) -> dict[str, Any]:
    """What to remember of a report. `still` is what rows say of jobs that the sample before does not know."""
    at = now.timestamp()
    known = (before or {}).get("jobs", {})
    jobs = {}
    for status in report.jobs:
        moving = status.model_dump(mode="json", include={*MOVING, "progress"})
        moving["last_output_at"] = hostclock.ours(moving["last_output_at"], skew)
        moving["still_since"] = still_since(known.get(status.id) or still.get(status.id) or {}, moving, at)
        jobs[status.id] = moving
    facts = (before or {}).get("facts") if report.facts is None else _facts(report.facts, at)
    return {"at": at, "jobs": jobs, "facts": facts, **{k: (before or {}).get(k) for k in ("told", "rows")}}


def points(report: wire.Report, before: dict[str, Any] | None, now: datetime) -> dict[str, serving_points.New]:
    """The looks at engines that a report brings, without those that are known already; by job."""
    known, at = (before or {}).get("jobs", {}), now.timestamp()
    found = {s.id: serving_points.new_point(s, known.get(s.id) or {}, report, at) for s in report.jobs if s.serving}
    return {job_id: new for job_id, new in found.items() if new is not None}


def still_since(old: dict[str, Any], new: dict[str, Any], at: float) -> float:
    """Since when a job shows no sign of life."""
    moved = any(old.get(name) != new.get(name) for name in ALIVE)
    return at if moved else old.get("still_since") or at


def _facts(facts: wire.HostFacts, at: float) -> dict[str, Any]:
    disks = [disk.model_dump(mode="json") for disk in facts.disks]
    return {
        "at": at,
        "host": {"ram_available_mib": facts.ram_available_mib, "disks": disks, **{k: getattr(facts, k) for k in ROOM}},
        "gpus": {
            gpu.uuid[:80]: {
                "used_mib": gpu.used_mib,
                "measured": gpu.model_dump(mode="json", include=_GPU_MOVES - {"used_mib"}),
            }
            for gpu in facts.gpus
        },
    }
