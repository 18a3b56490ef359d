"""What a run is given of a machine: a share of each GPU, or a cache on the processor. Pure.

The planner asks with what is free now, the catalog with machines that nothing else uses; the rules are the same, and so
what the catalog says of an empty machine is what the planner would do with it. MiB are whole numbers of 2^20 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from models_catalog.estimate.need import ENOUGH, LEAST_SHARE, MOST_SHARE, USUAL_SHARE, Fit, Needs, Setting, Wish

# A card is never wholly free: the driver and a desktop hold some. Below this the live check does not complain.
GPU_SLACK_MIB = 64
# What CUDA and NCCL take on each GPU before the engine looks at what is free (overhead.py): of one GPU, and of several
# the least and the most that was measured.
CONTEXT_MIB, CONTEXT_MANY_MIB, CONTEXT_MANY_MOST_MIB = 512, 1536, 2100
MARGIN_MIB = 150  # left beside a share that Berth chose
DEFAULT_KV_GIB = 4
# What vLLM takes on a CPU beside weights and KV cache. Measured with vLLM 0.32.0 (CPU), SmolLM2-135M in bfloat16, KV
# space 1 GiB: 3019 MiB of PSS over its processes when ready, less 257 of weights and 1024 of KV = 1738. Rounded up,
# since a bigger model has bigger activations.
CPU_OVERHEAD_MIB = 2048


@dataclass(frozen=True)
class Given:
    """`share` is that of each GPU, on a CPU GiB of its cache; `need_mib` what is claimed of each, or of the machine."""

    share: float
    need_mib: int
    fit: Fit


# --- GPUs -------------------------------------------------------------------------------------------------------------


def claim_mib(total_mib: int, share: float) -> int:
    """What a run claims of one GPU, as vLLM counts it: ceil(total × share)."""
    return min(total_mib, math.ceil(total_mib * share))


def is_free_at_start(total_mib: int, used_mib: int, share: float, cards: int) -> bool:
    """Whether so much will be free when the engine looks, beside what `cards` GPUs take of each other before."""
    before = CONTEXT_MIB if cards == 1 else CONTEXT_MANY_MIB
    return total_mib - used_mib - before + GPU_SLACK_MIB >= claim_mib(total_mib, share)


def most_share(total_mib: int, room_mib: int, cards: int) -> float:
    """The largest share, in hundredths, that Berth chooses where so much is free; 0 when that is no room at all."""
    if not total_mib:
        return 0.0
    before = CONTEXT_MIB if cards == 1 else CONTEXT_MANY_MOST_MIB
    share = math.floor((room_mib - before - MARGIN_MIB) / total_mib * 100) / 100
    return min(MOST_SHARE, share) if share >= LEAST_SHARE else 0.0


def share_for(needs: Needs, wish: Wish, setting: Setting, *, roomy: bool, most: float) -> float | None:
    """The usual share where that is enough and free (`roomy`); else what the wish takes, and beside something else no
    more than there is (`most`). None: no share that is there holds it."""
    if roomy and needs.fit(wish, setting, USUAL_SHARE).level in ENOUGH:
        return USUAL_SHARE
    least = needs.least_share(wish, setting)
    return max(least, min(USUAL_SHARE, most)) if least is not None and least <= most else None


def on_gpus(needs: Needs, wish: Wish, setting: Setting, total_mib: int, cards: int) -> Given:
    """Of so many equal GPUs that nothing else uses."""
    usual = needs.fit(wish, setting, USUAL_SHARE)
    roomy, most = is_free_at_start(total_mib, 0, USUAL_SHARE, cards), most_share(total_mib, total_mib, cards)
    share = USUAL_SHARE if usual.level == "unknown" else share_for(needs, wish, setting, roomy=roomy, most=most)
    if share is not None:
        return Given(share, claim_mib(total_mib, share), needs.fit(wish, setting, share))
    if usual.level == "unlikely":
        return Given(USUAL_SHARE, claim_mib(total_mib, USUAL_SHARE), usual)
    fit = replace(needs.fit(wish, setting, MOST_SHARE), level="no")
    return Given(MOST_SHARE, claim_mib(total_mib, MOST_SHARE), fit)


# --- the processor ----------------------------------------------------------------------------------------------------


def cpu_need_mib(weight_bytes: int, kv_gib: int, fit: Fit | None = None) -> int:
    """Memory of a run on a CPU: weights, cache, and what the engine takes beside them; at least what `fit` says."""
    need = math.ceil(weight_bytes / 2**20) + kv_gib * 1024 + CPU_OVERHEAD_MIB
    if fit is None or fit.plan is None or fit.plan.need_gib is None:
        return need
    return max(need, math.ceil(fit.plan.need_gib * 1024))


def on_cpu(
    needs: Needs,
    wish: Wish,
    setting: Setting,
    weight_bytes: int,
    room_mib: int,
    *,
    kv_gib: int | None = None,
    smallest: bool = False,
) -> Given:
    """With `kv_gib` of cache where that is said; else the usual, a larger one where the wish takes it, a smaller one
    where the usual does not fit into the room, or where the `smallest` is wanted. Whether it fits there, the caller
    sees: by `need_mib`."""

    def given(size: int) -> Given:
        fit = needs.fit(wish, setting, size)
        return Given(size, cpu_need_mib(weight_bytes, size, fit), fit)

    found = given(kv_gib or DEFAULT_KV_GIB)
    if kv_gib is None and found.fit.level != "unknown":
        least = needs.least_kv_gib(wish, setting)
        if least is not None and (smallest or found.fit.level not in ENOUGH or found.need_mib > room_mib):
            return given(least)
    return found
