"""Failures that Berth may mend by itself, once, where someone switched that on: sure, and at no cost of quality. Pure.

A class is added here, and nowhere else; what a fix may change is bounded by OPTIONS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.mending.fix import Fix

CLASSES = frozenset(
    {
        "config.batched_lt_len",
        "config.batched_lt_seqs",
        "config.len_gt_derived",
        "dist.port",
        "http.port_in_use",
        "lora.rank",
        "lora.rank_invalid",
        "mem.cpu_kv_space",
        "mem.gpu_busy",
        "mem.kv_lt_len",
        "mem.kv_none",
        "mem.mamba_blocks",
        "mem.oom_graph",
        "mem.oom_sampler",
    }
)
OPTIONS = frozenset(
    {
        "gpu_memory_utilization",
        "kv_cache_gib",
        "max_lora_rank",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
    }
)
COSTLY = ("quality", "safety")


def is_due(
    diagnosis: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]], *, switched_on: bool, was_ready: bool
) -> bool:
    """Whether Berth should mend this failure. `earlier` is why each revision of the chain of attempts was made."""
    return (
        switched_on
        and not was_ready
        and diagnosis.get("class") in CLASSES
        and not diagnosis.get("fix_tried")
        and not any(why.get("by_itself") for why in earlier)
    )


def first_of(fixes: Iterable[Fix]) -> Fix | None:
    """The first of the offered fixes, if it is one that Berth may apply by itself: else a person has to choose."""
    first = next(iter(fixes), None)
    if first is None or first.cost in COSTLY:
        return None
    return first if first.kind == "again" or (first.kind == "patch" and first.option in OPTIONS) else None
