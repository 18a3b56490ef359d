"""An engine's /metrics in one set of names. Pure: the Prometheus text in, the numbers of `wire_serving.Serving` out.

The names are those of vLLM 0.6 to 0.33, of SGLang and of llama.cpp; of one that was renamed both stand here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

MAX_TEXT = 4 << 20  # bytes of one answer
MAX_LINE = 4096  # characters; what is longer is none of ours, and would be read for minutes
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = Mapping[str, str]
Which = Callable[[Labels], str]  # the field that a line counts for; "" for none


def _finished(labels: Labels) -> str:
    return {"error": "failed", "abort": "aborted"}.get(labels.get("finished_reason", ""), "done")


def _answered(labels: Labels) -> str:
    """Answers to people alone: what asks for health or metrics is no traffic."""
    if not labels.get("handler", "").startswith("/v1/"):
        return ""
    return {"2": "http_ok", "4": "http_4xx", "5": "http_5xx"}.get(labels.get("status", "")[:1], "")


# metric → (field, how lines that differ in their labels go together). Several engines of one server (data parallel)
# and several requests add up; a share is as high as the highest.
TABLE: dict[str, tuple[str | Which, str]] = {
    # vLLM, docs.vllm.ai/en/stable/usage/metrics; swapped requests wait, and exist up to 0.8 only
    "vllm:num_requests_running": ("running", "sum"),
    "vllm:num_requests_waiting": ("waiting", "sum"),
    "vllm:num_requests_swapped": ("waiting", "sum"),
    "vllm:kv_cache_usage_perc": ("kv_usage", "max"),
    "vllm:gpu_cache_usage_perc": ("kv_usage", "max"),  # its name until 0.9
    "vllm:num_preemptions_total": ("preemptions", "sum"),
    "vllm:prompt_tokens_total": ("prompt_tokens", "sum"),
    "vllm:generation_tokens_total": ("generation_tokens", "sum"),
    "vllm:iteration_tokens_total_count": ("steps", "sum"),
    "vllm:request_success_total": (_finished, "sum"),
    "http_requests_total": (_answered, "sum"),
    # SGLang (--enable-metrics), docs.sglang.io/references/production_metrics
    "sglang:num_running_reqs": ("running", "sum"),
    "sglang:num_queue_reqs": ("waiting", "sum"),
    "sglang:token_usage": ("kv_usage", "max"),
    "sglang:num_retracted_requests_total": ("preemptions", "sum"),
    "sglang:num_retracted_reqs_total": ("preemptions", "sum"),
    "sglang:prompt_tokens_total": ("prompt_tokens", "sum"),
    "sglang:generation_tokens_total": ("generation_tokens", "sum"),
    "sglang:realtime_tokens_total": ("steps", "sum"),
    "sglang:num_requests_total": ("done", "sum"),
    "sglang:num_aborted_requests_total": ("aborted", "sum"),
    # llama.cpp (--metrics), tools/server/README.md; the share of its cache until 2025
    "llamacpp:requests_processing": ("running", "sum"),
    "llamacpp:requests_deferred": ("waiting", "sum"),
    "llamacpp:kv_cache_usage_ratio": ("kv_usage", "max"),
    "llamacpp:prompt_tokens_total": ("prompt_tokens", "sum"),
    "llamacpp:tokens_predicted_total": ("generation_tokens", "sum"),
    "llamacpp:n_decode_total": ("steps", "sum"),
}
_FIRST = tuple({name.partition(":")[0].partition("_")[0] for name in TABLE})


def normalised(text: str) -> dict[str, float]:
    """The numbers that are told, by the names of `Serving`; empty where the text holds none that is known."""
    found: dict[str, float] = {}
    for line in text[:MAX_TEXT].splitlines():
        if len(line) > MAX_LINE or not line.startswith(_FIRST):
            continue
        if not (match := _LINE.match(line)) or match[1] not in TABLE:
            continue
        which, how = TABLE[match[1]]
        labels = dict(_LABEL.findall(match[2] or ""))
        field = which if isinstance(which, str) else which(labels)
        value = _value(match[3])
        if not field or value is None or _repeats(labels):
            continue
        before = found.get(field, 0.0)
        found[field] = max(before, value) if how == "max" else before + value
    return found


def _value(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _repeats(labels: Labels) -> bool:
    """Whether a line repeats what another one says: each rank of SGLang tells the same, and each priority its part."""
    ranks = (labels.get(name, "0") for name in ("tp_rank", "pp_rank", "moe_ep_rank"))
    return any(rank != "0" for rank in ranks) or bool(labels.get("priority"))
