"""The test question: a run is ready only after it answered through the same address that people use.

Who asks says so in the run's row again and again: a worker that is killed meanwhile is missed within one lease, and
the question is asked anew. `Run.probe` holds {asked_at, by, alive_at, done_at, next_at, tries, failed, last}.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import connection

from deployments import events
from deployments.engines.base import Adapter, Task
from deployments.engines.registry import adapter_for
from deployments.gateway.ask import Answer, ask
from deployments.gateway.snapshot import probe_token
from deployments.models import Run
from deployments.spec import DeploymentSpec

log = logging.getLogger(__name__)

TRIES = 3  # answers that are errors of the engine, before the start counts as failed
PAUSE_S = 2.0
BODY_KEPT = 2000


def ask_run(run_id: str) -> None:
    """Ask once, keep what came, and let the loop decide. Runs in the probe queue."""
    run = Run.objects.select_related("deployment", "revision").filter(pk=run_id).first()
    if run is None or run.ended_at is not None or run.answer:
        return
    with _asking(run) as ours:
        if ours:
            _ask_and_keep(run, ours)


def lease(probe: dict[str, Any], now: float) -> float:
    """Seconds for which whoever was sent to ask, or asks, still counts as alive; 0 when nobody does."""
    if probe.get("done_at") or not probe.get("asked_at"):
        return 0.0
    heard = max(probe["asked_at"], probe.get("alive_at") or 0.0)
    left = float(heard + settings.BERTH_CLAIM_S - now)
    return left if 0 < left <= 2 * settings.BERTH_CLAIM_S else 0.0  # more is of before the clock was put back


@contextmanager
def _asking(run: Run) -> Iterator[str]:
    """Mark the question as ours and renew that until the end; yields "" when somebody else asks now."""
    now, mine = time.time(), uuid.uuid4().hex
    if run.probe.get("alive_at") and lease(run.probe, now):
        yield ""
        return
    taken = {**run.probe, "asked_at": run.probe.get("asked_at") or now, "by": mine, "alive_at": now, "done_at": None}
    if not Run.objects.filter(pk=run.pk, probe=run.probe, ended_at=None).update(probe=taken):
        yield ""
        return
    run.probe = taken
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(run.pk, taken, done), name="asking", daemon=True)
    beat.start()
    try:
        yield mine
    finally:
        done.set()
        beat.join()
        # Whatever became of it: nobody asks now. After an answer this says no more than the answer itself.
        now = time.time()
        still = Run.objects.filter(pk=run.pk, probe__by=mine, probe__done_at=None)
        still.update(probe={**taken, "alive_at": None, "done_at": now, "next_at": now + PAUSE_S})


def _beat(run_id: Any, probe: dict[str, Any], done: threading.Event) -> None:
    """Say that we still ask, until `done`, or until somebody else took over."""
    try:
        while not done.wait(settings.BERTH_CLAIM_S / 3):
            try:
                newer = {**probe, "alive_at": time.time()}
                if not Run.objects.filter(pk=run_id, probe=probe).update(probe=newer):
                    return
                probe = newer
            except Exception:  # the lease then ends by itself, and the question is asked once more
                log.warning("the question to run %s could not be renewed", run_id, exc_info=True)
    finally:
        connection.close()


def _ask_and_keep(run: Run, mine: str) -> None:
    spec = DeploymentSpec.model_validate(run.revision.spec)
    engine = adapter_for(spec.engine)
    token = probe_token(run.deployment_id, str(run.pk))
    path, body = engine.probe_request(spec.task, run.deployment.name)
    answer = _ask(token, path, body)
    if engine.wants_completion(spec.task, answer.status, answer.json):  # a base model without a chat template
        path, body = engine.probe_request(spec.task, run.deployment.name, chat=False)
        answer = _ask(token, path, body)
    text = engine.read_answer(spec.task, answer.json) if answer.status == 200 else None
    if text is not None:
        said = _said(body, path, text, answer)  # true, also when somebody else has begun to ask meanwhile
        Run.objects.filter(pk=run.pk, ended_at=None, answer__isnull=True).update(answer=said)
    else:
        Run.objects.filter(pk=run.pk, ended_at=None, answer__isnull=True, probe__by=mine).update(
            probe=_missed(run.probe, answer)
        )
    events.nudge(run.deployment_id)


def _ask(token: str, path: str, body: dict[str, Any]) -> Answer:
    return ask(settings.BERTH_INTERNAL_URL, token, path, body, timeout_s=settings.BERTH_PROBE_TIMEOUT_S)


def question(engine: Adapter, task: Task, name: str, text: str, *, chat: bool = True) -> tuple[str, dict[str, Any]]:
    """A person's own question in the shape that proves readiness, with room for a real answer."""
    path, body = engine.probe_request(task, name, chat=chat)
    if "messages" in body:
        return path, {**body, "messages": [{"role": "user", "content": text}], "max_tokens": 400}
    if "prompt" in body:
        return path, {**body, "prompt": text, "max_tokens": 400}
    return path, {**body, "text_1" if "text_1" in body else "input": text}


def _said(body: dict[str, Any], path: str, text: str, answer: Answer) -> dict[str, Any]:
    return {
        "question": question_of(body),
        "answer": storable(text),
        "latency_ms": round(answer.latency_ms),
        "at": time.time(),
        "path": path,
    }


def storable(text: str) -> str:
    """What is kept of an engine's words: PostgreSQL's JSON has neither NUL nor halves of a character."""
    return text[:BODY_KEPT].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def question_of(body: dict[str, Any]) -> str:
    """The words of the question, whatever kind of request carried them."""
    if body.get("messages"):
        return str(body["messages"][-1].get("content", ""))
    return str(body.get("prompt") or body.get("input") or body.get("query") or body.get("text_1") or "")


def _missed(probe: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """Count what the engine got wrong. The panel's own refusals and a refused connection are only tried again."""
    now = time.time()
    engine_erred = (answer.status and answer.who == "engine") or answer.text == "timeout"
    tries = probe.get("tries", 0) + (1 if engine_erred else 0)
    return {
        **probe,
        "alive_at": None,
        "done_at": now,
        "next_at": now + PAUSE_S,
        "tries": tries,
        "failed": tries >= TRIES,
        "last": {"status": answer.status, "body": storable(answer.text), "said_by": answer.said_by, "at": now},
    }
