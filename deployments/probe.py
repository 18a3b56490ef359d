"""The test question: a run is ready only after it answered through the same address that people use."""

import time
from typing import Any

from django.conf import settings

from deployments import events
from deployments.engines.base import Adapter, Task
from deployments.engines.registry import adapter_for
from deployments.gateway.ask import Answer, ask
from deployments.gateway.snapshot import probe_token
from deployments.models import Run
from deployments.spec import DeploymentSpec

TRIES = 3  # answers that are errors of the engine, before the start counts as failed
PAUSE_S = 2.0
BODY_KEPT = 2000


def ask_run(run_id: str) -> None:
    """Ask once, keep what came, and let the loop decide. Runs in the probe queue."""
    run = Run.objects.select_related("deployment", "revision").filter(pk=run_id).first()
    if run is None or run.ended_at is not None or run.answer:
        return
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
        _keep(run, {"answer": _said(body, path, text, answer)})
    else:
        _keep(run, {"probe": _missed(run.probe, answer)})
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
        "answer": _storable(text),
        "latency_ms": round(answer.latency_ms),
        "at": time.time(),
        "path": path,
    }


def _storable(text: str) -> str:
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
        "done_at": now,
        "next_at": now + PAUSE_S,
        "tries": tries,
        "failed": tries >= TRIES,
        "last": {"status": answer.status, "body": _storable(answer.text), "said_by": answer.said_by, "at": now},
    }


def _keep(run: Run, values: dict[str, Any]) -> None:
    Run.objects.filter(pk=run.pk, ended_at=None, answer__isnull=True).update(**values)
