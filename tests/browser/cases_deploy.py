"""The list of deployments, and the forms with their plan."""

from datetime import timedelta

from django.utils import timezone

from deployments import services
from deployments.spec import DeploymentSpec
from models_catalog.models import Artifact, Copy
from panel.accounts.models import User
from panel.fleet.models import Gpu, Host
from tests.browser.cases import case
from tests.browser.deployment_rows import (
    CHINESE_MODEL,
    FINDINGS,
    LONG,
    LONG_MODEL,
    cpu_shelf,
    finding,
    gpu_deployment,
    gpu_shelf,
    phases,
    start,
    waiting,
)
from tests.deployments import builders
from tests.deployments.pure.plans import model

# --- the list ---------------------------------------------------------------------------------------------------------


def one_of_each() -> None:
    copy, small = gpu_shelf(), cpu_shelf()
    chinese = builders.make_copy(small.host, CHINESE_MODEL)
    long = builders.make_copy(small.host, LONG_MODEL)
    row = builders.make_deployment(copy, "support-chat", state="ready")
    builders.ready(row, start(row, copy))
    row = builders.make_deployment(copy, "draft-writer", state="starting")
    start(row, copy, phases=phases("load", timezone.now().timestamp() - 40, done=5, total=16))
    row = builders.make_deployment(small, "nightly-evaluation", state="failed")
    builders.failed(row, small)
    waiting(builders.make_deployment(copy, "code-review", state="queued", wanted_by="ken.osei"))
    builders.make_deployment(small, "never-started")
    row = builders.make_deployment(small, "old-one")
    start(row, small, job_state="ended", outcome="stopped", exit_code=0, ended_at=timezone.now())
    row = builders.make_deployment(small, "going-down", state="stopping")
    start(row, small)
    row = builders.make_deployment(small, "far-away", state="lost", reason={"code": "lost.no_contact", "params": {}})
    start(row, small)
    row = builders.make_deployment(chinese, "zhongwen", state="preparing", wanted_by="陈梅")
    start(row, chinese, phases=[])
    row = builders.make_deployment(long, LONG, state="ready", wanted_by="a.person.with.a.rather.long.name")
    run = start(row, long)
    run.findings = {"found": [finding(*FINDINGS[1])], "base": {}}
    builders.ready(row, run)


@case("deployments")
def deployments() -> str:
    one_of_each()
    return "/"


@case("deployments-viewer", role="viewer")
def deployments_viewer() -> str:
    row, copy = gpu_deployment("ready")
    builders.ready(row, start(row, copy))
    return "/"


@case("deployments-nothing-matches")
def deployments_nothing_matches() -> str:
    builders.make_deployment(cpu_shelf(), "support-chat")
    return "/?q=nothing+like+this&state=ready"


# --- forms ------------------------------------------------------------------------------------------------------------


@case("deploy-new")
def deploy_new() -> str:
    cpu_shelf()
    return "/deployments/new"


@case("deploy-new-nothing-to-deploy")
def deploy_new_nothing() -> str:
    return "/deployments/new"


@case("deploy-new-gpu")
def deploy_new_gpu() -> str:
    copy = gpu_shelf()
    for n, name in enumerate([CHINESE_MODEL, LONG_MODEL, "gemma-3-27b-it", "Llama-3.3-70B", "Phi-4", "bge-m3"]):
        problems = (
            [{"code": "missing_weights", "params": {"files": ["model-00002-of-00002.safetensors"]}}] if n == 2 else []
        )
        builders.make_copy(copy.host, name, problems=problems, usable=not problems)
    return f"/deployments/new?artifact={copy.artifact_id}"


@case("deploy-plan-cpu")
def deploy_plan_cpu() -> str:
    copy = cpu_shelf()
    Artifact.objects.filter(pk=copy.artifact_id).update(facts=model("Qwen--Qwen2.5-1.5B-Instruct"))
    return f"/deployments/new?artifact={copy.artifact_id}"


@case("deploy-plan-refused")
def deploy_plan_refused() -> str:
    copy = gpu_shelf()
    Artifact.objects.filter(pk=copy.artifact_id).update(facts=model("Qwen--Qwen3-30B-A3B", torch_dtype="bfloat16"))
    python = {"pid": 4711, "name": "python3", "user": "ada", "used_mib": 43_000}
    Gpu.objects.filter(host=copy.host, index=0).update(reserved_mib=44_000)
    Gpu.objects.filter(host=copy.host, index=1).update(used_mib=44_000, measured={"processes": [python]})
    third = {"uuid": "GPU-atlas-2", "name": "NVIDIA H100 80GB HBM3", "total_mib": 81_559, "used_mib": 30_000}
    Gpu.objects.create(host=copy.host, index=2, measured={"processes": [{**python, "used_mib": 29_000}]}, **third)
    builders.make_copy(builders.make_host("quay"), "Qwen3-30B-A3B-Instruct-2507")
    Host.objects.filter(name="quay").update(lost_at=timezone.now(), last_seen_at=timezone.now() - timedelta(hours=2))
    return f"/deployments/new?artifact={copy.artifact_id}"


@case("deploy-plan-elsewhere")
def deploy_plan_elsewhere() -> str:
    """Two GPUs without a fast link; other hosts that could take it, and some that cannot."""
    copy = gpu_shelf()
    facts = model("Qwen--Qwen3-30B-A3B")
    Artifact.objects.filter(pk=copy.artifact_id).update(facts=facts, size_bytes=61 << 30)
    Gpu.objects.filter(host=copy.host).update(measured={"compute_capability": "8.9", "nvlink": []})
    for name, kind, total in (("borealis", "NVIDIA H100 80GB HBM3", 81_559), ("desk", "NVIDIA RTX 4090", 24_564)):
        host = builders.make_host(name, device="cuda")
        for n in range(2):
            uuid = f"GPU-{name}-{n}"
            Gpu.objects.create(host=host, uuid=uuid, index=n, name=kind, total_mib=total, used_mib=9_000 * (1 - n))
        builders.make_copy(host, "Qwen3-30B-A3B-Instruct-2507")
    builders.make_copy(builders.make_host("spark", gpus=1), "Qwen3-30B-A3B-Instruct-2507")
    Host.objects.filter(name="spark").update(lost_at=timezone.now(), last_seen_at=timezone.now() - timedelta(hours=2))
    Copy.objects.update(artifact=copy.artifact_id)
    return f"/deployments/new?artifact={copy.artifact_id}&gpu_count=2&max_model_len=8192&people=4"


@case("deploy-plan-smaller-form")
def deploy_plan_smaller_form() -> str:
    """Too big for every GPU: a quantised form is in the catalog, and no host has it."""
    host = gpu_shelf().host
    copy, small = builders.make_copy(host, "Qwen3-32B"), builders.make_copy(host, "Qwen3-32B-AWQ")
    awq = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}}
    Artifact.objects.filter(pk=copy.artifact_id).update(facts=model("Qwen--Qwen3-32B"), size_bytes=65 << 30)
    facts = {**model("Qwen--Qwen3-32B", **awq), "origin": "Qwen/Qwen3-32B-AWQ", "source": "hf-cache"}
    Artifact.objects.filter(pk=small.artifact_id).update(facts=facts, size_bytes=19 << 30, label="AWQ 4-bit")
    Copy.objects.filter(pk=small.pk).update(present=False)
    Gpu.objects.update(measured={"compute_capability": "8.9", "nvlink": []})
    return f"/deployments/new?artifact={copy.artifact_id}"


@case("deploy-plan-flags-refused")
def deploy_plan_flags_refused() -> str:
    copy = cpu_shelf()
    row = builders.make_deployment(copy, "support-chat")
    services.edit(
        row, actor=User.objects.create(username="maria"),
        spec=DeploymentSpec(artifact_id=copy.artifact_id, device="cpu", extra_args=["--swap-space", "4", "--enable-prefix-cachin", "--host", "0.0.0.0"]),
    )  # fmt: skip
    return f"/deployments/{row.pk}/edit"


@case("deploy-edit", role="operator")
def deploy_edit() -> str:
    row, _copy = gpu_deployment("ready")
    return f"/deployments/{row.pk}/edit"
