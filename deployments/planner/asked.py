"""What a spec asks of memory, and what the person needs: engine options and further flags read into one form. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from deployments.engines.base import EngineRefusal, version_key
from deployments.engines.options import normal_flag
from deployments.engines.tokens import expand
from deployments.spec import DeploymentSpec
from models_catalog.estimate import Options
from models_catalog.estimate.need import Wish

Priority = Literal["fit", "quality", "speed"]
USUAL_CONTEXT = 8192  # tokens of a conversation, where nobody says
AUTO_CONTEXT_SINCE = (0, 14)  # from then on the engine lowers the context to what fits, see engines/vllm.py
LORA_RANK = 16  # the engine's default
GIB = 2**30
# What may let the engine take a longer conversation than the model's files say, or have it read other files.
STRETCHES = ("hf_overrides", "rope_scaling", "rope_parameters", "hf_config_path", "config_format")
ALLOWS_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-q": "quantization",
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)(?:i?B)?")
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Need:
    """What a person wants of it. None: they did not say.

    `context` are tokens of one conversation, `people` conversations of that length at the same time. Priority: `fit`
    leaves others the most room, `quality` changes nothing of the model and takes the emptiest place, `speed` the
    fastest.
    """

    context: int | None = None
    people: int | None = None
    priority: Priority = "quality"


@dataclass(frozen=True)
class Asked:
    """A spec with a need, as the estimate reads it. Counts of GPUs are None where the spec leaves them open."""

    options: Options
    utilisation: float | None = None
    context: int | None = None  # the engine's own limit, as typed
    tp: int | None = None
    pp: int = 1
    dp: int = 1
    dtype: str = ""
    whole_experts: bool = False  # each expert lies on one GPU (enable-expert-parallel)
    stretches: bool = False  # something said may allow more than the model's own length
    no_window: bool = False  # a sliding window is not used, and ends the length
    need: Need = Need()

    def parts(self, gpus: int) -> tuple[int, int, int]:
        """(tensor, pipeline, data) as the command has them on so many GPUs: what is not said is tensor parallel."""
        if self.tp is not None or self.pp * self.dp > 1:
            return self.tp or 1, self.pp, self.dp
        return max(1, gpus), 1, 1

    def must(self, version: str, longest: int | None) -> int | None:
        """Tokens that one request must be able to have, or the engine does not start. None: it takes what fits."""
        if self.context is not None:
            return max(self.context, self.need.context or 0)
        if version and version_key(version)[:2] < AUTO_CONTEXT_SINCE:
            return max(longest or 0, self.need.context or 0) or None
        return self.need.context

    def goal(self, version: str, longest: int | None) -> int:
        """Tokens by which requests at once are counted."""
        return self.need.context or self.must(version, longest) or min(USUAL_CONTEXT, longest or USUAL_CONTEXT)

    def wish(self, version: str, longest: int | None) -> Wish:
        """The same as the estimate asks it; `longest` is the context that the model itself names."""
        return Wish(self.goal(version, longest), self.must(version, longest), self.need.people, self.options)


def asked_of(spec: DeploymentSpec, need: Need | None = None) -> Asked:
    """Values that make no sense are left out here: the adapter refuses them, with their names."""
    flags = flags_of(spec)
    share = flags.get("gpu_memory_utilization", flags.get("device_memory_utilization"))
    return Asked(
        options=_options(flags),
        utilisation=_share(share),
        context=_whole(flags.get("max_model_len")),
        tp=_count(flags.get("tensor_parallel_size")),
        pp=_count(flags.get("pipeline_parallel_size")) or 1,
        dp=_count(flags.get("data_parallel_size")) or 1,
        dtype=str(flags.get("dtype") or "").lower(),
        whole_experts=_on(flags.get("enable_expert_parallel")),
        stretches=any(flags.get(name) for name in STRETCHES) or _allows_longer(spec),
        no_window=_on(flags.get("disable_sliding_window")),
        need=need or Need(),
    )


def _allows_longer(spec: DeploymentSpec) -> bool:
    said = str(spec.env.get(ALLOWS_LONGER, "0")).strip().lower()
    return said not in ("", "0", "false") or ALLOWS_LONGER in spec.env_secrets


def flags_of(spec: DeploymentSpec) -> dict[str, Any]:
    """Options by name, whether they were typed as options or stand among the further flags."""
    found = dict(spec.options)
    try:
        words = expand(spec.extra_args)
    except EngineRefusal:
        return found  # the adapter says what is wrong with them
    for name, value in flags_among(words).items():
        found.setdefault(name, value)
    return found


def flags_among(words: Iterable[str]) -> dict[str, Any]:
    """The options of a command line by name; what takes no value is True. The first of several counts."""
    found: dict[str, Any] = {}
    for word, following in pairwise([*words, ""]):
        if not word.startswith("-"):
            continue
        head, has_value, value = word.partition("=")
        name = SHORT.get(head) or normal_flag(head).removeprefix("--").replace("-", "_")
        takes = following and not re.match(r"-\D", following)
        found.setdefault(name, value if has_value else following if takes else True)
    return found


def typed_among_flags(spec: DeploymentSpec, name: str) -> bool:
    """Whether the option stands among the further flags, where a change of `options` would contradict it."""
    return name not in spec.options and name in flags_of(spec)


def _options(flags: Mapping[str, Any]) -> Options:
    adapters = _on(flags.get("enable_lora"))
    draft = _json(flags.get("speculative_config"))
    kv_bytes = _whole(flags.get("kv_cache_memory_bytes"))
    float32 = str(flags.get("dtype") or "").lower() in ("float32", "float")
    return Options(
        sequences=_whole(flags.get("max_num_seqs")),
        batched_tokens=_whole(flags.get("max_num_batched_tokens")),
        kv_type=str(flags.get("kv_cache_dtype") or "auto"),
        scheme=str(flags.get("quantization") or ("fp32" if float32 else "")),
        eager=_on(flags.get("enforce_eager")),
        block_size=_whole(flags.get("block_size")),
        kv_gib=kv_bytes / GIB if kv_bytes else None,
        dcp=_count(flags.get("decode_context_parallel_size")) or 1,
        hybrid_cache=not _on(flags.get("disable_hybrid_kv_cache_manager")),
        text_only=_text_only(flags),
        loras=(_count(flags.get("max_loras")) or 1) if adapters else 0,
        lora_rank=(_whole(flags.get("max_lora_rank")) or LORA_RANK) if adapters else 0,
        draft_tokens=_whole(draft.get("num_speculative_tokens")) or 0,
        draft_full_layers=1 if "mtp" in str(draft.get("method")).lower() else 0,
    )


def _text_only(flags: Mapping[str, Any]) -> bool:
    limits = _json(flags.get("limit_mm_per_prompt"))
    return _on(flags.get("language_model_only")) or (bool(limits) and not any(limits.values()))


def _share(value: Any) -> float | None:
    """A number in (0, 1]; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number <= 1 else None


def _whole(value: Any) -> int | None:
    """A whole number above 0, also as people write it: "32k" is 32,000 and "32K" 32,768."""
    found = _NUMBER.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    if found is None:
        return None
    number = int(float(found[1]) * _TIMES[found[2]])
    return number if 0 < number < 2**62 else None


def _count(value: Any) -> int | None:
    number = _whole(value)
    return number if number is not None and number <= 64 else None


def _on(value: Any) -> bool:
    return value is True or str(value).lower() in ("true", "1")


def _json(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
