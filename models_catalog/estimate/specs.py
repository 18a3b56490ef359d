"""One question as a JSON object, a line of `manage.py estimate --batch` → the arguments of `estimate`.

What is absent, null or "" is the engine's default. Keys that are not named here are ignored, so that a caller may keep
notes of its own in a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.options import Options

WHOLE = {
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
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
YES, NO = frozenset({"1", "1.0", "true", "yes", "y", "on"}), frozenset({"0", "0.0", "false", "no", "n", "off"})
UNTOLD = frozenset({"", "none", "null", "nan", "n/a", "na", "-", "default"})  # words for "not said"
LONGEST = frozenset({"-1", "-1.0", "auto", "max"})  # max-model-len: the longest that fits
# As vLLM reads them: small letters are thousands, large ones 1,024s.
TIMES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
HUMAN = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)([kKmMgG]?)")
MOST = 1e12
ENGINE_NAMES = {
    "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp", "llama_cpp": "llama.cpp", "llama-server": "llama.cpp",
    "sgl": "sglang", "vllm-openai": "vllm",
}  # fmt: skip


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
    """Raises BadSpec for a value of the wrong kind or that no engine can mean."""
    found: dict[str, Any] = {}
    for names, read in ((WHOLE, _whole), (NUMBERS, _number), (TEXTS, _text), (SWITCHES, _switch)):
        for key, name in names.items():
            value = values.get(key)
            if not _untold(key, value):
                found[name] = read(key, value)
    if found.get("context", 1) == -1:  # max-model-len auto: the longest that fits
        del found["context"]
    if "engine" in found:
        engine = found["engine"].lower()
        found["engine"] = ENGINE_NAMES.get(engine, engine)
    name = _text("gpu", values.get("gpu") or "")
    on_cpu = name.lower() == "cpu" or _text("device", values.get("device") or "").lower() == "cpu"
    gpu = Gpu(name, _size("gpu_total_gib", values), _size("gpu_free_gib", values), cpu=on_cpu)
    try:
        options = Options(**found)
    except ValueError as exc:
        key = _key_of(str(exc).split()[0])
        raise BadSpec(key, values.get(key, "")) from exc
    return Spec(options, gpu, _version(values.get("engine_version")))


def _untold(key: str, value: object) -> bool:
    """Nothing, or one of the words for it; "none" is a packing, though."""
    if value is None:
        return True
    return isinstance(value, str) and (value.strip() == "" or (key != "quant" and value.strip().lower() in UNTOLD))


def _key_of(name: str) -> str:
    """The key of a batch that fills an option."""
    pairs = ((key, option) for names in (WHOLE, NUMBERS, TEXTS, SWITCHES) for key, option in names.items())
    return next((key for key, option in pairs if option == name), name)


def _version(value: object) -> str:
    """0.19 as a number means the version too."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return "" if value is None else _text("engine_version", value)


def _size(key: str, values: Mapping[str, Any]) -> float | None:
    """GiB that are there, where they are told; a total of nothing is no answer."""
    value = values.get(key)
    if _untold(key, value):
        return None
    size = _number(key, value)
    return None if size == 0 and key == "gpu_total_gib" else size


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadSpec(key, value)
    if isinstance(value, str):
        text = re.sub(r"(?<=[0-9])[,_](?=[0-9]{3})", "", value.strip())
        share = text.endswith("%")
        read = HUMAN.fullmatch(text.removesuffix("%").strip().removesuffix("GiB").strip())
        if read is None or (share and key not in NUMBERS):
            raise BadSpec(key, value)
        number = float(read[1]) * TIMES[read[2]] / (100 if share else 1)
    else:
        number = float(value)
    if not 0 <= number < MOST:
        raise BadSpec(key, value)
    return number


def _whole(key: str, value: object) -> int:
    if key == "max_model_len" and str(value).strip().lower() in LONGEST:
        return -1
    number = round(_number(key, value), 6)
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
