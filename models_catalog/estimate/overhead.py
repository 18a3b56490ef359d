"""Memory that PyTorch does not see: libraries' workspaces, NCCL, all-reduce buffers. GiB, measured.

`NON_TORCH` counts against the budget. `BEFORE_START` (the CUDA context, NCCL) is taken before vLLM looks at what is
free: it is not charged, but it must be there.
"""

from __future__ import annotations

from models_catalog.estimate.case import Case
from models_catalog.estimate.plan import Amount, Reason

CONTEXT_GIB = 0.5  # CUDA context on one GPU
CONTEXT_PARALLEL_GIB = (1.5, 2.05)  # with NCCL
PIPELINE_GIB = 0.07
FAMILY_GIB = {"granite": 0.46}  # two models measured; the others of 0.18 and later agree on 0.25
MANY_GPUS_GIB = 0.06  # more, from four GPUs on


def overhead(case: Case) -> Amount:
    """Per GPU, by version, parallelism and kind of GPU."""
    value, less, more, code = _measured(case)
    if case.traits.shared_memory:
        more = max(more, 4.6)  # the page cache of the machine is in this number
    return Amount.near(value, less, more, reason=Reason(code, {"gpu": case.gpu.name, "tp": case.options.tp}))


def _measured(case: Case) -> tuple[float, float, float, str]:
    """(GiB, at most so much less, at most so much more, reason)."""
    new, tp = case.version.minor >= 18, case.options.tp
    datacenter = case.traits.kind in ("datacenter", "unknown")
    if case.options.pp > 1 and tp == 1:
        return PIPELINE_GIB, 0.05, 0.1, "overhead.pipeline"
    if case.version.engine_v0:
        return 0.35, 0.25, 0.25, "overhead.single"
    if tp == 1:
        if not new:
            return (0.13, 0.06, 0.05, "overhead.single") if datacenter else (0.03, 0.01, 0.05, "overhead.single")
        if case.hybrid:
            return 0.56, 0.31, 0.1, "overhead.hybrid"
        if case.family in FAMILY_GIB:
            return FAMILY_GIB[case.family], 0.21, 0.05, "overhead.family"
        return 0.25, 0.02, 0.05, "overhead.single"
    more = MANY_GPUS_GIB if tp >= 4 else 0.0
    if not new:
        return (0.55, 0.44, 0.85, "overhead.parallel") if datacenter else (0.21, 0.1, 0.1, "overhead.parallel")
    if datacenter:
        return 2.07 + more, 1.5 if case.traits.kind == "unknown" else 0.05, 0.1, "overhead.parallel"
    if case.traits.kind == "consumer":
        return 0.74 + more, 0.3, 1.0, "overhead.parallel"
    return 1.7 + more, 1.0, 0.4, "overhead.parallel"


def before_start_gib(case: Case) -> tuple[float, float]:
    """(least, most) that is taken on each GPU before the engine counts."""
    return (CONTEXT_GIB, CONTEXT_GIB) if case.options.tp * case.options.pp == 1 else CONTEXT_PARALLEL_GIB
