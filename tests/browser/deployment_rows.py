"""Deployments as people have them, for looking at their pages: on GPUs with earlier starts, and on a CPU."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from deployments.models import Deployment, Run, Transition
from models_catalog.models import Copy
from panel.fleet import samples, serving_points
from panel.fleet.wire_serving import Point
from tests.deployments import builders

LONG = "a-deployment-with-quite-a-long-name-that-fills-all-63-letters-x"
LONG_MODEL = "an-organisation-with-a-long-name/Some-Very-Long-Model-Name-235B-A22B-Instruct-2507-FP8-dynamic-quantised"
CHINESE_MODEL = "千问-中文-对话-模型-增强版"
GPU_LOG = b"""INFO 11-30 14:02:09 [api_server.py:1894] vLLM API server version 0.32.0
INFO 11-30 14:02:09 [utils.py:253] non-default args: {'model': '/models/Qwen3-30B', 'max_model_len': 16384}
INFO 11-30 14:02:15 [model.py:547] Resolved architecture: Qwen3MoeForCausalLM
WARNING 11-30 14:02:16 [cache.py:88] Possibly too large swap space. 8.00 GiB out of the 31.26 GiB total CPU memory.
(EngineCore_DP0 pid=4711) INFO 11-30 14:02:19 [gpu_model_runner.py:2602] Starting to load model /models/Qwen3-30B...
(EngineCore_DP0 pid=4711) Loading safetensors checkpoint shards:  31% Completed | 5/16 [00:21<00:44,  4.05s/it]
"""
TRACE = [
    "Traceback (most recent call last):",
    '  File "/opt/vllm/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 712, in run_engine_core',
    "    engine_core = EngineCoreProc(*args, **kwargs)",
    "ValueError: To serve at least one request with the model's max seq len (131072), 16.00 GiB KV cache is needed, which "
    "is larger than the available KV cache memory (9.42 GiB). Try increasing `gpu_memory_utilization` or decreasing "
    "`max_model_len` when initializing the engine.",
]
SPANS = {"start": 4, "import": 5, "config": 7, "load": 66, "profile": 12, "kvcache": 3, "graph": 38, "http": 5}


def gpu_shelf() -> Copy:
    return builders.make_copy(builders.make_host("atlas", gpus=2), "Qwen3-30B-A3B-Instruct-2507")


def cpu_shelf(model: str = "SmolLM2-135M-Instruct") -> Copy:
    return builders.make_copy(builders.make_host("quay"), model)


def phases(until: str, since: float, *, done: int | None = None, total: int | None = None) -> list[dict[str, Any]]:
    """The phases up to `until`, which goes on, begun at `since` (Unix seconds)."""
    found: list[dict[str, Any]] = []
    for code, span in SPANS.items():
        found.append({"code": code, "start": since, "end": since + span, "done": None, "total": None, "clock": ""})
        if code == until:
            found[-1] |= {"end": None, "done": done, "total": total}
            break
        since += span
    return found


def start(row: Deployment, copy: Copy, *, ago: float = 42, log: bytes = GPU_LOG, **values: Any) -> Run:
    """A run on the GPUs of a host where it has any, begun `ago` seconds before now."""
    gpus = list(copy.host.gpus.all())
    placement = {
        "device": "gpu" if gpus else "cpu",
        "gpus": [g.index for g in gpus],
        "gpu_uuids": [g.uuid for g in gpus],
    }
    placement["reserve"] = [[g.uuid, 41_461] for g in gpus] or [[None, 4_345]]
    status = (
        {"gpu_used_mib": 20_700, "rss_mib": 8_900, **values.pop("status", {})} if gpus else values.pop("status", {})
    )
    run = builders.make_run(row, copy, log=log, status=status, placement=placement, **values)
    Run.objects.filter(pk=run.pk).update(created_at=timezone.now() - timedelta(seconds=ago))
    Transition.objects.filter(run=run).update(at=timezone.now() - timedelta(seconds=ago - 1))
    run.refresh_from_db()
    return run


def earlier(row: Deployment, copy: Copy, *, days: int) -> Run:
    """A start of some days ago that went well and was stopped; what "usually" rests on."""
    at = timezone.now() - timedelta(days=days)
    spent = sum(SPANS.values()) + days
    run = start(
        row,
        copy,
        ago=days * 86_400,
        job_state="ended",
        outcome="stopped",
        exit_code=0,
        ended_at=at + timedelta(hours=5),
    )
    whole = phases("", at.timestamp() + 1)
    run.phases = [
        *whole,
        {"code": "serving", "start": whole[-1]["end"], "end": at.timestamp() + spent, "done": None, "total": None},
    ]
    run.ready_at = at + timedelta(seconds=spent + 2)
    run.probe = {"asked_at": at.timestamp() + spent, "done_at": at.timestamp() + spent + 2}
    run.answer = {
        "question": "What is the capital of France?",
        "answer": "Paris.",
        "latency_ms": 912,
        "at": at.timestamp() + spent + 2,
    }
    run.save()
    return run


def page_of(row: Deployment) -> str:
    return f"/deployments/{row.pk}/"


def gpu_deployment(state: str, name: str = "support-chat", **values: Any) -> tuple[Deployment, Copy]:
    copy = gpu_shelf()
    row = builders.make_deployment(copy, name, state=state, **values)
    for days in (9, 4, 2):
        earlier(row, copy, days=days)
    return row, copy


def waiting(row: Deployment, state: str = "queued") -> None:
    reasons = [
        {
            "name": "atlas GPU 0",
            "code": "gpu.reserved",
            "params": {
                "index": 0,
                "need_mib": 41_461,
                "reserved_mib": 41_461,
                "total_mib": 46_068,
                "fits_utilisation": 0.08,
            },
        },
        {
            "name": "atlas GPU 1",
            "code": "gpu.used_by_others",
            "params": {
                "index": 1,
                "need_mib": 41_461,
                "used_mib": 22_000,
                "users": [{"pid": 4711, "name": "python3", "user": "ada", "used_mib": 22_000}],
                "total_mib": 46_068,
                "fits_utilisation": 0.5,
            },
        },
        {"name": "quay", "code": "copy.none", "params": {}},
    ]
    stop = {"code": "change.stop", "params": {"names": ["support-chat"], "host": "atlas"}, "patch": {}}
    row.reason = {"code": "place.none", "params": {"candidates": reasons, "changes": [stop]}}
    row.deadline_at = timezone.now() + timedelta(hours=20)
    row.state = state
    row.save()


def end_badly(row: Deployment, copy: Copy, reason: dict[str, Any], **values: Any) -> Run:
    block = {"first_line": 214, "root_line": 217, "lines": TRACE}
    run = start(
        row, copy, job_state="ended", ended_at=timezone.now(), outcome="failed", reason=reason, error_block=block,
        phases=phases("profile", timezone.now().timestamp() - 100), **values,
    )  # fmt: skip
    row.reason = reason
    row.save()
    return run


FIX = {"code": "fix.more_share", "params": {"before": 0.9, "after": 0.95},
       "patch": {"options": {"gpu_memory_utilization": 0.95}}}  # fmt: skip
FINDINGS: list[tuple[str, str, str, dict[str, Any], dict[str, Any] | None]] = [
    ("serve.silent", "serve.silent", "bad", {"times": 4}, None),
    ("serve.waiting", "serve.waiting_memory", "warn", {"waiting": 44, "running": 16, "percent": 95}, FIX),
    ("serve.logged", "serve.logged", "note",
     {"count": 7, "title": "A request sent a picture to a model that reads text only",
      "why": "Only this request failed; the engine goes on.",
      "line": "ValueError: /models/Qwen3-30B-A3B-Instruct-2507 is not a multimodal model"}, None),
]  # fmt: skip


def finding(family: str, code: str, level: str, params: dict[str, Any], fix: dict[str, Any] | None) -> dict[str, Any]:
    """As a run keeps it, seen for twelve minutes."""
    since = timezone.now().timestamp() - 720
    return {"family": family, "code": code, "level": level, "params": params, "since": since, "fix": fix}


def looked_at(run: Run) -> None:
    """What its engine said of itself in the last minutes."""
    now = timezone.now().timestamp()
    for age in range(180, -1, -10):
        point = Point(now - age, health=200, running=16, waiting=44, kv_usage=0.953, generation_tokens=1e6 - 412 * age)
        samples.ask(*serving_points.commands({str(run.job_id): serving_points.New(point, 100)}))
