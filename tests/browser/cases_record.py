"""What was foreseen, measured and answered: settings beside each other, golden questions, closeness of estimates."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from deployments import golden
from deployments.models import Deployment, Revision, Run
from models_catalog.models import Copy
from tests.browser.cases import case
from tests.browser.deployment_rows import gpu_deployment, start
from tests.deployments import builders
from tests.deployments.test_record import FORESEEN, MEASURED

SAID = (("42", "Mercury", "RED GREEN BLUE"), ("42", "Mercury.", "RED GREEN BLUE"), ("The answer is 42", "Venus", "red"))


def measured(
    row: Deployment, copy: Copy, *, said: tuple[str, ...] = SAID[0], ready_s: float = 151, **values: Any
) -> Run:
    """A start on GPUs that got ready, with all that is kept of it."""
    now = timezone.now()
    answers = [
        {"question": question, "answer": answer, "error": "", "latency_ms": 240}
        for question, answer in zip(golden.USUAL, said, strict=True)
    ]
    known = {
        "family": "qwen3_moe", "foreseen": FORESEEN, "measured": MEASURED, "engine_version": "0.32.0",
        "ready_at": now - timedelta(seconds=4000 - ready_s), "golden": {"asked_at": now.timestamp(), "answers": answers},
        "answer": {"question": "?", "answer": "Paris.", "latency_ms": 84, "at": now.timestamp()},
    }  # fmt: skip
    return start(row, copy, ago=4000, **{**known, **values})


def tuned() -> Deployment:
    """Three settings of one deployment, each with a measured start."""
    row, copy = gpu_deployment("ready")
    measured(row, copy, said=SAID[2], engine_version="0.31.0", ended_at=timezone.now(), outcome="stopped")
    changes: tuple[dict[str, Any], ...] = (
        {"options": {"max_model_len": 32768}},
        {
            "options": {"max_model_len": 32768, "kv_cache_dtype": "fp8", "max_num_seqs": 64},
            "extra_args": ["--enforce-eager"],
        },
    )
    for number, change in enumerate(changes, row.revision.number + 1):
        spec = {**row.revision.spec, **change}
        row.revision = Revision.objects.create(deployment=row, number=number, spec=spec, created_by="maria")
        row.save()
        more = {"kv_gib": 22.1, "kv_tokens": 262_144, "concurrency": 8.0, "context": 32_768}
        told = {**FORESEEN, "concurrency": 7.9, "launches": 12, "context": 32_768}
        run = measured(row, copy, said=SAID[1], ready_s=171, foreseen=told, measured={**MEASURED, **more})
        Run.objects.filter(deployment=row).exclude(pk=run.pk).update(ended_at=timezone.now(), outcome="stopped")
    builders.ready(row, run)
    Run.objects.filter(pk=run.pk).update(ready_at=timezone.now() - timedelta(seconds=4000 - 171))
    return row


@case("deployment-tuned")
def deployment_tuned() -> str:
    return f"/deployments/{tuned().pk}/"


@case("deployment-tried")
def deployment_tried() -> str:
    """Settings that failed and some that were never started stand among the others."""
    row = tuned()
    serving = row.run_id
    for number, length in enumerate((65_536, 131_072), row.revision.number + 1):
        spec = {**row.revision.spec, "options": {"max_model_len": length}}
        made = Revision.objects.create(deployment=row, number=number, spec=spec, created_by="maria")
        if length == 65_536:
            kept = {"revision": made, "ready_at": None, "answer": None, "golden": {}, "measured": {}}
            why = {"code": "exit.code", "params": {"exit_code": 1}}
            run = start(row, row.run.copy, ago=300, foreseen={**FORESEEN, "concurrency": 3.9}, **kept)
            Run.objects.filter(pk=run.pk).update(ended_at=timezone.now(), outcome="failed", reason=why)
    Deployment.objects.filter(pk=row.pk).update(run=serving)
    return f"/deployments/{row.pk}/"


@case("deployment-compare")
def deployment_compare() -> str:
    return f"/deployments/{tuned().pk}/settings/compare"


@case("deployment-answers")
def deployment_answers() -> str:
    return f"/deployments/{tuned().pk}/answers"


@case("deployment-answers-none", role="viewer")
def deployment_answers_none() -> str:
    row, _copy = gpu_deployment("ready")
    return f"/deployments/{row.pk}/answers"


@case("run-measured")
def run_measured() -> str:
    return f"/runs/{tuned().run_id}/"


@case("estimates")
def estimates() -> str:
    tuned()
    return "/estimates/"


@case("estimates-none", role="viewer")
def estimates_none() -> str:
    return "/estimates/"
