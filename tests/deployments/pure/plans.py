"""Hosts, cards and models for the planner's tests."""

from __future__ import annotations

from typing import Any

from deployments.engines.base import RuntimeFacts
from deployments.placement import CopyView, GpuUser, GpuView, HostView, NoPlacement, Placement, RuntimeView
from deployments.planner import Need, plan
from deployments.spec import DeploymentSpec
from tests.models_catalog.estimate.builders import facts

CUDA = RuntimeView(1, "vllm", RuntimeFacts("/opt/a/vllm", "0.32.0", "cuda"))
CPU = RuntimeView(3, "vllm", RuntimeFacts("/opt/c/vllm", "0.32.0+cpu", "cpu"))
COPY = CopyView(7, "/models/it", 16 << 30)
# name, MiB by NVML, compute capability
CARDS: dict[str, tuple[str, int, tuple[int, int]]] = {
    "t4": ("Tesla T4", 15_360, (7, 5)),
    "3090": ("NVIDIA GeForce RTX 3090", 24_576, (8, 6)),
    "4090": ("NVIDIA GeForce RTX 4090", 24_564, (8, 9)),
    "l40s": ("NVIDIA L40S", 46_068, (8, 9)),
    "a100": ("NVIDIA A100-SXM4-80GB", 81_920, (8, 0)),
    "h100": ("NVIDIA H100 80GB HBM3", 81_559, (9, 0)),
}
PYTHON = GpuUser(4711, "python3", "ada", 9_735)


def card(kind: str = "4090", index: int = 0, **facts_: Any) -> GpuView:
    name, total, capability = CARDS[kind]
    given: dict[str, Any] = {"uuid": f"GPU-{kind}-{index}", "index": index, "name": name, "total_mib": total,
                             "used_mib": 300, "capability": capability}  # fmt: skip
    return GpuView(**(given | facts_))


def lab(*cards: GpuView, number: int = 1, **facts_: Any) -> HostView:
    given: dict[str, Any] = {
        "id": number, "name": f"lab-{number}", "ram_total_mib": 64_000, "ram_available_mib": 60_000,
        "cpu_flags": frozenset({"avx2"}), "gpus": cards, "runtimes": (CUDA, CPU), "copies": (COPY,),
    }  # fmt: skip
    return HostView(**(given | facts_))


def model(name: str = "Qwen--Qwen3-8B", **changes: Any) -> dict[str, Any]:
    return facts(name, **changes).to_dict()


def spec(**values: Any) -> DeploymentSpec:
    return DeploymentSpec(artifact_id=1, **values)


def place(*hosts: HostView, of: dict[str, Any] | None = None, need: Need | None = None, **values: Any) -> Placement:
    done = plan(spec(**values), hosts, of or model(), need)
    assert isinstance(done, Placement), done
    return done


def none(*hosts: HostView, of: dict[str, Any] | None = None, need: Need | None = None, **values: Any) -> NoPlacement:
    done = plan(spec(**values), hosts, of or model(), need)
    assert isinstance(done, NoPlacement), done
    return done


def codes(found: NoPlacement) -> list[str]:
    return [candidate.reason.code for candidate in found.reasons]
