"""Placements and the reasons for none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from deployments.engines.base import RuntimeFacts
from deployments.placement import CopyView, GpuUser, GpuView, HostView, NoPlacement, Placement, RuntimeView
from deployments.planner import CPU_OVERHEAD_MIB, plan
from deployments.spec import DeploymentSpec

CUDA = RuntimeView(1, "vllm", RuntimeFacts("/opt/a/vllm", "0.32.0", "cuda"))
OLDER = RuntimeView(2, "vllm", RuntimeFacts("/opt/b/vllm", "0.9.2", "cuda"))
CPU = RuntimeView(3, "vllm", RuntimeFacts("/opt/c/vllm", "0.32.0+cpu", "cpu"))
COPY = CopyView(7, "/models/smol", 269 << 20)
HF: dict[str, Any] = {"format": "hf"}


def gpu(letter: str, index: int = 0, **facts: Any) -> GpuView:
    return GpuView(**{"uuid": f"GPU-{letter}", "index": index, "name": "H100", "total_mib": 80_000, **facts})


def host(number: int = 1, **facts: Any) -> HostView:
    given: dict[str, Any] = {
        "id": number, "name": f"host{number}", "ram_total_mib": 24_000, "ram_available_mib": 22_000,
        "cpu_flags": frozenset({"avx2"}), "gpus": (gpu("a", 0), gpu("b", 1)), "runtimes": (OLDER, CUDA, CPU),
        "copies": (COPY,),
    }  # fmt: skip
    return HostView(**(given | facts))


def place(*hosts: HostView, facts: dict[str, Any] | None = None, **spec: Any) -> Placement:
    done = plan(DeploymentSpec(artifact_id=1, **spec), hosts, facts or HF)
    assert isinstance(done, Placement), done
    return done


def reasons(*hosts: HostView, facts: dict[str, Any] | None = None, **spec: Any) -> tuple[list[str], bool]:
    done = plan(DeploymentSpec(artifact_id=1, **spec), hosts, facts or HF)
    assert isinstance(done, NoPlacement), done
    json.dumps(done.as_dict())
    return [candidate.reason.code for candidate in done.reasons], done.retryable


def test_the_emptiest_gpu_with_the_newest_runtime() -> None:
    done = place(host(gpus=(gpu("a", 0, used_mib=5_000), gpu("b", 1))))
    assert (done.host_id, done.runtime_id, done.copy_id, done.device) == (1, 1, 7, "gpu")
    assert done.gpu_uuids == ("GPU-b",)
    assert done.reserve == (("GPU-b", 72_000),)
    json.dumps(done.as_dict())


def test_the_share_reserves_utilisation_times_total() -> None:
    done = place(host(), options={"gpu_memory_utilization": 0.5}, gpu_count=2)
    assert done.reserve == (("GPU-a", 40_000), ("GPU-b", 40_000))
    assert place(host(), extra_args=["--gpu-memory-utilization=0.25"]).reserve == (("GPU-a", 20_000),)
    assert place(host(), extra_args=["--gpu_memory_utilization", "0.25"]).utilisation == 0.25


def test_two_runs_share_a_card_when_both_fit() -> None:
    half = host(gpus=(gpu("a", reserved_mib=40_000, used_mib=39_000),))
    assert place(half, options={"gpu_memory_utilization": 0.5}).gpu_uuids == ("GPU-a",)
    assert reasons(half) == (["gpu.reserved"], True)


def test_a_loading_run_counts_by_its_claim_not_by_what_it_uses_yet() -> None:
    assert reasons(host(gpus=(gpu("a", reserved_mib=72_000, used_mib=500),)))[0] == ["gpu.reserved"]


def test_strangers_on_the_card_are_named() -> None:
    others = (GpuUser(42, "python", "ada", 30_000),)
    done = plan(DeploymentSpec(artifact_id=1), [host(gpus=(gpu("a", used_mib=30_000, others=others),))], HF)
    assert isinstance(done, NoPlacement)
    reason = done.reasons[0].reason
    assert (reason.code, done.reasons[0].gpu_uuid, done.retryable) == ("gpu.used_by_others", "GPU-a", True)
    assert reason.params["users"][0]["user"] == "ada"
    assert reason.params["fits_utilisation"] == 0.61


@pytest.mark.parametrize(
    ("used_mib", "weight_gib", "offered"),
    [(40_000, 15, 0.49), (40_000, 60, None), (77_000, 1, None), (40_000, None, 0.49)],
    ids=["the weights fit", "the weights alone need more", "less than an engine needs", "weights unknown"],
)
def test_a_smaller_share_is_offered_only_where_it_would_work(
    used_mib: int, weight_gib: int | None, offered: float | None
) -> None:
    facts = {**HF, "weight_bytes": weight_gib << 30} if weight_gib else HF
    done = plan(DeploymentSpec(artifact_id=1), [host(gpus=(gpu("a", used_mib=used_mib),))], facts)
    assert isinstance(done, NoPlacement)
    assert done.reasons[0].reason.params.get("fits_utilisation") == offered


def test_a_desktop_on_the_card_does_not_forbid_the_default() -> None:
    others = (GpuUser(1, "Xorg", "root", 500),)
    small = gpu("a", total_mib=24_000, used_mib=600, others=others)
    assert place(host(gpus=(small,))).reserve == (("GPU-a", 21_600),)


def test_picks_are_respected_in_their_order() -> None:
    done = place(host(1), host(2), host_id=2, gpu_uuids=["GPU-b", "GPU-a"], runtime_id=2)
    assert (done.host_id, done.runtime_id, done.gpu_uuids) == (2, 2, ("GPU-b", "GPU-a"))


def test_a_picked_gpu_is_never_exchanged_for_a_free_one() -> None:
    busy = host(gpus=(gpu("a", used_mib=70_000), gpu("b", 1)))
    assert reasons(busy, gpu_uuids=["GPU-a"]) == (["gpu.busy"], True)
    assert reasons(host(), gpu_uuids=["GPU-x"]) == (["gpu.gone"], False)


def test_several_gpus_are_of_one_kind() -> None:
    mixed = (gpu("a", 0), gpu("b", 1, name="L4", total_mib=24_000), gpu("c", 2, used_mib=4_000))
    assert place(host(gpus=mixed), gpu_count=2).gpu_uuids == ("GPU-a", "GPU-c")
    done = place(host(gpus=mixed[:2]), gpu_count=2)
    assert [note.code for note in done.notes] == ["gpu.mixed_kinds", "gpu.slow_link", "estimate.unknown"]
    assert reasons(host(), gpu_count=3) == (["gpu.too_few"], False)
    assert len(place(host(), options={"tensor_parallel_size": 2}).gpu_uuids) == 2
    assert len(place(host(), extra_args=["--seed 1 -tp 2"]).gpu_uuids) == 2


def test_the_emptier_host_wins() -> None:
    assert place(host(1, gpus=(gpu("a", reserved_mib=4_000),)), host(2, gpus=(gpu("b"),))).host_id == 2


def test_cpu_reserves_weights_kv_and_overhead() -> None:
    done = place(host(gpus=()), kv_cache_gib=2, facts={"format": "hf", "weight_bytes": 256 << 20})
    assert (done.device, done.runtime_id, done.kv_cache_gib) == ("cpu", 3, 2)
    assert done.reserve == ((None, 256 + 2048 + CPU_OVERHEAD_MIB),)


def test_auto_does_not_fall_to_the_cpu_because_a_gpu_is_busy() -> None:
    assert reasons(host(gpus=(gpu("a", used_mib=70_000),)))[0] == ["gpu.busy"]
    assert place(host(), device="cpu").device == "cpu"
    assert place(host(runtimes=(CPU,))).device == "cpu"


@pytest.mark.parametrize(
    ("facts", "spec", "codes", "retryable"),
    [
        ({"lost": True}, {}, ["host.lost"], True),
        ({"schedulable": False}, {}, ["host.paused"], False),
        ({"copies": ()}, {}, ["copy.none"], False),
        ({"copies": (replace(COPY, present=False),)}, {}, ["copy.vanished"], False),
        ({"copies": (replace(COPY, problems=({"code": "zero_bytes", "params": {}},)),)}, {}, ["copy.broken"], False),
        ({"runtimes": ()}, {}, ["runtime.none"], False),
        ({}, {"runtime_id": 99}, ["runtime.gone"], False),
        ({"runtimes": (CPU,)}, {"device": "gpu"}, ["runtime.not_for_gpu"], False),
        ({"runtimes": (CUDA,)}, {"device": "cpu"}, ["runtime.not_for_cpu"], False),
        ({"runtimes": (replace(CUDA, refusal={"code": "x"}),)}, {"device": "gpu"}, ["runtime.broken"], False),
        ({"cpu_flags": frozenset()}, {"device": "cpu"}, ["cpu.no_avx2"], False),
        ({"gpus": ()}, {"device": "gpu"}, ["gpu.none"], False),
        ({"gpus": (gpu("a", schedulable=False),)}, {}, ["gpu.paused"], False),
        ({"ram_total_mib": 4_000}, {"device": "cpu"}, ["host.ram_too_small"], False),
        ({"ram_reserved_mib": 20_000}, {"device": "cpu"}, ["host.ram_reserved"], True),
        ({"ram_available_mib": 1_000}, {"device": "cpu"}, ["host.ram_used"], True),
    ],
)
def test_reasons(facts: dict[str, Any], spec: dict[str, Any], codes: list[str], retryable: bool) -> None:
    assert reasons(host(**facts), **spec) == (codes, retryable)


def test_every_host_says_why() -> None:
    assert reasons(host(1, lost=True), host(2, copies=()))[0] == ["host.lost", "copy.none"]
    assert reasons(host_id=3)[0] == ["host.gone"]
    assert reasons()[0] == ["host.none"]


def test_gguf_without_its_plugin_names_it() -> None:
    assert reasons(host(runtimes=(CUDA,)), facts={"format": "gguf"})[0] == ["gguf.plugin_missing"]


def test_arm_needs_no_avx2() -> None:
    assert place(host(machine="aarch64", cpu_flags=frozenset(), gpus=())).device == "cpu"
