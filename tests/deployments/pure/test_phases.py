"""The phase parser on real logs, cut anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.diagnosis import lines, phases

LOGS = Path(__file__).parents[2] / "logs"
HEALTHY = LOGS / "vllm-0.32.0-cpu-stopped-by-term.log"


def parsed(log: bytes, size: int = 1000) -> phases.State:
    state: phases.State = {}
    for number, start in enumerate(range(0, len(log), size)):
        state = json.loads(json.dumps(phases.feed(log[start : start + size], state, 100.0 + number)))
    return state


def codes(state: phases.State) -> list[str]:
    return [phase["code"] for phase in phases.phases_of(state)]


def test_a_healthy_start_goes_through_its_phases() -> None:
    state = parsed(HEALTHY.read_bytes())
    assert codes(state) == ["start", "args", "config", "dist", "load", "compile", "kvcache", "http", "serving"]
    by_code = {phase["code"]: phase for phase in state["phases"]}
    assert (by_code["load"]["done"], by_code["load"]["total"]) == (1, 1)
    assert by_code["config"]["clock"] == "11-30 18:16:17"
    assert by_code["load"]["end"] == by_code["compile"]["start"]
    assert by_code["serving"]["end"] is None


def test_facts_seen_on_the_way() -> None:
    assert parsed(HEALTHY.read_bytes())["facts"] == {
        "version": "0.32.0",
        "architecture": "LlamaForCausalLM",
        "max_model_len": 512,
        "checkpoint_gib": 0.0,
        "load_s": 0.01,
        "kv_gib": 1.0,
        "kv_tokens": 2_097_152,
        "concurrency": 4096.0,
        "context": 512,
        "engine_s": 33.85,
        "notices": [{"code": "cpu_slow", "line": 31, "values": {}}],
    }


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=40))
def test_the_cuts_do_not_matter(sizes: list[int]) -> None:
    log = HEALTHY.read_bytes()
    state: phases.State = {}
    position = 0
    for size in [*sizes, len(log)]:
        state = phases.feed(log[position : position + size], state, 1.0)
        position += size
    assert codes(state) == codes(parsed(log, len(log)))
    assert state["facts"] == parsed(log, len(log))["facts"]


def test_the_given_state_is_not_changed() -> None:
    first = phases.feed(b"INFO 01-01 10:00:00 [x.py:1] vLLM API server version 0.9.2\n", {}, 1.0)
    kept = json.dumps(first)
    phases.feed(HEALTHY.read_bytes(), first, 2.0)
    assert json.dumps(first) == kept


def test_a_bar_that_ends_in_a_carriage_return_shows_at_once() -> None:
    bar = b"Loading safetensors checkpoint shards:  %d%% Completed | %d/16 [00:12<00:27]\r"
    state = phases.feed(bar % (31, 5), {}, 1.0)
    assert (state["phases"][-1]["code"], state["phases"][-1]["done"]) == ("load", 5)
    state = phases.feed(bar % (62, 10), state, 2.0)
    assert (state["phases"][-1]["done"], state["phases"][-1]["total"]) == (10, 16)


def test_two_ways_of_capturing_graphs_count_on() -> None:
    text = (
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|██| 35/35 [00:01<00:00]\n"
        "Capturing CUDA graphs (decode, FULL):  57%|██ | 20/35 [00:11<00:08, 1.82it/s]\n"
    )
    phase = phases.feed(text.encode(), {}, 1.0)["phases"][-1]
    assert (phase["code"], phase["done"], phase["total"]) == ("graph", 55, 70)


def test_a_new_start_in_the_same_log_begins_anew() -> None:
    once = HEALTHY.read_bytes()
    again = phases.feed(once[:2000], parsed(once), 500.0)
    assert codes(again) == ["start", "args", "config"][: len(codes(again))]
    assert again["phases"][0]["start"] == 500.0


def test_bytes_that_no_database_can_hold() -> None:
    state = phases.feed(b"\xff\xfe\x00\x1b[1m vLLM API server version 0.9.2\x00\n\x00half", {}, 1.0)
    assert "\\u0000" not in json.dumps(state)
    assert codes(state) == ["start", "args"]


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    state = phases.feed(b"x" * 300_000, {}, 1.0)
    assert len(state["partial"]) <= 64 << 10


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("INFO 02-04 10:00:00 __init__.py:190] Automatically detected platform cuda.", "import"),
        ("INFO 02-04 10:00:00 api_server.py:840] vLLM API server version 0.7.2", "args"),
        (
            "INFO 02-04 10:00:00 llm_engine.py:234] Initializing a V0 LLM engine (v0.7.2) with config: model='x'",
            "config",
        ),
        ("INFO 02-04 10:00:00 cuda.py:230] Using Flash Attention backend.", "device"),
        ("INFO 02-04 10:00:00 model_runner.py:1110] Starting to load model x...", "load"),
        ("INFO 02-04 10:00:00 model_runner.py:1115] Loading model weights took 14.9888 GB", "load"),
        ("INFO 02-04 10:00:00 worker.py:267] Memory profiling takes 5.20 seconds", "profile"),
        ("INFO 02-04 10:00:00 executor_base.py:110] # cuda blocks: 1952, # CPU blocks: 2048", "kvcache"),
        ("INFO 02-04 10:00:00 model_runner.py:1434] Capturing cudagraphs for decoding.", "graph"),
        ("INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)", "serving"),
        (
            "(Worker_TP0 pid=9) INFO 04-22 15:14:03 [v1/x.py:1] Model loading took 27.67 GiB memory and 23.7 seconds",
            "load",
        ),
        (
            "(EngineCore_DP0 pid=1) INFO 09-30 18:37:01 [gpu_worker.py:298] Available KV cache memory: 8.99 GiB",
            "kvcache",
        ),
        ("84487e05a96e:213:213 [1] NCCL INFO NCCL version 2.26.2+cuda12.2", ""),
    ],
)
def test_lines_of_all_generations(text: str, code: str) -> None:
    state = phases.feed(text.encode() + b"\n", {}, 1.0)
    assert phases.current(state) == (code or "start")


@pytest.mark.parametrize(
    ("raw", "text", "process"),
    [
        (
            "\x1b[1;36m(EngineCore_DP0 pid=7)\x1b[0;0m INFO 10-31 16:32:23 [core.py:77] hello",
            "hello",
            "EngineCore_DP0 pid=7",
        ),
        ("[1;36m(APIServer pid=30)[0;0m INFO 10-31 16:32:15 [model.py:547] hello", "hello", "APIServer pid=30"),
        ("(RayWorkerWrapper pid=5, ip=10.0.0.2) hello", "hello", "RayWorkerWrapper pid=5, ip=10.0.0.2"),
        (
            "(VllmWorker rank=1 pid=213) ERROR 07-09 00:57:28 [multiproc_executor.py:487] hello",
            "hello",
            "VllmWorker rank=1 pid=213",
        ),
        ("vllm-1  | INFO 04-22 15:13:39 [config/model.py:549] hello", "hello", ""),
        ("2026-01-02T03:04:05.678Z (Worker pid=4) hello", "hello", "Worker pid=4"),
        ("[rank0]: hello", "hello", "rank0"),
        ("> hello", "hello", ""),
        ("  (not a prefix) hello", "  (not a prefix) hello", ""),
    ],
)
def test_prefixes_are_taken_off(raw: str, text: str, process: str) -> None:
    line = lines.clean(raw)
    assert (line.text, line.process) == (text, process)


@pytest.mark.parametrize(
    "line",
    [
        "Model loading took 1.2.3 GiB",
        "Loading weights took ... seconds",
        f"Model loading took {'9' * 400} GiB",
        "Maximum concurrency for 1 tokens per request: ..x",
        "GPU KV cache size: , tokens",
        f"Using max model len {'9' * 3000}",
        f"Loading safetensors checkpoint shards: 1%| {'9' * 900}/{'9' * 900} [",
    ],
)
def test_numbers_that_are_none_stop_nothing(line: str) -> None:
    """A model's code prints what it likes; what comes of it must be storable JSON (no Infinity) and small numbers."""
    state = parsed(f"{line}\nINFO:     Application startup complete.\n".encode())
    json.dumps(state, allow_nan=False)
    assert codes(state)[-1] == "serving"
    assert state["facts"] == {}
    assert all(not phase["total"] for phase in state["phases"])


def step(state: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(found.code, found.state) for found in phases.step_states(state)]


def test_eight_steps() -> None:
    found = phases.phases_of(parsed(HEALTHY.read_bytes()))
    assert step(found) == [
        ("placed", "yes"), ("process", "yes"), ("config", "yes"), ("weights", "yes"), ("memory", "yes"),
        ("graphs", "skip"), ("server", "now"), ("answered", "todo"),
    ]  # fmt: skip
    asked = [*found, {"code": "answered", "start": 200.0, "end": None}]
    assert step(asked)[-2:] == [("server", "yes"), ("answered", "now")]
    done = [*found, {"code": "answered", "start": 200.0, "end": 201.5}]
    assert step(done)[-1] == ("answered", "yes")
    assert phases.step_states(done)[-1].seconds == 1.5
    assert step([])[:3] == [("placed", "yes"), ("process", "now"), ("config", "todo")]


def test_every_phase_belongs_to_a_step() -> None:
    assert sorted(phase for _step, members in phases.STEPS for phase in members) == sorted(phases.ORDER)
    assert len(phases.STEPS) == 8


def test_a_clock_that_is_put_back_in_the_middle_of_a_start_keeps_their_order() -> None:
    log = HEALTHY.read_bytes()
    state = phases.feed(log[: len(log) // 3], {}, 7200.0)
    state = phases.feed(log[len(log) // 3 :], state, 3600.0)
    found = phases.phases_of(state)
    assert [phase["code"] for phase in found] == codes(parsed(log))
    starts = [phase["start"] for phase in found]
    assert starts == sorted(starts)
    assert all(phase["end"] is None or phase["end"] >= phase["start"] for phase in found)
