"""Everyday failures on a GPU host and on a CPU host: which kinds of fixes each has, and which of them carry a number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Evidence
from deployments.diagnosis.rules import BY_CODE
from deployments.fix_words import title
from deployments.mending import refusals, turn
from deployments.mending.around import Around, Engine, Form, Holder
from deployments.mending.fix import Fix
from deployments.serving import fixes as serving
from deployments.spec import DeploymentSpec

PARSERS = {"tool_call_parser": ("hermes", "mistral")}
GPU = Around(
    host=4, host_name="quay", runtime=Engine(1, "0.10.2", "cuda"), python="/opt/a/bin/python", plugin="click", copy=7,
    copy_path="/models/it", repairable=True, model=3, dtype="bfloat16", kinds=("qwen3",), parsers=PARSERS,
    engines=(Engine(2, "0.32.0", "cuda", True),), own_code=True, ggufs=(Form(9, "it-Q4_K_M.gguf"),),
    twins=(Form(8, "It-AWQ", "awq"),), port_holder="nginx (process 812)",
    holders=(Holder("team-chat", 40_960, 0, 12), Holder("python3", 9_735, 0, None, 4711, "ada")),
)  # fmt: skip
CPU = replace(GPU, on_gpu=False, kv_cache_gib=8, runtime=Engine(1, "0.10.2", "cpu"), holders=(Holder("team-chat", 8192, None, 12),),
              engines=(Engine(2, "0.32.0", "cpu", True),))  # fmt: skip
SAID = {"max_model_len": 32_768, "tensor_parallel_size": 8, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
ON_GPU = Evidence(options={**SAID, "gpu_memory_utilization": 0.9}, gpus=8, gpu_total_gib=80, gpu_free_gib=60,
                  weights_gib=20, heads=32, kv_heads=4)  # fmt: skip
ON_CPU = Evidence(options={**SAID, "VLLM_CPU_KVCACHE_SPACE": "8"}, gpus=0, numa_nodes=1, host_free_gib=64, weights_gib=20,
                  heads=32)  # fmt: skip
HEAD = "INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.32.0\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 79.19 GiB"
LOADED = "INFO 01-01 10:00:00 [x.py:1] Model loading took 14.99 GiB memory and 12.8 seconds\n"
GRAPHS = (
    f"{LOADED}INFO 01-01 10:00:00 [x.py:1] Available KV cache memory: 3.2 GiB\n"
    "Capturing CUDA graphs (decode, FULL):   0%|  | 0/67 [00:00<?, ?it/s]\n"
)
UP = "INFO:     Application startup complete.\n"


@dataclass(frozen=True)
class Row:
    """`gpu`, `cpu`: kinds of fixes that must be among those offered, None where it does not happen there. A kind with
    "#" carries a number. `log` is the class's first example, unless it says otherwise.
    """

    code: str
    gpu: str | None
    cpu: str | None
    log: str = ""
    options: tuple[tuple[str, Any], ...] = ()


# In the order of everyday life: files, the model's kind, numbers, memory, splits, engine, network, settings, host.
ROWS: dict[str, Row] = {
    "a folder of GGUF files": Row("gguf.dir", "patch", "patch"),
    "no model named": Row("args.missing_model", "patch", "patch"),
    "config.json missing": Row("config.json_missing", "repair", "repair"),
    "wrong folder": Row("hub.repo_id_invalid", "repair", "repair"),
    "unfinished download": Row("load.missing_shard", "repair", "repair"),
    "tokenizer missing": Row("tok.missing_files", "repair", "repair"),
    "chat template missing": Row("tok.chat_template_runtime", "model patch settings", "model patch settings"),
    "architecture not in this version": Row("arch.unsupported", "patch runtime permission model", "patch runtime permission model"),
    "transformers too old": Row("arch.transformers_old", "patch runtime permission package", "patch runtime permission package"),
    "no architecture named": Row("arch.none", "repair permission", "repair permission"),
    "code of its own": Row("arch.remote_code", "permission patch runtime", "permission patch runtime"),
    "number formats that do not match": Row("dtype.mismatch", "patch", "patch"),
    "bfloat16 on an old GPU": Row("dtype.bf16_cc", "patch", None),
    "cache smaller than one request": Row("mem.kv_lt_len", "patch#", "patch#"),
    "cache smaller than one request, old words": Row(
        "mem.kv_lt_len", "patch#", "patch#",
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV "
        "cache (23968).",
    ),
    "no room for conversations": Row("mem.kv_none", "patch#", "patch#"),
    "free memory below the share": Row(
        "mem.gpu_busy", "patch# stop# host#", "patch# stop#",
        "ValueError: Free memory on device cuda:0 (59.0/79.19 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    "memory while weights load": Row("mem.oom_load", "patch model", None, OOM),
    "memory while it is measured": Row("mem.oom_profile", "patch#", None, f"{LOADED}{OOM}"),
    "memory while the sampler warms up": Row("mem.oom_sampler", "patch#", None),
    "memory while graphs are recorded": Row("mem.oom_graph", "patch#", None, f"{GRAPHS}{OOM}"),
    "memory under load": Row("mem.oom_runtime", "patch# again", None, f"{UP}{OOM}"),
    "heads": Row("tp.heads", "patch#", "patch"),
    "vocabulary": Row("tp.vocab", "patch#", "patch", "AssertionError: 151936 is not divisible by 8"),
    "blocks of a quantisation": Row("tp.quant_shard", "patch# patch", "patch# patch"),
    "another quantisation": Row("quant.mismatch", "patch", "patch", options=(("quantization", "gptq"),)),
    "a quantisation that this version lacks": Row("quant.unknown", "patch model runtime", "patch model runtime"),
    "no program for the quantisation": Row("quant.no_kernel", "patch# patch model", "patch# patch model"),
    "no program for the GPU": Row("gpu.no_kernel_image", "patch runtime host", None),
    "driver too old": Row("env.driver_old", "patch host runtime", None),
    "built for another PyTorch": Row("env.abi_mismatch", "patch runtime package", "patch runtime package"),
    "NumPy 2": Row("env.numpy2", "package", "package"),
    "port in use": Row("http.port_in_use", "again host", "again host"),
    "NCCL waits": Row("nccl.timeout", "again host", None),
    "NCCL cannot connect": Row("nccl.system_error", "host settings", None),
    "NCCL fails": Row("nccl.cuda_error", "patch host", None),
    "Ray not there": Row("ray.missing", "patch package", "patch package"),
    "Ray has too few GPUs": Row("ray.not_enough_gpus", "host", None),
    "adapters are not taken": Row("lora.unsupported", "patch model", "patch model", options=(("enable_lora", True),)),
    "adapter too large": Row("lora.rank", "patch#", "patch#"),
    "tool parser unknown": Row("args.tool_parser_unknown", "patch settings", "patch settings",
                               options=(("tool_call_parser", "qwen99"),)),
    "gated": Row("hub.gated", "repair host settings", "repair host settings"),
    "no such repository": Row("hub.not_found", "repair settings", "repair settings"),
    "no network": Row("hub.unreachable", "repair again", "repair again"),
    "offline": Row("hub.offline", "repair", "repair"),
    "a mirror with another certificate": Row("hub.tls", "repair", "repair"),
    "disk full": Row("env.disk_full", "host again", "host again"),
    "shared memory": Row("env.shm", "host#", "host#"),
    "open files": Row("env.ulimit", "host#", "host#"),
    "killed for memory": Row(
        "mem.host_oom_killed", "host", "patch# stop# host",
        "WARNING 01-01 10:00:00 [core_client.py:1] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
    ),
    "no AVX": Row("env.sigill", "patch runtime host", "patch runtime host"),
    "the CPU's cache too large": Row("mem.cpu_kv_space", None, "patch#"),
    "a removed flag": Row("args.unrecognized", "patch runtime", "patch runtime", options=(("swap_space", 8), ("disable_log_requests", True))),
    "died after it was ready": Row("run.worker_died", "again host", "again host"),
    "a request too long": Row("run.ctx_too_long", "patch#", "patch#",
                              "ValueError: This model's maximum context length is 32768 tokens. However, you requested "
                              "40000 tokens"),
}  # fmt: skip


def offered(row: Row, around: Around, evidence: Evidence) -> list[Fix]:
    rule = BY_CODE[row.code]
    reader = Reader()
    reader.feed(f"{HEAD}{row.log or rule.examples[0]}\n".encode())
    found = diagnose(reader, exit_code=1, evidence=evidence)
    assert found.code == row.code
    options = {"max_model_len": 32_768, "tensor_parallel_size": 8, **dict(row.options)}
    spec = DeploymentSpec(artifact_id=1, gpu_count=8, options=options, kv_cache_gib=None if around.on_gpu else 8)
    return turn.fixes_of(row.code, found.fixes, spec, around)


def kinds(fixes: Iterable[Fix]) -> set[str]:
    """Kinds, with "#" for those that say a number: a value to set, memory that somebody holds, a size in a command."""
    found = set()
    for fix in fixes:
        number = isinstance(fix.params.get("to"), int | float) and not isinstance(fix.params.get("to"), bool)
        number |= bool(fix.params.get("mib")) or any(word.rstrip("gM").isdecimal() for word in fix.command.split())
        found.add(fix.kind + ("#" if number else ""))
        found.add(fix.kind)
    return found


HAPPENS = [(name, place) for name, row in ROWS.items() for place in ("gpu", "cpu") if getattr(row, place) is not None]


@pytest.mark.parametrize(("name", "place"), HAPPENS)
def test_the_kinds_of_fixes_and_their_numbers(name: str, place: str) -> None:
    row = ROWS[name]
    wanted = getattr(row, place)
    found = offered(row, GPU if place == "gpu" else CPU, ON_GPU if place == "gpu" else ON_CPU)
    told = [(fix.kind, title(fix)[0]) for fix in found]
    assert set(wanted.split()) <= kinds(found), told
    assert all(words.strip() and "%(" not in words for _kind, words in told), told
    if place == "cpu":  # nothing is said of a GPU where none is used
        assert not [fix for fix in found if fix.option in ("gpu_memory_utilization", "gpu_count")], told
        assert not [fix for fix in found if "nvidia" in fix.command and fix.kind != "runtime"], told


# --- what has no log of its own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deadline_s", "wanted"), [(600.0, {"again", "patch"}), (86_400.0, {"again"})])
def test_a_start_that_hangs(deadline_s: float, wanted: set[str]) -> None:
    reason = {"code": "start.hung", "params": {"phase": "load", "minutes": 9}}
    found = refusals.fixes_of(reason, DeploymentSpec(artifact_id=1, start_deadline_s=deadline_s), GPU)
    assert {fix.kind for fix in found} == wanted
    assert all(fix.patch == {"start_deadline_s": 1200.0} for fix in found if fix.kind == "patch")


# what is found while it serves → the first change on a GPU and on a CPU
SERVING: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "serve.preempting": ({"most": 40}, {"gpu_memory_utilization": 0.9}, {"kv_cache_gib": 6}),
    "serve.kv_full": ({}, {"gpu_memory_utilization": 0.9}, {"kv_cache_gib": 6}),
    "serve.waiting_memory": ({}, {"gpu_memory_utilization": 0.9}, {"kv_cache_gib": 6}),
    "serve.waiting_limit": ({}, {"max_num_seqs": 64}, {"max_num_seqs": 64}),
    "serve.memory_short": ({"most": 40}, {"gpu_memory_utilization": 0.8}, {"kv_cache_gib": 3}),
    "serve.long": ({"asked": 9000}, {"max_model_len": 9216}, {"max_model_len": 9216}),
    "serve.slow": ({}, {"enforce_eager": None}, {"enforce_eager": None}),
    "serve.role_markers": ({}, {"chat_template": None}, {"chat_template": None}),
}  # fmt: skip


@pytest.mark.parametrize("code", SERVING)
def test_what_is_found_while_it_serves(code: str) -> None:
    params, *wanted = SERVING[code]
    assert set(SERVING) == set(serving.HELPS)
    for device, change in zip(("gpu", "cpu"), wanted, strict=True):
        options = {"max_num_seqs": 32, "max_model_len": 8192, "enforce_eager": True, "chat_template": "x"}
        placement = {"device": device, "utilisation": 0.85, "kv_cache_gib": 4}
        now = serving.Now(DeploymentSpec(artifact_id=1, options=options), placement)
        first = next(iter(serving.HELPS[code](now, params)))
        got = {**first.patch.get("options", {}), **first.patch}
        assert all(got.get(name) == value for name, value in change.items()), first
        assert title(first)[0].strip() and "%(" not in title(first)[0]
