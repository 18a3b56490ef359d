"""Looks at all that serves, every few seconds: findings, and whether it still answers. The ticker starts it.

One query and one round to the broker, however many there are; a row is written when something changed. Who looks twice
does no harm: each write holds only while the row says what was read. A host without contact is left alone.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from django.conf import settings

from deployments import events
from deployments.diagnosis import markers, serving, serving_memory
from deployments.diagnosis.serving_window import Facts, Symptom, Window
from deployments.models import Deployment, Run
from deployments.serving import fixes, live_probe, liveness
from deployments.states import Desired, State
from panel.fleet import serving_points
from panel.fleet.wire_serving import Point

log = logging.getLogger(__name__)

EVERY_S = 10.0  # at the usual pace of the ticker
_due = 0.0  # on the monotonic clock of this process

READ = (
    "name", "state", "state_since", "run_id", "revision__spec",
    *(f"run__{name}" for name in ("deployment_id", "ready_at", "findings", "live", "placement", "parser", "answer",
                                  "golden", "job_id", "host_id", "ended_at", "host__is_local", "host__lost_at")),
)  # fmt: skip


def turn() -> None:
    """Look, if it is time. Cheap when nothing serves."""
    global _due
    if time.monotonic() >= _due:
        _due = time.monotonic() + min(EVERY_S, 5 * settings.BERTH_TICK_S)
        look(time.time())


def look(now: float) -> None:
    """Look at everything that serves."""
    rows = list(serving_rows())
    points = serving_points.read(row.run.job_id for row in rows)
    places = live_probe.AT_ONCE - sum(_asked_now(row.run, now) for row in rows)
    for row in rows:
        try:
            seen = points[str(row.run.job_id)]
            places -= _note_life(row, seen, now, may_ask=places > 0)
            _note_findings(row, seen, now)
        except Exception:  # one row's oddity must not keep the others from being looked at
            log.exception("deployment %s could not be looked at", row.name)


def serving_rows() -> Iterable[Deployment]:
    """Deployments whose run is up and can be heard of."""
    rows = Deployment.objects.filter(
        state=State.READY, desired=Desired.RUNNING, deleted_at=None, run__ended_at=None, run__host__lost_at=None,
        run__ready_at__isnull=False, run__job__state="running",
    )  # fmt: skip
    return rows.select_related("revision", "run__host").only(*READ).order_by("pk")


# --- findings ---------------------------------------------------------------------------------------------------------


def facts_of(row: Deployment, now: float) -> Facts:
    """What is known of a run beside its points."""
    run, spec = row.run, row.revision.spec
    on_gpu = run.placement.get("device") == "gpu"
    live = liveness.of_this(run.live, row.state_since.timestamp(), now)
    since = live.get("failing_since")
    shown = since is not None and now - since >= live_probe.rhythm(str(run.placement.get("device"))).shown_s
    reserve = run.placement.get("reserve") or []
    planned = sum(mib for device, mib in reserve if device is None)
    planned_gpu = sum(mib for device, mib in reserve if device is not None)
    return Facts(
        now=now,
        ready_at=run.ready_at.timestamp(),
        on_gpu=on_gpu,
        max_num_seqs=(spec.get("options") or {}).get("max_num_seqs"),
        planned_rss_mib=planned or None,
        planned_gpu_mib=planned_gpu or None,
        cards_mib=int(planned_gpu / (run.placement.get("utilisation") or 1)) or None,
        classes=run.parser.get("classes") or {},
        silent_since=since if shown else None,
        silent_times=int(live.get("misses") or 0),
        slip=_slip(run),
        slip_since=run.ready_at.timestamp(),
    )


def _slip(run: Run) -> dict[str, Any] | None:
    """A sign in the answers of this start that the chat template does not fit the model."""
    answer = run.answer or {}
    if not str(answer.get("path", "")).endswith("/chat/completions"):
        return None  # without a template there is none that could be wrong
    return markers.first_slip([answer, *run.golden.get("answers", [])])


def _note_findings(row: Deployment, points: list[Point], now: float) -> None:
    run, kept = row.run, row.run.findings
    facts, before = facts_of(row, now), [found_of(each) for each in kept.get("found", [])]
    window = Window(points, now)
    base = serving_memory.base_of(window, facts, kept.get("base") or {})
    found = serving.judge(points, facts, before, base)
    known = {_of(each): {"fix": each.get("fix"), "more": each.get("more", [])} for each in kept.get("found", [])}
    # looked for once, when the finding begins
    said = [{**asdict(each), **(known.get(_of(asdict(each))) or fixes.fixes_for(row, each))} for each in found]
    new = {"found": said, "base": base} if said or base else {}
    if new == kept or not Run.objects.filter(pk=run.pk, ended_at=None, findings=kept).update(findings=new):
        return
    if kept.get("found") != new.get("found"):
        events.announce(row.pk, state=row.state, name=row.name)


def _of(finding: dict[str, Any]) -> tuple[str, Any]:
    """What its fixes are of."""
    return finding["code"], finding["params"].get("cause")


def found_of(kept: dict[str, Any]) -> Symptom:
    """A finding as a row keeps it."""
    return Symptom(**{name: kept[name] for name in ("family", "code", "level", "since", "params")})


# --- whether it answers -----------------------------------------------------------------------------------------------


def _asked_now(run: Run, now: float) -> bool:
    asked, done = run.live.get("asked_at") or 0.0, run.live.get("done_at") or 0.0
    return asked > done and now - asked < live_probe.LONGEST_S


def _note_life(row: Deployment, points: list[Point], now: float, *, may_ask: bool) -> bool:
    """Take up what is known of its silence; ask when it is time. True when a question went out."""
    run, pace = row.run, live_probe.rhythm(str(row.run.placement.get("device")))
    since = row.state_since.timestamp()
    live = liveness.of_this(run.live, since, now)
    if live.get("hung_at"):
        events.nudge(row.pk)
        return False
    if liveness.recovered(points, live):
        proved = {"asked_at": live["asked_at"], "done_at": live.get("done_at"), "ok_at": now}
        if Run.objects.filter(pk=run.pk, live=run.live).update(live=proved):
            run.live = proved
        return False
    if liveness.hung(points, live, pace, now, near=row.run.host.is_local):
        if Run.objects.filter(pk=run.pk, live=run.live).update(live={**live, "hung_at": now}):
            log.warning("deployment %s has given no answer for %.0f s", row.name, now - live["failing_since"])
            events.nudge(row.pk)
        return False
    ready = max(run.ready_at.timestamp(), since)
    if not may_ask or not liveness.wants_question(points, live, ready, pace, now):
        return False
    if live != run.live and Run.objects.filter(pk=run.pk, live=run.live).update(live=live):
        run.live = live
    return live_probe.send(run)
