"""What was foreseen for a start, what its engine's log says, and the difference that later estimates learn from. Pure.

Both are flat and have the names of NAMES; memory is GiB of one GPU (the first, as the log), the rest tokens and
requests. `foreseen` also says for which kind of start it was (`tp`, `pp`, `gpu` …), and how much of its cache was
already a correction by earlier launches (`shift_gib`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deployments.planner.asked import asked_of
from deployments.spec import DeploymentSpec
from models_catalog.estimate.learned import LAST, Lesson, lesson
from models_catalog.estimate.plan import Plan

NAMES = ("weights_gib", "activation_gib", "overhead_gib", "graphs_gib", "kv_gib", "kv_tokens", "concurrency")
ALSO_LOGGED = ("context", "max_model_len", "kv_blocks", "graphs_foreseen_gib", "load_s", "engine_s")
BY_LENGTH = ("kv_tokens", "concurrency")  # they depend on how long a request may be
# (host, engine version, GPU's name, GPUs that share each layer): launches of one family that are alike in these.
Kind = tuple[int, str, str, int]


def family_of(facts: Mapping[str, Any]) -> str:
    """Architectures that an engine runs with the same code: `model_type` of config.json."""
    return str(facts.get("model_type") or "")[:80]


def foreseen(plan: Plan | None, spec: DeploymentSpec, gpus: Sequence[str], usual_s: float | None) -> dict[str, Any]:
    """Of a placement with these GPUs (names); `usual_s` is how long such starts took so far. {} without an estimate."""
    if plan is None or not plan.ranks:
        return {} if usual_s is None else {"start_s": round(usual_s, 1)}
    tp, pp, dp = asked_of(spec).parts(len(gpus))
    told = plan.to_dict()
    found: dict[str, Any] = {name: told[name] for name in NAMES if told.get(name) is not None}
    found |= {"ranges": {name: told["ranges"][name] for name in NAMES if name in found}}
    reason = plan.ranks[0].kv.reason
    found |= {"source": reason.code, "tp": tp, "pp": pp, "dp": dp, "gpu": gpus[0] if gpus else ""}
    found |= {"context": plan.context, "shift_gib": reason.params.get("shift", 0.0)}
    found |= {"launches": launches_of(plan)}
    return found if usual_s is None else {**found, "start_s": round(usual_s, 1)}


def launches_of(plan: Plan | None) -> int:
    """How many launches on its host corrected this estimate."""
    return int(plan.ranks[0].kv.reason.params.get("launches", 0)) if plan is not None and plan.ranks else 0


def measured(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Of what the log's reader found."""
    return {name: facts[name] for name in (*NAMES, *ALSO_LOGGED) if name in facts}


def residual_gib(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """Logged cache − the plain estimate of it. None where nothing can be learned: the size was told (a CPU, or the
    option), or the GPUs held different parts."""
    value, logged = before.get("kv_gib"), after.get("kv_gib")
    comparable = before.get("source") in ("kv.left", "kv.learned") and before.get("pp") == before.get("dp") == 1
    if value is None or logged is None or not comparable:
        return None
    return round(float(logged) - (float(value) - float(before.get("shift_gib", 0.0))), 4)


def same_length(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether both count requests of the same length: an engine that may choose it takes what fits."""
    return bool(before.get("context") == (after.get("context") or after.get("max_model_len") or before.get("context")))


def error(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """Foreseen ÷ measured − 1; None where either is missing, or they are not of the same."""
    value, logged = before.get(name), after.get(name)
    if name in BY_LENGTH and not same_length(before, after):
        return None
    if not isinstance(value, int | float) or not isinstance(logged, int | float) or logged <= 0:
        return None
    return value / logged - 1


def lessons(rows: Iterable[tuple[Kind, float]]) -> dict[Kind, Lesson]:
    """What (kind, residual) of one family teach, the newest first."""
    by_kind: dict[Kind, list[float]] = {}
    for kind, residual in rows:
        of_kind = by_kind.setdefault(kind, [])
        if len(of_kind) < 2 * LAST:  # some may be too far off to count
            of_kind.append(residual)
    return {kind: found for kind, residuals in by_kind.items() if (found := lesson(residuals)) is not None}
