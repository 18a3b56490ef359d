"""Failed starts as people have them: recognised with all that is known, not recognised, the history of the team."""

from pathlib import Path

from django.utils import timezone

from deployments import failures, run_log
from deployments.diagnosis.failure import explain
from deployments.models import Deployment, Revision, Run
from models_catalog.models import Copy
from panel import audit
from tests.browser.cases import case
from tests.browser.deployment_rows import LONG, gpu_deployment, page_of, phases, start
from tests.deployments import builders

CORPUS = Path(__file__).parents[1] / "data" / "diagnosis" / "corpus"
UNKNOWN = b"".join(
    b"INFO 11-30 14:02:%02d [x.py:1] reading part %d of the plan, which is long and says little\n" % (n % 60, n)
    for n in range(30)
) + (
    b"Traceback (most recent call last):\n"
    b'  File "/opt/vllm/worker.py", line 12, in load\n    plan.unfold()\n'
    b"PlanFoldError: 3 folds of /models/Qwen3-30B are left\n"
)
KV = (
    b"INFO 12-01 13:58:30 [api_server.py:1894] vLLM API server version 0.32.0\n"
    b"(EngineCore pid=9) INFO 12-01 13:58:36 [model.py:547] Resolved architecture: Qwen3ForCausalLM\n"
    b"(EngineCore pid=9) WARNING 12-01 13:58:40 [model.py:2498] Casting torch.bfloat16 to torch.float16.\n"
    b"(EngineCore pid=9) INFO 12-01 13:58:41 [pynccl.py:111] vLLM is using nccl==2.27.5\n"
    b"(EngineCore pid=9) INFO 12-01 13:58:41 [cuda.py:1] Using FLASH_ATTN backend.\n"
    b"(EngineCore pid=9) INFO 12-01 13:58:49 [gpu_model_runner.py:2392] Model loading took 15.27 GiB and 9.8 seconds\n"
    b"(EngineCore pid=9) WARNING 12-01 13:58:50 [x.py:1] Add 3 padding layers, may waste at most 10.71% KV cache memory\n"
    b"(EngineCore pid=9) INFO 12-01 13:59:02 [gpu_worker.py:298] Available KV cache memory: 2.30 GiB\n"
    b"(EngineCore pid=9) ERROR 12-01 13:59:02 [core.py:712] EngineCore failed to start.\n"
    b"(EngineCore pid=9) ERROR 12-01 13:59:02 [core.py:712] Traceback (most recent call last):\n"
    b'(EngineCore pid=9) ERROR 12-01 13:59:02 [core.py:712]   File "/opt/vllm/kv_cache_utils.py", line 683, in check\n'
    b"(EngineCore pid=9) ERROR 12-01 13:59:02 [core.py:712] ValueError: To serve at least one request with the model's "
    b"max seq len (40960), 5.63 GiB KV cache is needed, which is larger than the available KV cache memory (2.30 GiB). "
    b"Based on the available memory, the estimated maximum model length is 16736.\n"
    b"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
)
# What the panel knew of the host and the start.
KNOWN = {
    "memory": {"before": {"gpus": [{"index": 0, "total_mib": 46_068, "free_mib": 45_000, "others": []}]}},
    "oom_kills": 0, "settings": 8, "port": 8104, "host": {"driver": "580.95", "disks": [["/models", 212.0]]},
    "files": {"n": 5, "summed": True, "at": "2026-11-29T10:00:00+00:00"},
}  # fmt: skip


def failed_start(row: Deployment, copy: Copy, log: bytes, **values: object) -> Run:
    """A start that ended with this log, with everything that the loop keeps of it."""
    ending = explain(log=log, exit_code=1)
    run = start(
        row, copy, log=log, job_state="ended", ended_at=timezone.now(), outcome="failed", exit_code=1,
        reason=ending.reason, diagnosis=ending.diagnosis,
        phases=phases("profile", timezone.now().timestamp() - 100), **values,
    )  # fmt: skip
    run_log.place(ending.error_block, run_log.through(run.job_id))
    Run.objects.filter(pk=run.pk).update(error_block=ending.error_block)
    failures.keep(run, ending.reason, ending.error_block)
    row.reason = ending.reason
    row.save()
    return run


def changed(row: Deployment, **changes: object) -> None:
    number = row.revision.number + 1
    spec = {**row.revision.spec, **changes}
    row.revision = Revision.objects.create(deployment=row, number=number, spec=spec, created_by="maria")
    row.save()


@case("failed-whole", role="operator")
def whole() -> str:
    """Recognised, after a change, met before, and judged."""
    row, copy = gpu_deployment("failed")
    log = (CORPUS / "007.log").read_bytes()
    failed_start(row, copy, log)
    changed(row, options={"max_model_len": 40960, "gpu_memory_utilization": 0.98})
    run = failed_start(row, copy, log)
    Run.objects.filter(pk=run.pk).update(diagnosis={**run.diagnosis, **KNOWN})
    failures.judge(run, right=False, note="Another program had taken the memory meanwhile.", actor=None)
    return page_of(row)


@case("failed-numbers", role="operator")
def with_numbers() -> str:
    """Too little memory for one conversation: bars, marks, what was ruled out, what the engine said, who was warned."""
    row, copy = gpu_deployment("failed")
    run = failed_start(row, copy, KV)
    Run.objects.filter(pk=run.pk).update(diagnosis={**run.diagnosis, **KNOWN})
    audit.record("deployment.started_despite", row, actor=None, warnings=["check.tight"])
    return page_of(row)


@case("failed-not-recognised", role="operator")
def not_recognised() -> str:
    row, copy = gpu_deployment("failed")
    other = builders.make_deployment(copy, LONG, state="failed")
    failed_start(other, copy, UNKNOWN.replace(b"3 folds", b"11 folds"))
    changed(other, options={"enforce_eager": True})
    better = start(other, copy, job_state="ended", outcome="stopped", ended_at=timezone.now())
    Run.objects.filter(pk=better.pk).update(ready_at=timezone.now())
    failures.mended(better.pk)
    failed_start(row, copy, UNKNOWN)
    return page_of(row)


@case("failed-record", role="viewer")
def record() -> str:
    row, copy = gpu_deployment("failed")
    return f"/runs/{failed_start(row, copy, (CORPUS / '015.log').read_bytes()).pk}/"


@case("failures", role="viewer")
def history() -> str:
    whole()
    for name, file in (("draft-writer", "007.log"), ("summaries", "016.log"), (LONG, "017.log")):
        row = builders.make_deployment(builders.Copy.objects.earliest("pk"), name, state="failed")
        copy = builders.Copy.objects.earliest("pk")
        failed_start(row, copy, (CORPUS / file).read_bytes())
        changed(row, options={"max_model_len": 4096})
        better = start(row, copy, job_state="ended", outcome="stopped", ended_at=timezone.now())
        Run.objects.filter(pk=better.pk).update(ready_at=timezone.now())
        failures.mended(better.pk)
        failed_start(row, copy, UNKNOWN)
    return "/failures/"


@case("failures-none", role="viewer")
def no_history() -> str:
    return "/failures/"
