"""A host's clock and its restarts, from its reports. Everything that is stored is by the panel's clock.

What a host says of times is by its own clock, which may be hours off; the loop counts with the panel's clock alone.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from panel import audit
from panel.fleet import wire
from panel.fleet.models import Host

NOISE_S = 2.0  # below this a difference is the network's and the scheduler's, and times are taken as they are
TIMES = ("started_at", "ended_at", "last_output_at")
LONGEST_S = 86400.0 * 3650


def skew(report: wire.Report, now: datetime) -> float:
    """Seconds by which the host's clock is ahead of ours: half of a call's way is not the clock's doing."""
    half = min(30.0, max(0.0, report.round_trip_s or 0.0)) / 2
    off = report.sent_at + half - now.timestamp()
    return round(max(-LONGEST_S, min(LONGEST_S, off)), 3)


def ours(seconds: float | None, skew_s: float) -> float | None:
    """A time of the host's clock as a time of ours; both in Unix seconds."""
    return seconds if seconds is None or abs(skew_s) < NOISE_S else seconds - skew_s


def put_right(values: dict[str, Any], before: dict[str, Any], skew_s: float) -> None:
    """The times of a job's status by our clock. What was known stays as it was: else it would move with the network."""
    for name in TIMES:
        values[name] = ours(values.get(name), skew_s)
    if before.get("started_at") is not None and before.get("pid") == values.get("pid"):
        values["started_at"] = before["started_at"]


def restarted(host: Host, facts: wire.HostFacts, skew_s: float, now: datetime) -> dict[str, Any]:
    """The columns that a machine's start changes; recorded. A first report is no restart."""
    if not facts.boot_id or facts.boot_id == host.boot_id:
        return {}
    changes: dict[str, Any] = {"boot_id": facts.boot_id[:64]}
    if host.boot_id:
        seconds = ours(facts.boot_time, skew_s) or 0.0
        known = now - timedelta(days=3650) < datetime.fromtimestamp(max(0.0, min(seconds, 4e9)), UTC) <= now
        changes["restarted_at"] = datetime.fromtimestamp(seconds, UTC) if known else now
        audit.record("host.restarted", host, actor=None)
    return changes
