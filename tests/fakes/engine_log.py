"""What the fake engine prints: the lines of vLLM 0.32, phase by phase, from its logs on CPU and CUDA."""

from __future__ import annotations

import os
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Write = Callable[[], None]


class Log:
    """Writes as vLLM does: prefix of the process, level, time, place.

    With a folder for copies each word is also kept there, in a file named after the job, for tests that compare; and
    a file `hold-NAME` there, which names a phase, keeps the engine that serves NAME in that phase.
    """

    def __init__(self, copies: str = "", name: str = "") -> None:
        self._lock = threading.Lock()
        self._copy = Path(copies, os.environ.get("BERTH_JOB", "none")) if copies else None
        self._hold = Path(copies, f"hold-{name}") if copies else None

    def held(self, code: str) -> bool:
        """Whether somebody wants the engine to stay in this phase."""
        try:
            return self._hold is not None and self._hold.read_text(encoding="ascii") == code
        except OSError:
            return False

    def plain(self, text: str, end: str = "\n") -> None:
        with self._lock:  # or the lines of two threads could lie in another order in the copy
            sys.stdout.write(text + end)
            sys.stdout.flush()
            if self._copy is not None:
                with self._copy.open("ab") as file:
                    file.write((text + end).encode(sys.stdout.encoding or "utf-8"))

    def line(self, level: str, place: str, text: str, process: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        self.plain(f"({process} pid={os.getpid()}) {level} {stamp} [{place}] {text}")

    def info(self, place: str, text: str, process: str = "APIServer") -> None:
        self.line("INFO", place, text, process)

    def error(self, place: str, text: str, process: str = "APIServer") -> None:
        self.line("ERROR", place, text, process)

    def traceback(self, error: str, place: str, process: str) -> None:
        """An error block as the engine core writes it."""
        self.error(place, "EngineCore failed to start.", process)
        for text in (
            "Traceback (most recent call last):",
            '  File "/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 1104, in run_engine_core',
            "    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
            '  File "/venv/lib/python3.11/site-packages/vllm/v1/worker/gpu_model_runner.py", line 5012, in load_model',
            "    self.model = model_loader.load_model(vllm_config=self.vllm_config)",
            error,
        ):
            self.error(place, text, process)


def phases(log: Log, fake: Any, model: str, arguments: Namespace, device: str) -> Iterator[tuple[str, Write]]:
    """(phase code, writer of its lines) in order. The codes are those of the real engine's phases."""
    length = arguments.max_model_len or "2048"
    core, worker = "EngineCore", "Worker"

    def args() -> None:
        log.info("api_utils.py:347", f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {fake.version.split('+')[0]}")
        log.info("api_utils.py:347", f"  █▄█▀ █     █     █     █  model   {model}")
        given = {name: value for name, value in vars(arguments).items() if value is not None}
        log.info("api_utils.py:286", f"non-default args: {given}")

    def config() -> None:
        log.info("model.py:733", "Resolved architecture: LlamaForCausalLM")
        log.info("model.py:2152", f"Using max model len {length}")
        log.info(
            "core.py:133",
            f"Initializing a V1 LLM engine (v{fake.version.split('+')[0]}) with config: model='{model}'",
            core,
        )

    def dist() -> None:
        backend = "gloo" if device == "cpu" else "nccl"
        log.info("parallel_state.py:1906", f"world_size=1 rank=0 local_rank=0 backend={backend}", worker)
        log.info("parallel_state.py:2350", "rank 0 in world size 1 is assigned as DP rank 0, PP rank 0", worker)

    def attention() -> None:
        log.info("cuda.py:360", "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']", worker)

    def load() -> None:
        log.info("gpu_model_runner.py:4970", f"Starting to load model {model}...", worker)
        bar = "Loading safetensors checkpoint shards: {:3d}% Completed | {}/{} [00:00<00:00, 9.2it/s]"
        for done in range(fake.shards + 1):
            log.plain(bar.format(100 * done // max(1, fake.shards), done, fake.shards), end="\r")
        log.plain("")
        log.info("default_loader.py:501", "Loading weights took 0.01 seconds", worker)
        if device == "cuda":
            log.info("gpu_model_runner.py:5002", "Model loading took 0.26 GiB memory and 0.1 seconds", worker)

    def compiling() -> None:
        if device == "cpu":
            log.info("cpu_model_runner.py:87", "Warming up model for the compilation...", worker)
            log.info("cpu_model_runner.py:91", "Warming up done.", worker)
        else:
            log.info("backends.py:1180", "Dynamo bytecode transform time: 0.42 s", worker)
            log.info("monitor.py:46", "torch.compile took 1.31 s in total", worker)

    def kvcache() -> None:
        log.info("gpu_worker.py:501", "Available KV cache memory: 1.00 GiB", worker)
        size = "45,504 tokens, Maximum concurrency for 2,048 tokens per request: 22.22x"
        log.info("kv_cache_utils.py:2327", f"{'CPU' if device == 'cpu' else 'GPU'} KV cache size: {size}", core)

    def graph() -> None:
        bar = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): {:3d}%|███| {}/{} [00:00<00:00, 9.9it/s]"
        for done in range(fake.graphs + 1):
            log.plain(bar.format(100 * done // max(1, fake.graphs), done, fake.graphs), end="\r")
        log.plain("")
        log.info("gpu_model_runner.py:6301", "Graph capturing finished in 1 secs, took 0.06 GiB", worker)

    def http() -> None:
        log.info("core.py:402", "init engine (profile, create kv cache, warmup model) took 0.33 s", core)
        task = {"generate": "generate", "embed": "embed", "score": "score"}[fake.task]
        log.info("entry.py:136", f"Supported tasks: ['{task}']")
        log.info("entry.py:140", f"Starting vLLM server on http://{arguments.host}:{arguments.port}")
        log.info("launcher.py:186", "Available routes are:")

    order: list[tuple[str, Write]] = [("args", args), ("config", config), ("dist", dist)]
    if device == "cuda":
        order.append(("device", attention))
    order += [("load", load), ("compile", compiling), ("kvcache", kvcache)]
    if device == "cuda" and not arguments.enforce_eager:
        order.append(("graph", graph))
    yield from [*order, ("http", http)]
