"""What the planner proposes where nothing fits, as fixes: it has tried each of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from deployments.mending.fix import Fix, Kind
from deployments.placement import Change

CHANCE, ELSEWHERE = 70, 60  # of the nearest; each that follows is a little worse
# The option that a change of the spec is about.
OPTIONS = {
    "change.share": "gpu_memory_utilization", "change.kv_gib": "kv_cache_gib", "change.context": "max_model_len",
    "change.kv_fp8": "kv_cache_dtype", "change.sequences": "max_num_seqs", "change.eager": "enforce_eager",
    "change.gpus": "gpu_count", "change.gpus_slow": "gpu_count", "change.twin": "artifact_id",
}  # fmt: skip


def option_of(change: Change) -> str:
    return OPTIONS.get(change.reason.code, "")


def fixes_of(changes: Iterable[Change], may_name: Callable[[str], bool] = bool) -> Iterator[Fix]:
    """Each change as a fix, in the planner's order. `may_name`: whether a deployment of that name may be told of."""
    for place, change in enumerate(changes):
        code, params = change.reason.code, dict(change.reason.params)
        if change.patch:
            yield Fix("patch", code, params, patch=change.patch, option=option_of(change), chance=CHANCE - place)
        elif code == "change.twin_away":
            yield Fix(
                "model", code, params, link="model", target=params["model"], chance=ELSEWHERE - place, cost="time"
            )
        elif code == "change.stop" and not all(map(may_name, params.get("names") or ())):
            yield Fix("stop", "change.stop_other", {"host": params.get("host")}, chance=ELSEWHERE - place, cost="time")
        else:
            kind: Kind = "stop" if code == "change.stop" else "host"
            target = change.host_id if kind == "host" else None
            link = "host" if target is not None else ""
            yield Fix(kind, code, params, link=link, target=target, chance=ELSEWHERE - place, cost="time")
