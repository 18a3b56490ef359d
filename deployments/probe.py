"""The test question: a run is ready only after it answered through the same address that people use."""

import time
from typing import Any

from django.conf import settings

from deployments import events
from deployments.acts import run_of
from deployments.engines.base import adapter
from deployments.gateway.ask import Answer, ask
from deployments.gateway.snapshot import probe_token
from deployments.models import Run
from deployments.spec import DeploymentSpec

TRIES = 3  # answers that are errors of the engine, before the start counts as failed
PAUSE_S = 2.0
BODY_KEPT = 2000


def ask_run(run_id: str) -> None:
    """Ask once, keep what came, and let the loop decide. Runs in the probe queue."""
    run = run_of(run_id)
    if run is None or run.ended_at is not None or run.answer:
        return
    spec = DeploymentSpec.model_validate(run.revision.spec)
    engine = adapter(spec.engine)
    path, body = engine.probe_request(spec.task, run.deployment.name)
    answer = ask(
        settings.BERTH_INTERNAL_URL,
        probe_token(run.deployment_id, str(run.pk)),
        path,
        body,
        timeout_s=settings.BERTH_PROBE_TIMEOUT_S,
    )
    text = engine.read_answer(spec.task, answer.json) if answer.status == 200 else None
    if text is not None:
        _keep(run, {"answer": _said(body, path, text, answer)})
    else:
        _keep(run, {"probe": _missed(run.probe, answer)})
    events.nudge(run.deployment_id)


def _said(body: dict[str, Any], path: str, text: str, answer: Answer) -> dict[str, Any]:
    return {
        "question": question_of(body),
        "answer": text[:BODY_KEPT],
        "latency_ms": round(answer.latency_ms),
        "at": time.time(),
        "path": path,
    }


def question_of(body: dict[str, Any]) -> str:
    """The words of the question, whatever kind of request carried them."""
    if body.get("messages"):
        return str(body["messages"][-1].get("content", ""))
    return str(body.get("prompt") or body.get("input") or body.get("query") or body.get("text_1") or "")


def _missed(probe: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """Count what the engine got wrong. The panel's own refusals and a refused connection are only tried again."""
    now = time.time()
    tries = probe.get("tries", 0) + (1 if answer.said_by == "engine" else 0)
    return {
        **probe,
        "done_at": now,
        "next_at": now + PAUSE_S,
        "tries": tries,
        "failed": tries >= TRIES,
        "last": {"status": answer.status, "body": answer.text[:BODY_KEPT], "said_by": answer.said_by, "at": now},
    }


def _keep(run: Run, values: dict[str, Any]) -> None:
    Run.objects.filter(pk=run.pk, ended_at=None, answer=None).update(**values)
