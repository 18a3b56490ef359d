"""The fake engine's /metrics: the text that vLLM 0.32 gives, with counts of its own that a file can steer.

The file (`metrics` in fake.json) is JSON, read at each look: {"waiting": 5, "kv": 0.97, "preemptions": 4, "off": true}.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

TEXT = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{name}"}} {running:.1f}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{name}"}} {waiting:.1f}
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{name}"}} {kv}
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0",model_name="{name}"}} {preemptions:.1f}
vllm:num_preemptions_created{{engine="0",model_name="{name}"}} 1.764e+09
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="{name}"}} {prompt_tokens:.1f}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="{name}"}} {generation_tokens:.1f}
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_sum{{engine="0",model_name="{name}"}} {generation_tokens:.1f}
vllm:iteration_tokens_total_count{{engine="0",model_name="{name}"}} {steps:.1f}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{name}"}} {done:.1f}
vllm:request_success_total{{engine="0",finished_reason="error",model_name="{name}"}} {failed:.1f}
# TYPE http_requests_total counter
http_requests_total{{handler="/v1/chat/completions",method="POST",status="2xx"}} {http_ok:.1f}
http_requests_total{{handler="/v1/chat/completions",method="POST",status="4xx"}} {http_4xx:.1f}
http_requests_total{{handler="/v1/chat/completions",method="POST",status="5xx"}} {http_5xx:.1f}
"""
COUNTS = ("running", "waiting", "kv", "preemptions", "prompt_tokens", "generation_tokens", "steps", "done", "failed",
          "http_ok", "http_4xx", "http_5xx")  # fmt: skip


class Metrics:
    """What one engine counted."""

    def __init__(self, name: str, file: str) -> None:
        self.name, self.file = name, file
        self.counts = dict.fromkeys(COUNTS, 0.0)
        self.lock = threading.Lock()

    def add(self, **by: float) -> None:
        with self.lock:
            for name, value in by.items():
                self.counts[name] += value

    def answered(self, path: str, status: int) -> None:
        """An answer below /v1 went out."""
        kinds = {2: "http_ok", 4: "http_4xx", 5: "http_5xx"}
        if path.startswith("/v1/") and status // 100 in kinds:
            self.add(**{kinds[status // 100]: 1})

    def steered(self) -> dict[str, Any]:
        try:
            return dict(json.loads(Path(self.file).read_text(encoding="utf-8"))) if self.file else {}
        except (OSError, ValueError):
            return {}  # not there yet, or being written

    def text(self) -> str | None:
        """The page; None where it was switched off."""
        steered = self.steered()
        with self.lock:
            return None if steered.get("off") else TEXT.format(**{**self.counts, **steered, "name": self.name})
