"""Starts that stand still: since when nothing was written, at which step, and how long that step usually takes here."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _

from deployments import queries
from deployments.models import Run
from deployments.wording import words
from panel.core.numbers import duration
from panel.core.wording import Words
from panel.fleet import samples

DEADLINE, HUNG = "start.deadline", "start.hung"


@dataclass(frozen=True)
class Quiet:
    """`silent_s`: seconds since the last line of the log; `still_s`: since anything moved (lines, reads, memory)."""

    step: str
    silent_s: float
    still_s: float


def quiet(run: Run | None, now: datetime) -> Quiet | None:
    """How long a start has been quiet, where that is longer than it ought to be (BERTH_STALL_S); else None."""
    status = run.job.status if run is not None and run.job is not None else {}
    since = status.get("still_since")
    if run is None or since is None:
        return None
    still = now.timestamp() - since
    silent = max(still, now.timestamp() - (status.get("last_output_at") or since))
    if silent < settings.BERTH_STALL_S:
        return None
    return Quiet(current_step(run), silent, still)


def current_step(run: Run) -> str:
    return next((s.code for s in queries.steps_of(run) if s.state == "now"), "")


def note(found: Quiet | None, usual: dict[str, Any]) -> Words | None:
    """What the page says of it: that nothing moves at all, or that nothing is written while it works."""
    if found is None:
        return None
    code = "start.stalled" if found.still_s >= settings.BERTH_STALL_S else "start.silent"
    seconds = found.still_s if code == "start.stalled" else found.silent_s
    return words({"code": code, "params": {"minutes": int(seconds // 60), **_facts(found, usual)}})


def hung(run: Run, failing: dict[str, Any] | None) -> dict[str, Any] | None:
    """The reason to end a start with: where its time was over while it stood still, that is the reason."""
    if not failing or failing.get("code") != DEADLINE:
        return failing
    samples.freshen(run.job)
    found = quiet(run, timezone.now())
    if found is None:
        return failing
    facts = _facts(found, queries.usual_times(run))
    return {"code": HUNG, "params": {"minutes": int(found.silent_s // 60), **facts}}


def _facts(found: Quiet, usual: dict[str, Any]) -> dict[str, Any]:
    often = usual.get(found.step)
    return {"step": found.step, **({"usual_s": round(often["median"], 1)} if often else {})}


def usually(step: str, usual: dict[str, Any], host: str, so_far_s: float | None) -> str:
    """How long a step takes here as a rule, and that this time it takes longer; "" before the first start."""
    often = usual.get(step)
    if not often:
        return ""
    low, high = duration(often["low"]), duration(often["high"])
    if low == high or often["runs"] < 2:
        text = _("This step usually takes %(time)s on %(host)s.") % {"time": duration(often["median"]), "host": host}
    else:
        text = _("This step usually takes %(low)s to %(high)s on %(host)s.") % {"low": low, "high": high, "host": host}
    if so_far_s is not None and so_far_s > 1.5 * often["high"] + 5:
        longer = _("This time it takes longer; that alone is no fault.")
        return f"{text} {longer}"
    return text
