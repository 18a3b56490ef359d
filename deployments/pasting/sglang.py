"""The words of `python -m sglang.launch_server`, as far as they mean something to vLLM. Pure."""

from __future__ import annotations

from deployments.pasting import tables
from deployments.pasting.draft import Draft
from deployments.pasting.tables import LOST, LOST_SWITCH, MODEL, OWN, OWN_SWITCH, SECRET, Rule, call, same, switch


def _embedding(draft: Draft, _value: str) -> None:
    draft.task = "embed"
    draft.took("--is-embedding")


def _name(draft: Draft, value: str) -> None:
    draft.set_name([value] if value else [])


TABLE: dict[str, Rule] = {
    "--model-path": MODEL, "--model": MODEL,
    "--served-model-name": call(_name),
    "--is-embedding": call(_embedding, 0),
    "--tp": same("tensor_parallel_size"), "--tp-size": same("tensor_parallel_size"),
    "--tensor-parallel-size": same("tensor_parallel_size"),
    "--pp-size": same("pipeline_parallel_size"), "--pipeline-parallel-size": same("pipeline_parallel_size"),
    "--dp": same("data_parallel_size"), "--dp-size": same("data_parallel_size"),
    "--data-parallel-size": same("data_parallel_size"),
    "--context-length": same("max_model_len"), "--max-running-requests": same("max_num_seqs"),
    "--mem-fraction-static": same("gpu_memory_utilization"), "--dtype": same("dtype"),
    "--quantization": same("quantization"), "--kv-cache-dtype": same("kv_cache_dtype"),
    "--trust-remote-code": switch("trust_remote_code"), "--revision": same("revision"),
    "--tokenizer-path": same("tokenizer"), "--tokenizer-mode": same("tokenizer_mode"),
    "--chat-template": same("chat_template"), "--tool-call-parser": same("tool_call_parser"),
    "--reasoning-parser": same("reasoning_parser"), "--load-format": same("load_format"),
    "--random-seed": same("seed"), "--chunked-prefill-size": same("max_num_batched_tokens"),
    "--disable-radix-cache": switch("no_enable_prefix_caching"), "--disable-cuda-graph": switch("enforce_eager"),
    "--device": same("device"), "--enable-ep-moe": switch("enable_expert_parallel"),
    "--host": OWN, "--port": OWN, "--download-dir": OWN, "--base-gpu-id": LOST, "--api-key": SECRET,
    "--enable-metrics": OWN_SWITCH, "--show-time-cost": OWN_SWITCH, "--log-requests": OWN_SWITCH,
    "--log-level": OWN, "--log-level-http": OWN, "--nccl-port": OWN, "--watchdog-timeout": OWN,
    "--skip-server-warmup": OWN_SWITCH, "--enable-cache-report": LOST_SWITCH, "--enable-p2p-check": OWN_SWITCH,
    "--attention-backend": LOST, "--sampling-backend": LOST, "--schedule-policy": LOST,
    "--schedule-conservativeness": LOST, "--cuda-graph-max-bs": LOST, "--cuda-graph-bs": LOST,
    "--max-total-tokens": LOST, "--max-prefill-tokens": LOST, "--mm-attention-backend": LOST,
    "--enable-torch-compile": LOST_SWITCH, "--enable-mixed-chunk": LOST_SWITCH, "--enable-dp-attention": LOST_SWITCH,
    "--disable-overlap-schedule": LOST_SWITCH, "--enable-mla": LOST_SWITCH, "--enable-flashinfer": LOST_SWITCH,
    "--enable-multimodal": OWN_SWITCH, "--disable-custom-all-reduce": switch("disable_custom_all_reduce"),
    "--dist-init-addr": LOST, "--nnodes": LOST, "--node-rank": LOST, "--cpu-offload-gb": same("cpu_offload_gb"),
}  # fmt: skip


def read(draft: Draft) -> None:
    rest = tables.read(draft, draft.start.words, TABLE, engine="SGLang")
    if rest and not draft.model:  # sglang serve MODEL
        draft.set_model(rest[0])
