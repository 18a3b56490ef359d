"""Memory that PyTorch does not see: libraries' workspaces, NCCL, all-reduce buffers. GiB, measured.

`NON_TORCH` counts against the budget. `BEFORE_START` (the CUDA context, NCCL) is taken before vLLM looks at what is
free: it is not charged, but it must be there.
"""

from __future__ import annotations

from models_catalog.estimate import activation
from models_catalog.estimate.case import Case
from models_catalog.estimate.plan import Amount, Reason
from models_catalog.estimate.units import GIB

CONTEXT_GIB = 0.5  # CUDA context on one GPU
CONTEXT_PARALLEL_GIB = (1.5, 2.05)  # with NCCL
PIPELINE_GIB = 0.07
FAMILY_GIB = {"granite": 0.46}  # two models measured; the others of 0.18 and later agree on 0.25
MANY_GPUS_GIB = 0.06  # more, from four GPUs on
WORKSPACES_SINCE = 18  # the version from which FlashInfer's workspaces are there
INTEL_GIB = 1.5  # one launch
SINGLE_GIB, RUNNER_V2_GIB = 0.25, 0.12  # by the first and by the second model runner, the latter without its counts


def overhead(case: Case, stage: int = 0) -> Amount:
    """Per GPU, by version, parallelism and kind of GPU."""
    value, less, more, code = _measured(case)
    if case.runner_v2:
        value = max(RUNNER_V2_GIB, value - SINGLE_GIB + RUNNER_V2_GIB)
    value += activation.counts_bytes(case, stage) / GIB
    if case.traits.shared_memory:
        more = max(more, 4.6)  # the page cache of the machine is in this number
    return Amount.near(value, less, more, reason=Reason(code, {"gpu": case.gpu.name, "tp": case.options.tp}))


def _measured(case: Case) -> tuple[float, float, float, str]:
    """(GiB, at most so much less, at most so much more, reason)."""
    options = case.options
    if options.pp > 1 and options.tp == 1:
        return PIPELINE_GIB, 0.05, 0.1 if case.traits.kind == "datacenter" else 1.4, "overhead.pipeline"
    if case.version.engine_v0:
        return _before_rewrite(case)
    return _single(case) if options.tp == 1 else _parallel(case)


def _before_rewrite(case: Case) -> tuple[float, float, float, str]:
    """Up to 0.6 profiling counted what the driver took too."""
    if case.version.minor <= 6:
        return 0.35, 0.25, 0.25, "overhead.single"
    if case.options.tp > 1:
        return 0.22, 0.1, 0.4, "overhead.parallel"
    return 0.07, 0.05, 0.1, "overhead.single"


def _single(case: Case) -> tuple[float, float, float, str]:
    if case.traits.intel:
        return INTEL_GIB, 0.8, 0.2, "overhead.single"
    if case.version.minor < WORKSPACES_SINCE:
        large = case.traits.kind in ("datacenter", "unknown")
        return (0.13, 0.06, 0.05, "overhead.single") if large else (0.03, 0.01, 0.05, "overhead.single")
    if case.hybrid and not (case.geometry.state and not case.geometry.state.elements):  # short convolutions need none
        return 0.56, 0.31, 0.1, "overhead.hybrid"
    if case.family in FAMILY_GIB:
        return FAMILY_GIB[case.family], 0.21, 0.05, "overhead.family"
    return SINGLE_GIB, 0.02, 0.05, "overhead.single"


def _parallel(case: Case) -> tuple[float, float, float, str]:
    """GPUs side by side. From 0.18 on Hopper and Blackwell data centre GPUs fuse their exchange with the norms
    (config/vllm.py: enable_allreduce_rms_fusion), which takes 2 GiB of workspaces; others do not."""
    if case.traits.intel:
        return INTEL_GIB, 0.8, 0.5, "overhead.parallel"
    kind, more = case.traits.kind, MANY_GPUS_GIB if case.options.tp >= 4 else 0.0
    datacenter = kind in ("datacenter", "unknown")
    if case.version.minor < WORKSPACES_SINCE:
        return (0.55, 0.44, 0.85, "overhead.parallel") if datacenter else (0.21, 0.1, 0.1, "overhead.parallel")
    if kind == "unknown" or case.traits.hopper or case.traits.blackwell_datacenter:
        return 2.07 + more, 1.5 if kind == "unknown" else 0.05, 0.1, "overhead.parallel"
    if datacenter:
        return 0.55 + more, 0.44, 1.6, "overhead.parallel"
    if kind == "workstation" and case.geometry.experts and not case.hybrid:
        return 1.7 + more, 1.0, 0.4, "overhead.parallel"
    if case.hybrid or case.geometry.experts:
        return 0.74 + more, 0.3, 1.0, "overhead.parallel"
    return SINGLE_GIB + 0.1 + more, 0.1, 1.4, "overhead.parallel"


def before_start_gib(case: Case) -> tuple[float, float]:
    """(least, most) that is taken on each GPU before the engine counts."""
    return (CONTEXT_GIB, CONTEXT_GIB) if case.options.tp * case.options.pp == 1 else CONTEXT_PARALLEL_GIB
