"""The vLLM adapter, for `vllm serve` of 0.6 and later. Pure.

Known of it: the model is the positional argument; a GGUF is the file, never the folder, and needs a plugin from 0.26,
which takes configuration and tokenizer from a folder (--hf-config-path, --tokenizer; seen with 0.32 and plugin 0.0.5);
the key goes by VLLM_API_KEY, since argv is public on the host; without VLLM_TARGET_DEVICE=cpu a CPU build may pick no
platform and load kernels that kill it with SIGILL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from deployments.engines import arguments, denied
from deployments.engines.base import (
    SHORT,
    EngineRefusal,
    Launch,
    LaunchContext,
    Reason,
    RuntimeFacts,
    Task,
    version_key,
)

QUESTION = "What is the capital of France?"
CPU_MAX_SEQS = 8  # answers on a CPU are slow; more at once only makes all of them late
GGUF_PLUGIN_SINCE = (0, 26)
# vLLM for CPU answers nonsense in bfloat16 on CPUs that have AMX; float16 and float32 are right. Measured with 0.32.0.
AMX_BFLOAT16_WRONG_SINCE = (0, 32)
NO_FLOAT16 = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})  # the engine itself refuses float16 for these


class VLLM:
    """See engines.base.Adapter."""

    name = "vllm"

    def runtime_reasons(self, runtime: RuntimeFacts, model_facts: Mapping[str, Any], device: str) -> list[Reason]:
        """Why this runtime cannot serve this model on this device (gpu or cpu)."""
        built_for = {"gpu": ("cuda", "rocm", ""), "cpu": ("cpu",)}[device]
        facts = {"version": runtime.version, "device": runtime.device}
        if runtime.device not in built_for:
            return [Reason(f"runtime.not_for_{device}", facts)]
        if model_facts.get("format") == "gguf" and version_key(runtime.version)[:2] >= GGUF_PLUGIN_SINCE:
            if runtime.device == "cpu":  # at best it starts, then dies at the first question: its kernels need CUDA
                return [Reason("gguf.no_cpu_kernels", facts)]
            if not any("gguf" in plugin.lower() for plugin in runtime.plugins):
                return [Reason("gguf.plugin_missing", facts)]
        return []

    def needs_sidecar(self, runtime: RuntimeFacts, model_facts: Mapping[str, Any]) -> bool:
        """A GGUF file that lies alone, for a vLLM that reads it through the plugin."""
        lone = model_facts.get("format") == "gguf" and not model_facts.get("config_beside")
        return lone and version_key(runtime.version)[:2] >= GGUF_PLUGIN_SINCE

    def launch(self, context: LaunchContext) -> Launch:
        """The command. Raises EngineRefusal with all reasons at once."""
        spec, runtime = context.spec, context.runtime
        on_gpu = bool(context.gpu_uuids)
        reasons = self.runtime_reasons(runtime, context.model_facts, "gpu" if on_gpu else "cpu")
        reasons += denied.check_env(spec.env) + denied.check_env_secrets(spec.env_secrets, spec.env)
        reasons += _model_reasons(context)
        schema = runtime.schema
        roots = (*context.roots, context.model_path)
        values = arguments.Values(schema, runtime.device, runtime.version, roots)
        if schema.options:
            arguments.from_spec(values, spec.options, spec.extra_args)
            _add_own(values, context, on_gpu=on_gpu)
        elif spec.options or spec.extra_args:
            reasons.append(Reason("runtime.no_schema", {"version": runtime.version}))
        reasons += values.reasons + _parallel_reasons(values, context)
        if reasons:
            raise EngineRefusal(reasons)
        own = values.argv() if schema.options else _without_schema(context, on_gpu=on_gpu)
        return Launch(
            argv=[*_head(context), *own],
            env=_env(context, on_gpu=on_gpu),
            secret_env=_secret_env(context),
            model_path=context.model_path,
            gpu_uuids=list(context.gpu_uuids),
            needs_avx2=not on_gpu and context.machine in ("x86_64", "AMD64"),
            allow_remote_code=context.allow_remote_code,
            notes=values.notes,
        )

    def probe_request(self, task: Task, served_name: str, *, chat: bool = True) -> tuple[str, dict[str, Any]]:
        """The question that proves readiness; with chat=False as a plain completion (see `wants_completion`)."""
        if task == "embed":
            return "/v1/embeddings", {"model": served_name, "input": QUESTION}
        if task == "score":
            body = {"model": served_name, "text_1": QUESTION, "text_2": "The capital of France is Paris."}
            return "/v1/score", body
        limits = {"max_tokens": 24, "temperature": 0}
        if chat:
            messages = [{"role": "user", "content": QUESTION}]
            return "/v1/chat/completions", {"model": served_name, "messages": messages, **limits}
        return "/v1/completions", {"model": served_name, "prompt": "The capital of France is", **limits}

    def wants_completion(self, task: Task, status: int, body: Any) -> bool:
        """Whether the refusal of a chat question means "this model has no chat template": then ask for a completion."""
        text = str(body).lower()
        told = "chat template" in text or "chat_template" in text
        return task == "generate" and (status == 404 or (status in (400, 422, 500) and told))

    def read_answer(self, task: Task, body: Any, most: int = SHORT) -> str | None:
        """The answer, at most `most` characters; None when the body holds no token, vector or score."""
        if not isinstance(body, Mapping):
            return None
        if task == "embed":
            return _read_vector(body)
        return _read_score(body) if task == "score" else _read_text(body, most)

    def was_cut(self, body: Any) -> bool:
        """Whether the text ended because it reached the number of tokens that was asked for."""
        first = _first_choice(body) if isinstance(body, Mapping) else None
        return first is not None and first.get("finish_reason") == "length"


# --- the command -----------------------------------------------------------------------------------------------------


def _head(context: LaunchContext) -> list[str]:
    """What every run has: the model first, loopback only, the port that the host picks, the name at the door."""
    return [
        context.runtime.executable,
        "serve",
        context.model_path,
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--served-model-name",
        context.served_name,
    ]


def _add_own(values: arguments.Values, context: LaunchContext, *, on_gpu: bool) -> None:
    """What Berth sets where the person did not; only flags that the parser has."""
    schema = values.schema
    own: dict[str, Any] = {}
    if context.asked_paths:
        own["disable_access_log_for_endpoints"] = ",".join(context.asked_paths)
    runner = values.set.get("runner", "auto")
    if runner not in ("auto", "generate" if context.spec.task == "generate" else "pooling"):
        values.reasons.append(Reason("task.other_runner", {"runner": runner, "task": context.spec.task}, "runner"))
    if context.spec.task != "generate":
        own |= {"runner": "pooling"} if schema.get("runner") else {"task": context.spec.task}
    if on_gpu:
        own["gpu_memory_utilization"] = math.floor(context.utilisation * 1000) / 1000
        if len(context.gpu_uuids) > 1 and not {"pipeline_parallel_size", "data_parallel_size"} & set(values.set):
            own["tensor_parallel_size"] = len(context.gpu_uuids)
    else:
        own["max_num_seqs"] = CPU_MAX_SEQS
        own |= _dtype_for_amx(context)
        if not {"compilation_config", "optimization_level"} & set(values.set) and not values.dotted:
            own["enforce_eager"] = True  # compiling takes half a minute and more on a CPU, and saves little
    length = schema.get("max_model_len")
    if length and length.allows_auto:
        own["max_model_len"] = "auto"  # the longest context that fits, up to the model's own
    if context.model_facts.get("format") == "gguf" and context.model_facts.get("config_beside"):
        own["tokenizer"] = context.model_path.rpartition("/")[0]
    elif context.sidecar:
        own |= {"tokenizer": context.sidecar, "hf_config_path": context.sidecar}
    if context.allow_remote_code:
        own["trust_remote_code"] = True
    for name, value in own.items():
        if name not in values.set and schema.get(name):
            values.set[name] = value
            values.notes += _chosen(name, value)


def _dtype_for_amx(context: LaunchContext) -> dict[str, Any]:
    """Another number format for a bfloat16 model where that would give wrong answers."""
    has_amx = any(flag.startswith("amx_") for flag in context.cpu_flags)
    wrong = version_key(context.runtime.version)[:2] >= AMX_BFLOAT16_WRONG_SINCE
    half = str(context.model_facts.get("dtype", "")).lower() in ("bfloat16", "bf16", "")
    if not (has_amx and wrong and half):
        return {}
    return {"dtype": "float32" if context.model_facts.get("model_type") in NO_FLOAT16 else "float16"}


def _chosen(name: str, value: Any) -> list[Reason]:
    """Notes about what was chosen for the person and changes how the deployment answers."""
    codes = {
        "max_num_seqs": "chosen.few_sequences",
        "max_model_len": "chosen.longest_context",
        "dtype": "chosen.dtype_for_amx",
        "enforce_eager": "chosen.no_compiling",
        "hf_config_path": "chosen.sidecar",
    }
    return [Reason(codes[name], {"value": value}, name)] if name in codes else []


def _without_schema(context: LaunchContext, *, on_gpu: bool) -> list[str]:
    """The few flags that every release has, for a runtime whose parser could not be read."""
    if not on_gpu:
        return ["--max-num-seqs", str(CPU_MAX_SEQS)]
    described = ["--tokenizer", context.sidecar, "--hf-config-path", context.sidecar] if context.sidecar else []
    words = [*described, "--gpu-memory-utilization", str(math.floor(context.utilisation * 1000) / 1000)]
    if len(context.gpu_uuids) > 1:
        words += ["--tensor-parallel-size", str(len(context.gpu_uuids))]
    return words


def _env(context: LaunchContext, *, on_gpu: bool) -> dict[str, str]:
    env = {
        **context.spec.env,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
    }
    if context.detail:
        env["VLLM_LOGGING_LEVEL"] = "DEBUG"
    if not on_gpu:
        env["VLLM_TARGET_DEVICE"] = "cpu"
        env["VLLM_CPU_KVCACHE_SPACE"] = str(context.kv_cache_gib)
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", context.cpu_threads)
    return env


def _secret_env(context: LaunchContext) -> dict[str, str]:
    named = {variable: context.secrets.get(variable, "") for variable in context.spec.env_secrets}
    return {**named, "VLLM_API_KEY": context.api_key}


# --- reasons ---------------------------------------------------------------------------------------------------------


def _model_reasons(context: LaunchContext) -> list[Reason]:
    reasons = []
    path, facts = context.model_path, context.model_facts
    if not path.startswith("/") or "\x00" in path or "{port}" in path:
        reasons.append(Reason("model.bad_path", {"path": path[:300]}))
    if facts.get("format") == "gguf" and not path.lower().endswith(".gguf"):
        reasons.append(Reason("gguf.not_a_file", {"path": path[:300]}))
    if facts.get("needs_remote_code") and not context.allow_remote_code:
        reasons.append(Reason("model.remote_code", {"files": list(facts.get("code_files") or [])[:5]}))
    return reasons


def _parallel_reasons(values: arguments.Values, context: LaunchContext) -> list[Reason]:
    """The parts that the model is cut into must match the GPUs, and its attention heads must divide by them."""
    given = [values.set.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline", "data")]
    if not all(isinstance(number, int) for number in given):
        return []  # refused already
    tensor, parts = given[0], given[0] * given[1] * given[2]
    gpus = len(context.gpu_uuids) or 1
    if values.schema.options and parts != gpus and not any(r.option.endswith("parallel_size") for r in values.reasons):
        params = {"parts": parts, "gpus": gpus}
        return [Reason("parallel.not_the_gpus", params, "tensor_parallel_size")]
    heads = context.model_facts.get("heads")
    if isinstance(heads, int) and tensor > 1 and heads % tensor:
        return [Reason("parallel.heads", {"heads": heads, "parts": tensor}, "tensor_parallel_size")]
    return []


# --- answers ---------------------------------------------------------------------------------------------------------


def _first_choice(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = body.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else None


def _read_text(body: Mapping[str, Any], most: int) -> str | None:
    first = _first_choice(body)
    if first is None:
        return None
    given = first.get("message")
    message: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    texts = [first.get("text"), *(message.get(key) for key in ("content", "reasoning", "reasoning_content"))]
    text = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    if text:
        return text.strip()[:most]
    usage = body.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else 0
    return "␣" if isinstance(tokens, int) and tokens > 0 else None  # tokens came, though none can be seen


def _numbers(value: Any) -> list[float]:
    """The finite numbers of a list; empty when it is not one or holds anything else."""
    if not isinstance(value, list) or not all(isinstance(n, int | float) and math.isfinite(n) for n in value):
        return []
    return [float(number) for number in value]


def _read_vector(body: Mapping[str, Any]) -> str | None:
    data = body.get("data")
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], Mapping) else {}
    vector = _numbers(first.get("embedding"))
    if not any(vector):
        return None
    shown = ", ".join(f"{number:.4f}" for number in vector[:3])
    return f"[{shown}, …] × {len(vector)}"


def _read_score(body: Mapping[str, Any]) -> str | None:
    rows = body.get("data") or body.get("results")
    first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], Mapping) else {}
    scores = _numbers([first.get("score", first.get("relevance_score"))])
    return f"{scores[0]:.4f}" if scores else None
