"""Rows for tests of the deployments' pages and loop: a host with an engine, a model on it, deployments in any state."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from deployments.models import Deployment, Revision, Run, Transition
from deployments.spec import DeploymentSpec
from models_catalog.models import Artifact, CatalogModel, Conversion, Copy, Download
from panel.fleet.models import Gpu, Host, Job, JobLog, Reservation, Runtime, RuntimeInstall

FLAGS = json.loads((Path(__file__).parent.parent / "fakes" / "flags.json").read_text())
FACTS: dict[str, Any] = {
    "hostname": "quay", "os": "Debian GNU/Linux 12", "kernel": "6.1", "machine": "x86_64", "cpu_model": "a CPU",
    "cpu_count": 16, "cpu_flags": ["avx2", "avx512f"], "ram_total_mib": 64_000, "ram_available_mib": 48_000,
    "disks": [], "python": "3.12", "boot_time": 1.0, "agent_started": 2.0, "model_roots": ["/models"],
}  # fmt: skip
DOOR = {"address": "10.0.0.7", "port": 8443, "certificate": "c" * 64, "accepts": [], "problem": ""}
LOG = b"""INFO 11-30 14:02:09 [api_server.py:1894] vLLM API server version 0.32.0
INFO 11-30 14:02:09 [utils.py:253] non-default args: {'model': '/models/tiny', 'max_model_len': 2048}
INFO 11-30 14:02:15 [model.py:547] Resolved architecture: LlamaForCausalLM
WARNING 11-30 14:02:16 [cpu.py:88] VLLM_CPU_KVCACHE_SPACE is small <b>not bold</b>
INFO 11-30 14:02:19 [loader.py:97] Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:01<00:00]
"""


def make_host(name: str = "quay", *, gpus: int = 0, device: str = "", **values: Any) -> Host:
    now = timezone.now()
    here = not Host.objects.filter(is_local=True).exists()
    values = {"is_local": here, "door": {} if here else DOOR, **values}
    host = Host.objects.create(
        name=name, token_hash=f"hash of {name}",
        agent_version="0.1.0", last_seen_at=now, facts=FACTS, facts_at=now, ram_total_mib=FACTS["ram_total_mib"], **values,
    )  # fmt: skip
    for index in range(gpus):
        Gpu.objects.create(host=host, uuid=f"GPU-{name}-{index}", index=index, name="NVIDIA L40S", total_mib=46_068,
                           used_mib=600, measured_at=now)  # fmt: skip
    Runtime.objects.create(
        host=host, engine="vllm", executable=f"/opt/{name}/bin/vllm", version="0.32.0", python="3.12",
        device=device or ("cuda" if gpus else "cpu"), flags=FLAGS, origin="path",
    )  # fmt: skip
    return host


def make_copy(host: Host, name: str = "Tiny-1B-Instruct", **values: Any) -> Copy:
    model, _made = CatalogModel.objects.get_or_create(name=name)
    artifact = model.artifacts.first() or Artifact.objects.create(
        model=model, format="hf", label="bfloat16", fingerprint=name[:64], size_bytes=2 << 30,
        facts={"format": "hf", "tasks": ["generate"], "architectures": ["LlamaForCausalLM"], "weight_bytes": 2 << 30,
               "context_length": 4096, "heads": 16, "chat_template": True, "tokenizer": "tokenizer.json"},
    )  # fmt: skip
    return Copy.objects.create(artifact=artifact, host=host, path=f"/models/{name}", root="/models", **values)


def make_deployment(copy: Copy, name: str = "team-chat", *, state: str = "stopped", **values: Any) -> Deployment:
    desired = "stopped" if state in ("stopped", "stopping") else "running"
    row = Deployment.objects.create(
        **{"name": name, "state": state, "desired": desired, "created_by": "maria", "wanted_by": "maria", **values}
    )
    spec = DeploymentSpec(artifact_id=copy.artifact_id, device="auto")
    row.revision = Revision.objects.create(
        deployment=row, number=1, spec=spec.model_dump(mode="json"), created_by="maria"
    )
    row.save(update_fields=["revision"])
    return row


def make_run(row: Deployment, copy: Copy, *, job_state: str = "running", log: bytes = LOG, **values: Any) -> Run:
    """A run with its job and log, set as the deployment's newest."""
    now = timezone.now()
    host = copy.host
    runtime = host.runtimes.first()
    status = {"state": job_state, "pid": 4711, "port": 18_100, "listening": job_state == "running", "processes": 3,
              "rss_mib": 3_100, "read_bytes": 2 << 30, "log_size": len(log), "still_since": now.timestamp(),
              "argv": [runtime.executable, "serve", copy.path, "--port", "18100"], "started_at": now.timestamp() - 40}  # fmt: skip
    status |= values.pop("status", {})
    job = Job.objects.create(host=host, kind="engine", state=job_state, status=status, status_at=now,
                             open=job_state != "ended", ended_at=now if job_state == "ended" else None)  # fmt: skip
    JobLog.objects.create(job=job, size=len(log), tail=log)
    start = now.timestamp() - 40
    phases = [
        {"code": "start", "start": start, "end": start + 4, "done": None, "total": None, "clock": ""},
        {"code": "config", "start": start + 4, "end": start + 9, "done": None, "total": None, "clock": ""},
        {"code": "load", "start": start + 9, "end": None, "done": 1, "total": 2, "clock": ""},
    ]
    run = Run.objects.create(
        **{
            "deployment": row, "revision": row.revision, "number": row.runs.count() + 1, "host": host, "runtime": runtime,
            "copy": copy, "job": job, "host_name": host.name, "model_name": str(copy.artifact), "engine_version": "0.32.0",
            "placement": {"device": "cpu", "gpus": [], "gpu_uuids": [], "reserve": [[None, 5_000]]}, "phases": phases,
            "log_parsed": len(log), "started_by": "maria", "env": {"VLLM_API_KEY": "••••••", "VLLM_TARGET_DEVICE": "cpu"},
            "command": status["argv"], **values,
        }
    )  # fmt: skip
    Run.objects.filter(pk=run.pk).update(created_at=now - timedelta(seconds=42))
    row.run = run
    row.save(update_fields=["run"])
    Transition.objects.create(deployment=row, run=run, old="preparing", new="starting")
    if run.ended_at is None:
        Reservation.objects.create(host=host, holder=str(run.pk), mib=5_000)
        Host.objects.filter(pk=host.pk).update(ram_reserved_mib=host.ram_reserved_mib + 5_000)
    return run


def make_install(
    host: Host, *, state: str = "running", log: bytes = b"Collecting vllm\n", **values: Any
) -> RuntimeInstall:
    """An install of an engine, with its job and log."""
    now = timezone.now()
    over = state in ("done", "failed", "cancelled")
    job = Job.objects.create(host=host, kind="install", state="ended" if over else "running", open=not over,
                             status={"started_at": now.timestamp() - 60, "still_since": now.timestamp()}, status_at=now)  # fmt: skip
    JobLog.objects.create(job=job, size=len(log), tail=log)
    steps = [
        {
            "code": "checking",
            "start": now.timestamp() - 60,
            "end": now.timestamp() - 58,
            "done": 0,
            "total": 0,
            "note": "",
        },
        {"code": "downloading", "start": now.timestamp() - 58, "end": None, "done": 12, "total": 41, "note": "torch"},
    ]
    return RuntimeInstall.objects.create(
        **{
            "host": host, "variant": "cpu", "version": "0.32.0", "name": "vllm-cpu-0.32.0", "state": state, "job": job,
            "tries": 1, "steps": steps, "asked_by": "maria", "began_at": now - timedelta(seconds=60),
            "deadline_at": now + timedelta(hours=2), "ended_at": now if over else None, **values,
        }
    )  # fmt: skip


def make_conversion(copy: Copy, *, state: str = "running", log: bytes = b"Reading\n", **values: Any) -> Conversion:
    """A conversion of a GGUF copy with its job and log, reading."""
    now = timezone.now()
    over = state in ("done", "failed", "cancelled")
    progress = {"phase": "reading", "done": 96, "total": 272, "passed": ["checking", "describing"], "rate": 0.0,
                "silent_s": 0.0, "note": "", "trouble": ""}  # fmt: skip
    progress |= values.pop("progress", {})
    job = Job.objects.create(host=copy.host, kind="convert", state="ended" if over else "running", open=not over,
                             status_at=now, status={"started_at": now.timestamp() - 12, "progress": progress})  # fmt: skip
    JobLog.objects.create(job=job, size=len(log), tail=log)
    return Conversion.objects.create(
        **{
            "host": copy.host, "copy": copy, "source_path": copy.path, "source_name": str(copy.artifact), "dtype": "float16",
            "executable": "/opt/quay/bin/vllm", "folder": "/models", "name": "Tiny-1B-Instruct-float16", "state": state,
            "bytes_total": 2 << 30, "job": job, "tries": 1, "asked_by": "maria", "ended_at": now if over else None, **values,
        }
    )  # fmt: skip


def make_download(
    host: Host, *, state: str = "running", log: bytes = b"Downloading 3 files, 1500.0 MiB\n", **values: Any
) -> Download:
    """A download with its job and log, a third of it done."""
    now = timezone.now()
    over = state in ("done", "failed", "cancelled", "paused")
    progress = {"phase": "downloading", "done": 500 << 20, "total": 1500 << 20, "passed": ["checking"], "rate": 42.0 * (1 << 20),
                "silent_s": 0.0, "note": "model.safetensors", "trouble": ""}  # fmt: skip
    progress |= values.pop("progress", {})
    job = Job.objects.create(host=host, kind="download", state="ended" if over else "running", open=not over, status_at=now,
                             status={"started_at": now.timestamp() - 12, "progress": progress})  # fmt: skip
    JobLog.objects.create(job=job, size=len(log), tail=log)
    files = [
        {"path": "config.json", "size": 700, "sha256": "", "etag": "a" * 40},
        {"path": "model.safetensors", "size": 1500 << 20, "sha256": "b" * 64, "etag": ""},
        {"path": "tokenizer.json", "size": 2 << 20, "sha256": "", "etag": "c" * 40},
    ]
    return Download.objects.create(
        **{
            "host": host, "source": "huggingface", "endpoint": "https://huggingface.co", "repo": "acme/Tiny-1B-Instruct",
            "revision": "d" * 40, "ref": "main", "licence": "apache-2.0", "files": files, "folder": "/models", "tries": 1,
            "layout": "folder", "name": "acme/Tiny-1B-Instruct", "state": state, "job": job, "asked_by": "maria",
            "bytes_total": 1502 << 20, "bytes_done": (1502 << 20) if state == "done" else 502 << 20, "queued_at": now,
            "ended_at": now if over else None, **values,
        }
    )  # fmt: skip


def ready(row: Deployment, run: Run) -> None:
    """Make a started run one that answered."""
    now = timezone.now()
    run.answer = {"question": "What is the capital of France?", "answer": "Paris.", "latency_ms": 184, "at": now.timestamp(),
                  "path": "/v1/chat/completions"}  # fmt: skip
    run.probe = {"asked_at": now.timestamp() - 1, "done_at": now.timestamp()}
    run.parser = {"facts": {"kv_tokens": 118_784, "max_model_len": 4096}}
    run.ready_at = now
    run.save()


ENDED: dict[str, Any] = {"outcome": "failed", "exit_code": 1}


def failed(row: Deployment, copy: Copy) -> Run:
    """A deployment whose newest start failed with a traceback."""
    reason = {"code": "exit.code", "params": {"exit_code": 1, "phase": "load"}}
    run = make_run(
        row, copy, job_state="ended", ended_at=timezone.now(), reason=reason,
        error_block={"first_line": 5, "root_line": 6, "lines": ["Traceback (most recent call last):", "ValueError: <script>alert(1)</script> no memory"]},
        **ENDED,
    )  # fmt: skip
    row.reason = reason
    row.save(update_fields=["reason"])
    return run
