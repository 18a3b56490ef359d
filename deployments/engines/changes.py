"""Flags that vLLM renamed or removed, and what becomes of them on a runtime whose parser no longer has them. Pure.

Only the runtime's own parser decides whether a flag exists; this table is asked when it does not. The newest release
that had a flag is given where it is known (from vLLM's sources and local runs), for the reader of the note.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deployments.diagnosis.slips import meant
from deployments.engines.base import Reason
from deployments.engines.options import Schema

Values = dict[str, Any]
ALIKE = 0.7  # how much of two names is the same, so that one may be asked about when the other is unknown


@dataclass(frozen=True)
class Change:
    """`how`: no_effect (left out, nothing is lost), refuse (its purpose has gone), or translate by `to`."""

    how: str
    last: str = ""
    to: Callable[[Any, Schema], Values] | None = None
    switch: bool = False


def _rename(name: str) -> Callable[[Any, Schema], Values]:
    return lambda value, _schema: {name: value}


def _inside(name: str, key: str) -> Callable[[Any, Schema], Values]:
    """The value becomes a key of a JSON option."""
    return lambda value, _schema: {name: {key: _parsed(value)}}


def _parsed(value: Any) -> Any:
    """JSON where the text is JSON, the text otherwise."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _log_requests(value: Any, schema: Schema) -> Values:
    return {"enable_log_requests": not value}


def _task(value: Any, schema: Schema) -> Values:
    runner = {"generate": "generate", "auto": "auto", "transcription": "generate", "draft": "draft"}
    convert = {"embed": "embed", "embedding": "embed", "classify": "classify", "score": "classify", "reward": "none"}
    return {"runner": runner.get(str(value), "pooling")} | (
        {"convert": convert[str(value)]} if str(value) in convert and schema.get("convert") else {}
    )


def _no_mm_cache(value: Any, _schema: Schema) -> Values:
    return {"mm_processor_cache_gb": 0} if value else {}


def _ray(value: Any, _schema: Schema) -> Values:
    return {"distributed_executor_backend": "ray"} if value else {}


CHANGES: dict[str, Change] = {
    "swap_space": Change("no_effect", "0.14.1"),
    "disable_log_requests": Change("translate", "0.14.1", _log_requests, switch=True),
    "device": Change("device"),
    "enable_reasoning": Change("no_effect", "0.9.2", switch=True),  # reasoning_parser alone does it
    "num_scheduler_steps": Change("no_effect", "0.9.2"),
    "multi_step_stream_outputs": Change("no_effect", "0.9.2"),
    "preemption_mode": Change("no_effect", "0.10.2"),
    "max_seq_len_to_capture": Change("no_effect", "0.10.2"),
    "use_v2_block_manager": Change("no_effect", switch=True),
    "num_lookahead_slots": Change("no_effect"),
    "scheduler_delay_factor": Change("no_effect"),
    "disable_async_output_proc": Change("no_effect", switch=True),
    "disable_frontend_multiprocessing": Change("no_effect", switch=True),
    "tokenizer_pool_size": Change("no_effect"),
    "tokenizer_pool_type": Change("no_effect"),
    "lora_extra_vocab_size": Change("no_effect"),
    "max_num_partial_prefills": Change("no_effect"),
    "max_long_partial_prefills": Change("no_effect"),
    "disable_mm_preprocessor_cache": Change("translate", to=_no_mm_cache, switch=True),
    "guided_decoding_backend": Change("translate", "0.11.2", _inside("structured_outputs_config", "backend")),
    "guided_decoding_disable_fallback": Change("no_effect", "0.11.2", switch=True),
    "override_pooler_config": Change("translate", to=_rename("pooler_config")),
    "cuda_graph_sizes": Change("translate", to=_rename("cudagraph_capture_sizes")),
    "task": Change("translate", to=_task),
    "rope_scaling": Change("translate", to=_inside("hf_overrides", "rope_scaling")),
    "rope_theta": Change("translate", to=_inside("hf_overrides", "rope_theta")),
    "speculative_model": Change("translate", "0.8.5", _inside("speculative_config", "model")),
    "num_speculative_tokens": Change("translate", "0.8.5", _inside("speculative_config", "num_speculative_tokens")),
    "worker_use_ray": Change("translate", to=_ray, switch=True),
    "gpu_memory": Change("translate", to=_rename("gpu_memory_utilization")),
    "kv_cache_memory": Change("translate", to=_rename("kv_cache_memory_bytes")),  # the engine's own advice misspells it
    "max_model_length": Change("translate", to=_rename("max_model_len")),
    "calculate_kv_scales": Change("refuse", switch=True),
    "enable_prompt_adapter": Change("refuse", switch=True),
    "qlora_adapter_name_or_path": Change("refuse"),
}


@dataclass(frozen=True)
class Changed:
    """What became of one gone flag: values to set instead, a note or a refusal."""

    values: Values
    note: Reason | None = None
    refusal: Reason | None = None


def apply(name: str, value: Any, schema: Schema, *, device: str, version: str) -> Changed:
    """What to do with an option that the runtime's parser does not have."""
    flag = "--" + name.replace("_", "-")
    change = CHANGES.get(name)
    facts = {"flag": flag, "version": version}
    if change is None:
        return Changed({}, refusal=Reason("flag.unknown", facts | similar(name, schema), name))
    facts |= {"last": change.last} if change.last else {}
    if change.how == "device":
        same = str(value).split(":")[0] in (device, "auto")
        if same:
            return Changed({}, note=Reason("flag.device_by_runtime", facts | {"value": str(value)}, name))
        refusal = Reason("flag.device_other", facts | {"value": str(value), "device": device}, name)
        return Changed({}, refusal=refusal)
    if change.how == "no_effect":
        return Changed({}, note=Reason("flag.removed_no_effect", facts, name))
    if change.how == "translate" and change.to is not None:
        values = change.to(value, schema)
        if all(schema.get(new) for new in values):
            shown = [schema.by_name[new].flag for new in values]
            return Changed(values, note=Reason("flag.translated", facts | {"to": shown}, name))
    return Changed({}, refusal=Reason("flag.removed", facts, name))


def similar(name: str, schema: Schema) -> dict[str, str]:
    """`near`: the flag that was surely meant; `maybe`: where none was, the one that looks most alike, to ask about."""
    names = [option.name for option in schema.options if not option.denied]
    sure = meant(name, names)
    alike = [] if sure else difflib.get_close_matches(name, names, 1, ALIKE)
    return {"near": schema.by_name[sure].flag if sure else "", "maybe": schema.by_name[alike[0]].flag if alike else ""}
