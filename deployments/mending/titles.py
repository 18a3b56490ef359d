"""How a change is called and what it costs, as codes with parameters (words: deployments/codes_fixes.py). Pure."""

from __future__ import annotations

from typing import Any

from deployments.mending.fix import Effect

TOKENS_A_PAGE = 400  # some 300 English words
# Options with a title of their own: smaller or fewer, larger or more.
_DOWN_UP = {
    "max_model_len": ("fix.context_down", "fix.context_up"),
    "gpu_memory_utilization": ("fix.share_down", "fix.share_up"),
    "gpu_count": ("fix.gpus", "fix.gpus"),
    "max_num_seqs": ("fix.sequences", "fix.sequences_up"),
    "max_num_batched_tokens": ("fix.step_tokens", "fix.step_tokens"),
    "kv_cache_gib": ("fix.kv_gib", "fix.kv_gib"),
    "max_lora_rank": ("fix.lora_rank", "fix.lora_rank"),
    "dtype": ("fix.dtype", "fix.dtype"),
}
_OF_VALUE = {
    ("enforce_eager", "True"): "fix.eager",
    ("kv_cache_dtype", "fp8"): "fix.kv_fp8",
    ("kv_cache_dtype", "auto"): "fix.kv_auto",
}


def title_of(option: str, before: Any, to: Any, *, back: bool = False) -> tuple[str, dict[str, Any]]:
    """(code, params) of the title of a change of this option; without a value: of a value to be chosen."""
    params = {"name": option, "from": before, "to": to}
    if to is None:
        return "fix.open", params
    if back:
        return "fix.back", params
    if (option, str(to)) in _OF_VALUE:
        return _OF_VALUE[option, str(to)], params
    if option == "task":
        return f"fix.task_{to}", params
    if option == "gpu_count" and to == 1:
        return "fix.gpus_one", params
    if option == "gpu_memory_utilization":
        params |= {"percent": _percent(to), "percent_before": _percent(before)}
        if before is None:
            return "fix.share", params
    if option in _DOWN_UP:
        return _DOWN_UP[option][1 if _more(before, to) else 0], params
    return ("fix.set" if before is None else "fix.change"), params


def _percent(share: Any) -> str:
    try:
        return f"{round(float(share) * 100)}\u00a0%"
    except (TypeError, ValueError):
        return ""


def _more(before: Any, to: Any) -> bool:
    try:
        return float(to) > float(before)
    except (TypeError, ValueError):
        return False


def effects_of(option: str, cost: str, before: Any, to: Any) -> list[Effect]:
    """What it costs; and that answers stay as they are, where only how much or how fast changes."""
    found: list[Effect] = []
    if option == "max_model_len" and isinstance(to, int):
        code = "effect.context" if isinstance(before, int | float) else "effect.context_to"
        pages = max(1, round(to / TOKENS_A_PAGE))
        was = round(before / TOKENS_A_PAGE) if isinstance(before, int | float) else None
        if was is None or to < before:
            found.append(Effect(False, code, {"pages": pages, "was": was}))
    elif cost:
        found.append(Effect(False, f"cost.{cost}"))
    if option in ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "gpu_count",
                  "enforce_eager", "kv_cache_gib"):  # fmt: skip
        found.insert(0, Effect(True, "effect.exact"))
    return found
