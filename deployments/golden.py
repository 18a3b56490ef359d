"""Golden questions: up to three, asked after each start that answered, so that answers can be compared.

A wrong layout of the weights, a worse quantisation or a broken kernel show here and nowhere else: the engine starts,
answers, and says something else than before. They are asked the way the test question is (probe.py), beside it: a
start is ready before the first of them, and nothing waits for them. `Run.golden` holds what came.
"""

import logging
import threading
import time
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils.translation import gettext_lazy as _

from deployments import probe
from deployments.engines.registry import adapter_for
from deployments.gateway.ask import ask
from deployments.gateway.snapshot import probe_token
from deployments.models import Deployment, Run
from deployments.spec import DeploymentSpec
from panel import audit
from panel.core.errors import Conflict, Invalid

log = logging.getLogger(__name__)

# Arithmetic, a fact, following an instruction. Sent to models as they are, so in one language for all.
USUAL = (
    "What is 17 + 25? Answer with the number only.",
    "Which planet is closest to the sun? Answer with one word.",
    "Write the words red, green and blue in capital letters, separated by single spaces, and nothing else.",
)
MOST = 3
LONGEST = 500  # characters of a question
TOKENS = 64  # of an answer
TOTAL_S = 90.0  # for all of them; what is not answered by then stays without an answer
AT_ONCE = 4  # starts that one process asks at the same time
WAIT_S = 120.0  # for one of these places

_places = threading.BoundedSemaphore(AT_ONCE)


def questions_of(deployment: Deployment, spec: DeploymentSpec) -> list[str]:
    """Those of people, else the usual ones; none for models that write no text."""
    if spec.task != "generate":
        return []
    return list(USUAL if deployment.questions is None else deployment.questions)


@transaction.atomic
def set_questions(deployment: Deployment, questions: list[str] | None, *, actor: Any) -> Deployment:
    """Ask these from the next start on; None: the usual ones, []: none. Raises Invalid."""
    row = Deployment.objects.select_for_update().filter(pk=deployment.pk, deleted_at=None).first()
    if row is None:
        raise Conflict("deployment.gone", _("This deployment was deleted."), _("Go back to the list."))
    asked = _sane(questions) if questions is not None else None
    if asked == row.questions:
        return row
    before, row.questions = row.questions, asked
    row.save(update_fields=["questions", "updated_at"])
    audit.record(
        "deployment.questions_changed", row, actor=actor, before={"questions": before}, after={"questions": asked}
    )
    return row


def _sane(questions: list[str]) -> list[str]:
    # PostgreSQL's JSON has neither NUL nor halves of a character
    asked = [" ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split()) for text in questions]
    asked = list(dict.fromkeys(text for text in asked if text))
    if len(asked) > MOST:
        raise Invalid({"questions": _("At most three questions.")})
    if any(len(text) > LONGEST for text in asked):
        raise Invalid({"questions": _("A question has at most 500 characters.")})
    return asked


# --- asking -----------------------------------------------------------------------------------------------------------


def ask_later(run_id: str) -> None:
    """Ask beside everything else, if the start has answered its test question. Never raises."""
    threading.Thread(target=_ask_here, args=(run_id,), name="golden", daemon=True).start()


def _ask_here(run_id: str) -> None:
    try:
        if _places.acquire(timeout=WAIT_S):
            try:
                ask_run(run_id)
            finally:
                _places.release()
    except Exception:  # nobody waits for these answers
        log.warning("the golden questions of run %s were not asked", run_id, exc_info=True)
    finally:
        connection.close()


def ask_run(run_id: str) -> None:
    """Ask them once, one after the other, and keep each answer as it comes."""
    run = Run.objects.select_related("deployment", "revision").filter(pk=run_id, answer__isnull=False).first()
    if run is None:
        return
    spec = DeploymentSpec.model_validate(run.revision.spec)
    questions = questions_of(run.deployment, spec)
    kept: dict[str, Any] = {"asked_at": time.time(), "answers": []}
    if not questions or not Run.objects.filter(pk=run.pk, ended_at=None, golden={}).update(golden=kept):
        return
    until = time.monotonic() + TOTAL_S
    for text in questions:
        left = until - time.monotonic()
        if left <= 0 or not _still_wanted(run):
            return
        kept = {**kept, "answers": [*kept["answers"], _answer(run, spec, text, left)]}
        Run.objects.filter(pk=run.pk).update(golden=kept)


def _still_wanted(run: Run) -> bool:
    return Run.objects.filter(pk=run.pk, ended_at=None, deployment__desired="running", deployment__run=run.pk).exists()


def _answer(run: Run, spec: DeploymentSpec, text: str, left_s: float) -> dict[str, Any]:
    engine = adapter_for(spec.engine)
    chat = str((run.answer or {}).get("path", "")).endswith("/chat/completions")
    path, body = probe.question(engine, spec.task, run.deployment.name, text, chat=chat)
    token = probe_token(run.deployment_id, str(run.pk))
    timeout = min(left_s, settings.BERTH_PROBE_TIMEOUT_S)
    came = ask(settings.BERTH_INTERNAL_URL, token, path, {**body, "max_tokens": TOKENS, "temperature": 0}, timeout)
    said = engine.read_answer(spec.task, came.json) if came.status == 200 else None
    error = "" if said is not None else f"{came.status or came.text}"
    answer = probe.storable(said).strip() if said is not None else None
    return {"question": text, "answer": answer, "error": error, "latency_ms": round(came.latency_ms)}
