"""A small real question to an engine that serves, now and then: one token, and only when nobody else asks anything.

It finds the engine that hangs while its port is open and its health says 200. When to ask and what an answer means is
decided in liveness.py; here it is asked, through the same door as people's questions, and noted in `Run.live`.
"""

import logging
import threading
import time
from typing import Any

from django.conf import settings
from django.db import connection

from deployments import events, probe
from deployments.engines.registry import adapter_for
from deployments.gateway.ask import Answer, ask
from deployments.gateway.snapshot import probe_token
from deployments.models import Run
from deployments.serving import liveness
from deployments.serving.liveness import Answered, Rhythm
from deployments.spec import DeploymentSpec
from deployments.states import State
from panel.core import queue

log = logging.getLogger(__name__)

LONGEST_S = 30.0  # for an answer of one token
AT_ONCE = 4  # questions under way; the places of start questions are not for these


def rhythm(device: str) -> Rhythm:
    """The pace for a run on this device."""
    factor = liveness.CPU_FACTOR if device == "cpu" else 1
    timeout = min(LONGEST_S, settings.BERTH_PROBE_TIMEOUT_S)
    return Rhythm(settings.BERTH_LIVE_PROBE_S, timeout, settings.BERTH_HUNG_S * factor)


def send(run: Run) -> bool:
    """Hand a question to the probe's queue; False when somebody noted something else meanwhile, or nobody takes it."""
    asked = {**run.live, "asked_at": time.time()}
    if not Run.objects.filter(pk=run.pk, ended_at=None, live=run.live).update(live=asked):
        return False
    run.live = asked
    if not queue.send("deployments.tasks.live_probe", str(run.pk)):
        threading.Thread(target=_ask_here, args=(str(run.pk),), name="live-probe", daemon=True).start()
    return True


def _ask_here(run_id: str) -> None:
    try:
        ask_run(run_id)
    finally:
        connection.close()


def ask_run(run_id: str) -> None:
    """Ask once and note what came. What was asked by somebody else meanwhile is theirs to note."""
    run = Run.objects.select_related("deployment", "revision").filter(pk=run_id, ended_at=None).first()
    if run is None or run.deployment.run_id != run.pk or run.deployment.state != State.READY or not _open(run.live):
        return
    spec = DeploymentSpec.model_validate(run.revision.spec)
    path, body = _question(run, spec)
    token = probe_token(run.deployment_id, str(run.pk))
    pace = rhythm(str(run.placement.get("device")))
    came = ask(settings.BERTH_INTERNAL_URL, token, path, body, timeout_s=pace.timeout_s)
    now, before = time.time(), run.live
    last = {"status": came.status, "said": probe.storable(came.text)[:200], "at": now}
    noted = liveness.after(before, judged(came), last, now)
    if Run.objects.filter(pk=run.pk, ended_at=None, live=before).update(live=noted) and noted.get("misses"):
        log.info("run %s gave no answer (%s %s)", run.pk, came.status, came.who)
        events.nudge(run.deployment_id)


def _open(live: dict[str, Any]) -> bool:
    """Whether a question was sent and nothing is noted of it yet."""
    return bool(live.get("asked_at")) and live["asked_at"] > (live.get("done_at") or 0.0)


def _question(run: Run, spec: DeploymentSpec) -> tuple[str, dict[str, Any]]:
    """The question that proved it ready, for one token."""
    engine = adapter_for(spec.engine)
    chat = not str((run.answer or {}).get("path", "")).endswith("/v1/completions")
    path, body = engine.probe_request(spec.task, run.deployment.name, chat=chat)
    return path, {**body, "max_tokens": 1} if "max_tokens" in body else body


def judged(came: Answer) -> Answered:
    """What an answer proves. A refusal of the engine's own is an answer; the panel's words prove nothing of it."""
    if came.status == 0:
        return "silent" if came.text == "timeout" else "unknown"
    if came.who != "engine":
        return "unknown"
    return "ok" if came.status < 500 else "silent"
