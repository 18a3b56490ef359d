"""What was foreseen beside what a log says: names, differences, and what of them is learned."""

import json
from pathlib import Path
from typing import Any

import pytest

from deployments import measured
from deployments.diagnosis import phases
from deployments.measured import Kind
from deployments.planner import Estimator
from deployments.planner.asked import asked_of
from deployments.spec import DeploymentSpec
from models_catalog.estimate import Gpu, Lesson, Options, estimate
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config

CONFIG = Path(__file__).parents[2] / "data/memory/configs/Qwen--Qwen2.5-7B-Instruct.json"
HERE: Kind = (1, "0.19.0", "NVIDIA L40S", 1)
LEFT: dict[str, Any] = {"kv_gib": 10.0, "source": "kv.left", "pp": 1, "dp": 1, "shift_gib": 0.0}


def spec(**options: Any) -> DeploymentSpec:
    return DeploymentSpec(artifact_id=1, options=options)


def facts() -> ModelFacts:
    return facts_of_config(json.loads(CONFIG.read_text()))


def read(*lines: str) -> dict[str, Any]:
    return phases.feed("".join(f"{line}\n" for line in lines).encode(), {}, 1.0)["facts"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            [
                "INFO 11-30 14:02:09 [gpu_worker.py:435] Memory profiling takes 21.74 seconds. Total non KV cache memory: "
                "16.76GiB; torch peak memory increase: 2.87GiB; non-torch forward increase memory: 0.25GiB; weights "
                "memory: 13.5GiB.",
                "INFO 11-30 14:02:09 [gpu_worker.py:436] Available KV cache memory: 58.47 GiB",
                "INFO 11-30 14:02:10 [kv_cache_utils.py:1] GPU KV cache size: 244,304 tokens, Maximum concurrency for "
                "8,192 tokens per request: 29.82x",
                "INFO 11-30 14:02:20 [gpu_model_runner.py:1] Graph capturing finished in 4 secs, took 1.27 GiB",
            ],
            {"activation_gib": 2.87, "overhead_gib": 0.25, "kv_gib": 58.47, "kv_tokens": 244_304, "concurrency": 29.82,
             "context": 8192, "graphs_gib": 1.27},
        ),
        (
            ["(Worker_TP1 pid=2) INFO 1-1 1:0:0 [w.py:1] Available KV cache memory: 37.28 GiB",
             "(Worker_TP0 pid=1) INFO 1-1 1:0:0 [w.py:1] Available KV cache memory: 37.90 GiB"],
            {"kv_gib": 37.28},
        ),
        (
            ["INFO 1-1 1:0:0 [worker.py:1] model weights take 14.99GiB; non_torch_memory takes 0.09GiB; PyTorch activation"
             " peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is 4.86GiB.",
             "INFO 1-1 1:0:0 [executor.py:1] # cuda blocks: 2,488, # CPU blocks: 2048"],
            {"weights_gib": 14.99, "overhead_gib": 0.09, "activation_gib": 1.26, "kv_gib": 4.86, "kv_blocks": 2488},
        ),
        (
            ["Actual usage is 14.25 GiB for weight, 2.25 GiB for peak activation, 0.25 GiB for non-torch memory, and 1.22"
             " GiB for CUDAGraph memory."],
            {"activation_gib": 2.25, "overhead_gib": 0.25},
        ),
        (
            ["[2025-06-24 08:54:20] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=60.1 GB, mem"
             " usage=14.98 GB.",
             "[2025-06-24 08:54:27] KV Cache is allocated. #tokens: 606832, K size: 32.41 GB, V size: 32.41 GB",
             "[2025-06-24 08:54:50] Capture cuda graph end. Time elapsed: 9.1 s. mem usage=0.55 GB. avail mem=8.1 GB."],
            {"weights_gib": 14.98, "kv_tokens": 606_832, "kv_gib": 64.82, "graphs_gib": 0.55},
        ),
        (
            ["load_tensors: offloaded 33/33 layers to GPU", "load_tensors:        CUDA0 model buffer size =  4156.00 MiB",
             "llama_context: n_ctx         = 8192",
             "llama_kv_cache: size = 1024.00 MiB (  8192 cells,  32 layers,  1/1 seqs), K (f16):  512.00 MiB",
             "llama_context:      CUDA0 compute buffer size =   560.00 MiB"],
            {"weights_gib": 4.0586, "kv_gib": 1.0, "activation_gib": 0.5469, "context": 8192},
        ),
        (["llama_context: KV self size  =  288.00 MiB, K (f16):  144.00 MiB"], {"kv_gib": 0.2812}),
        (
            ['time=2025-10-01T10:00:00Z level=INFO source=device.go:240 msg="model weights" device=CUDA0 size="5.1 GiB"',
             'time=2025-10-01T10:00:00Z level=INFO source=device.go:245 msg="model weights" device=CPU size="512.0 MiB"',
             'time=2025-10-01T10:00:00Z level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="512.0 MiB"'],
            {"weights_gib": 5.1, "kv_gib": 0.5},
        ),
    ],
    ids=["vllm", "vllm-two-gpus", "vllm-v0", "vllm-usage", "sglang", "llama.cpp", "llama.cpp-old", "ollama"],
)  # fmt: skip
def test_values_of_a_log(lines: list[str], found: dict[str, Any]) -> None:
    assert measured.measured(read(*lines)) == found


@pytest.mark.parametrize(
    ("before", "after", "residual"),
    [
        (LEFT, {"kv_gib": 10.4}, 0.4),
        ({**LEFT, "kv_gib": 10.4, "source": "kv.learned", "shift_gib": 0.4}, {"kv_gib": 10.4}, 0.4),  # of the plain one
        (LEFT, {}, None),
        ({}, {"kv_gib": 10.4}, None),
        ({**LEFT, "source": "kv.told"}, {"kv_gib": 10.4}, None),
        ({**LEFT, "pp": 2}, {"kv_gib": 10.4}, None),
        ({**LEFT, "dp": 2}, {"kv_gib": 10.4}, None),
        ({"start_s": 40.0}, {"kv_gib": 10.4}, None),
    ],
)
def test_what_is_left_to_learn(before: dict[str, Any], after: dict[str, Any], residual: float | None) -> None:
    assert measured.residual_gib(before, after) == residual


@pytest.mark.parametrize(
    ("options", "gpus", "parts"),
    [({}, 0, (1, 1, 1)), ({}, 2, (2, 1, 1)), ({"tensor_parallel_size": 1, "data_parallel_size": 2}, 2, (1, 1, 2)),
     ({"pipeline_parallel_size": 2}, 2, (1, 2, 1))],
)  # fmt: skip
def test_parts(options: dict[str, Any], gpus: int, parts: tuple[int, int, int]) -> None:
    assert asked_of(spec(**options)).parts(gpus) == parts


def test_a_correction_does_not_chase_itself() -> None:
    """Launch after launch of a host with 0.4 GiB more: corrected estimates must go on teaching the same."""
    learned: list[float] = []
    lesson: Lesson | None = None
    for _ in range(20):
        plan = estimate(facts(), Options(context=8192, utilisation=0.9), Gpu("L40S", total_gib=44.4), "0.19.0", lesson)
        plain = estimate(facts(), Options(context=8192, utilisation=0.9), Gpu("L40S", total_gib=44.4), "0.19.0")
        before = measured.foreseen(plan, spec(), ["NVIDIA L40S"], 41.26)
        logged = {"kv_gib": round((plain.ranks[0].kv.value or 0) + 0.4, 2)}
        learned.insert(0, measured.residual_gib(before, logged) or 0.0)
        lesson = measured.lessons((HERE, each) for each in learned).get(HERE)
    assert lesson is not None
    assert lesson.shift_gib == pytest.approx(0.4, abs=0.01)
    assert before["start_s"] == 41.3
    assert measured.error("kv_gib", before, logged) == pytest.approx(0, abs=0.001)


def test_kinds_are_kept_apart() -> None:
    other: Kind = (2, *HERE[1:])
    found = measured.lessons([(HERE, 0.5), (other, -0.5)] * 3 + [((1, "0.20.0", "NVIDIA L40S", 1), 0.1)])
    assert {kind: lesson.shift_gib for kind, lesson in found.items()} == {HERE: 0.5, other: -0.5}


def test_the_planner_asks_with_the_lesson_of_the_place() -> None:
    taught = {HERE: Lesson(0.5, 0.1, 12)}
    estimator = Estimator.of(facts().to_dict(), "generate", taught)
    assert estimator.lessons == taught
    gpu, options = Gpu("NVIDIA L40S", total_gib=44.4), Options(context=8192, utilisation=0.9)
    plain, corrected = (estimator.plan(options, gpu, "0.19.0", lesson) for lesson in (None, taught[HERE]))
    assert plain is not None
    assert corrected is not None
    assert corrected.ranks[0].kv.value == pytest.approx((plain.ranks[0].kv.value or 0) + 0.5)


@pytest.mark.parametrize(
    ("after", "error"),
    [
        ({"concurrency": 50.0, "context": 8192}, 0.2),
        ({"concurrency": 12.5, "context": 32_768}, None),
        ({"concurrency": 12.5, "max_model_len": 32_768}, None),
        ({"concurrency": 50.0}, 0.2),
        ({"context": 8192}, None),
        ({"concurrency": 0, "context": 8192}, None),
    ],
)
def test_requests_of_another_length_are_not_compared(after: dict[str, Any], error: float | None) -> None:
    found = measured.error("concurrency", {"concurrency": 60.0, "context": 8192}, after)
    assert found == (None if error is None else pytest.approx(error))
