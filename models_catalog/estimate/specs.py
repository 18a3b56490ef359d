"""One question as a JSON object, a line of `manage.py estimate --batch` → the arguments of `estimate`.

What is absent, null or "" is the engine's default. Keys that are not named here are ignored, so that a caller may keep
notes of its own in a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.options import Options

WHOLE = {
    "tp": "tp",
    "pp": "pp",
    "dcp": "dcp",
    "max_model_len": "context",
    "max_num_seqs": "sequences",
    "max_num_batched_tokens": "batched_tokens",
    "block_size": "block_size",
    "max_loras": "loras",
    "max_lora_rank": "lora_rank",
    "num_speculative_tokens": "draft_tokens",
    "draft_full_layers": "draft_full_layers",
    "draft_sliding_layers": "draft_sliding_layers",
    "draft_window": "draft_window",
    "n_gpu_layers": "gpu_layers",
    "ubatch_size": "micro_batch",
    "parallel": "parallel",
}
NUMBERS = {"util": "utilisation", "kv_gib": "kv_gib", "mem_fraction_static": "static_share"}
TEXTS = {"engine": "engine", "kv_dtype": "kv_type", "kv_value_dtype": "kv_value_type", "quant": "scheme"}
SWITCHES = {
    "enforce_eager": "eager",
    "mamba_align": "state_checkpoints",
    "text_only": "text_only",
    "flash_attention": "flash_attention",
    "hybrid_cache": "hybrid_cache",
}
UNKNOWN_QUANT = frozenset({"?", "unknown"})
YES, NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


class BadSpec(ValueError):
    """A value that means nothing: its key, and the value as text."""

    def __init__(self, key: str, value: object) -> None:
        super().__init__(f"{key}: {value!r} is not usable")
        self.key, self.value = key, str(value)[:80]


@dataclass(frozen=True)
class Spec:
    options: Options
    gpu: Gpu
    engine_version: str


def read_spec(values: Mapping[str, Any]) -> Spec:
    """Raises BadSpec for a value of the wrong kind, ValueError for one that no engine can mean."""
    found: dict[str, Any] = {}
    for names, read in ((WHOLE, _whole), (NUMBERS, _number), (TEXTS, _text), (SWITCHES, _switch)):
        for key, name in names.items():
            value = values.get(key)
            if value is not None and value != "":
                found[name] = read(key, value)
    if found.get("context", 1) == -1:  # max-model-len auto: the longest that fits
        del found["context"]
    name = _text("gpu", values.get("gpu") or "")
    on_cpu = name.lower() == "cpu" or _text("device", values.get("device") or "") == "cpu"
    gpu = Gpu(name, _optional("gpu_total_gib", values), _optional("gpu_free_gib", values), cpu=on_cpu)
    return Spec(Options(**found), gpu, _text("engine_version", values.get("engine_version") or ""))


def _optional(key: str, values: Mapping[str, Any]) -> float | None:
    value = values.get(key)
    return None if value is None or value == "" else _number(key, value)


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadSpec(key, value)
    try:
        number = float(value)
    except ValueError as exc:
        raise BadSpec(key, value) from exc
    if not 0 <= number < 1e9:
        raise BadSpec(key, value)
    return number


def _whole(key: str, value: object) -> int:
    if key == "max_model_len" and str(value).lower() in ("-1", "auto"):
        return -1
    number = _number(key, value)
    if number != int(number):
        raise BadSpec(key, value)
    return int(number)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise BadSpec(key, value)
    return value.strip()


def _switch(key: str, value: object) -> bool:
    word = str(value).strip().lower()
    if word in YES or word in NO:
        return word in YES
    raise BadSpec(key, value)
