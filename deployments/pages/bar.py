"""The memory of a plan as the page draws it: a bar and a column for each GPU, and the numbers that move them."""

import json
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from deployments.pages import effects, why
from deployments.placement import GpuView
from deployments.planner import Outlook
from deployments.planner.moving import held_mib, stage_of
from deployments.preflight import Check
from deployments.spec import DeploymentSpec
from models_catalog.estimate import Amount, Plan, Rank
from panel.core.numbers import gib, ngroup

KINDS = "xwagokr"
LEAST_TOLD_MIB, MOST_TOLD = 256, 4  # a desktop's few MiB are not worth a word


def _names() -> dict[str, tuple[str, str]]:
    return {
        "w": (_("Weights"), _("the model itself")),
        "a": (_("Activations"), _("scratch space while it computes")),
        "g": (_("CUDA graphs"), _("recorded steps, for speed")),
        "o": (_("Overhead"), _("driver and libraries")),
        "k": (_("Conversations"), _("as many and as long as you said")),
        "r": (_("More conversations"), _("room that is left for them")),
        "x": (_("Taken already"), _("other deployments and programs")),
        "f": (_("Free"), ""),
    }


def bars(check: Check, spec: DeploymentSpec) -> dict[str, Any]:
    """For the template: `bars`, `table` and `live`; nothing where the estimate has no numbers."""
    around = check.outlook
    if around is None or around.spot is None:
        return {}
    placed = check.placement.plan if check.placement is not None else None
    plan = placed or around.plan
    if plan is None or not plan.ranks or plan.ranks[0].kv.value is None:
        return {"live": _live(around, [])}
    found = _gpus(around, plan, spec.people or 1) if around.spot.gpus else [_machine(around, plan, spec.people or 1)]
    table = _table(found, _sources(plan, found))
    return {"bars": found, "table": table, "live": _live(around, found), "kv_doubt": doubt(plan.ranks[0].kv)}


def _gpus(around: Outlook, plan: Plan, people: int) -> list[dict[str, Any]]:
    spot = around.spot
    assert spot is not None
    found = []
    for place, gpu in enumerate(spot.gpus):
        stage = min(stage_of(spot, place), len(plan.ranks) - 1)
        asked = _asked_gib(around, plan, stage, people)
        held = held_mib(gpu) / 1024
        found.append(_bar(f"GPU {gpu.index}", _total_gib(gpu), held, plan.ranks[stage], asked, stage))
    return found


def _total_gib(gpu: GpuView) -> float:
    return gpu.total_mib / 1024


def _machine(around: Outlook, plan: Plan, people: int) -> dict[str, Any]:
    spot = around.spot
    assert spot is not None
    host = spot.host
    held = max(host.ram_reserved_mib, host.ram_total_mib - host.ram_available_mib) / 1024
    asked = _asked_gib(around, plan, 0, people)
    return _bar(_("Memory of %(host)s") % {"host": host.name}, host.ram_total_mib / 1024, held, plan.ranks[0], asked, 0)


def _asked_gib(around: Outlook, plan: Plan, stage: int, people: int) -> float:
    """What so many conversations take of a stage's cache."""
    blocks = plan.concurrency.reason.params.get("blocks")
    numbers, spot = around.numbers, around.spot
    size = numbers["stages"][stage]["bytes"] if numbers else plan.kv_tokens.reason.params.get("bytes")
    if not blocks or not size or spot is None:
        return 0.0
    times = numbers["times"] if numbers else 1
    return float(people * blocks * size / 2**30 / times / spot.setting.dp)


def _bar(name: str, total: float, held: float, rank: Rank, asked: float, stage: int) -> dict[str, Any]:
    """Sizes in GiB by kind; what would not go into the bar is cut off where it ends."""
    sizes = {"x": held}
    for kind, amount in zip("wago", (rank.weights, rank.activation, rank.graphs, rank.overhead), strict=True):
        sizes[kind] = max(0.0, amount.value or 0.0)
    cache = max(0.0, rank.kv.value or 0.0)
    sizes["k"] = min(asked, cache)
    sizes["r"] = cache - sizes["k"]
    free = max(0.0, total - sum(sizes.values()))
    names = _names()
    label = ", ".join(f"{names[kind][0]} {size:.1f}" for kind, size in {**sizes, "f": free}.items())
    return {
        "name": name,
        "total": total,
        "used": total - free,
        "free": free,
        "stage": stage,
        "sizes": sizes,
        "segments": [(kind, sizes[kind], f"{sizes[kind]:.1f}" if kind in "wk" else "") for kind in KINDS],
        "label": f"{name}: {label} GiB",
    }


def _sources(plan: Plan, found: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """{kind: (the range in GiB, of each stage where they differ; where the number comes from)}."""
    stages = list(dict.fromkeys(bar["stage"] for bar in found))
    ranks = [plan.ranks[stage] for stage in stages]
    told = {}
    for kind, part in zip("wago", ("weights", "activation", "graphs", "overhead"), strict=True):
        amounts = [getattr(rank, part) for rank in ranks]
        told[kind] = (_spans(amounts), why.sentence(amounts[0].reason))
    asked = [next(bar["sizes"]["k"] for bar in found if bar["stage"] == stage) for stage in stages]
    left = [_less(rank.kv, taken) for rank, taken in zip(ranks, asked, strict=True)]
    told["k"] = ("", why.sentence(plan.concurrency.reason))
    told["r"] = (_spans(left), why.sentence(ranks[0].kv.reason))
    return told


def _spans(amounts: list[Amount]) -> str:
    found = dict.fromkeys(span for amount in amounts if (span := why.span_of(amount)))
    return ", ".join(found)


def _less(amount: Amount, taken: float) -> Amount:
    """What is left of it, and never less than nothing."""
    return amount.map(lambda size: max(0.0, size - taken), amount.reason)


def _table(found: list[dict[str, Any]], sources: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """One row for each kind that any GPU has."""
    rows = []
    for kind, (name, text) in _names().items():
        cells = [bar["free"] if kind == "f" else bar["sizes"][kind] for bar in found]
        if any(cells) or kind in "krf":
            values = [f"{size:.1f}" if kind == "x" else f"≈ {size:.1f}" for size in cells]
            span, source = sources.get(kind, ("", ""))
            rows.append({"kind": kind, "name": name, "text": text, "cells": values, "range": span, "why": source})
    return rows


def shared(around: Outlook | None) -> dict[str, str]:
    """What else lies on the GPUs of the place, and what would fit without it; empty where nothing does."""
    spot = around.spot if around is not None else None
    held = [text for gpu in (spot.gpus if spot is not None else ()) if (text := _holders(gpu))]
    if around is None or spot is None or not held:
        return {}
    now, alone = spot.fit.at_once, around.alone
    more = ""
    if now is not None and alone is not None and int(alone.value or 0) > int(now.value or 0):
        more = _("Without that there would be room for about %(n)s.") % {"n": ngroup(alone.value)}
    return {"title": _("Something else is there too"), "text": " ".join(held), "more": more}


def _holders(gpu: GpuView) -> str:
    """ "GPU 1: support-chat holds 20.0 GiB; python3, which is not Berth's, holds 9.8 GiB."."""
    ours = [_("%(name)s holds %(size)s") % {"name": claim.name, "size": gib(claim.mib)} for claim in gpu.claims]
    strange = [
        _("%(name)s, which is not Berth's, holds %(size)s") % {"name": user.called, "size": gib(user.used_mib)}
        for user in gpu.others
        if (user.used_mib or 0) >= LEAST_TOLD_MIB
    ]
    return f"GPU {gpu.index}: {'; '.join([*ours, *strange][:MOST_TOLD])}." if ours or strange else ""


def doubt(amount: Amount) -> str:
    """ "± 0.5 GiB", nothing where it is exact."""
    if amount.value is None or amount.low is None or amount.value - amount.low < 0.05:
        return ""
    return f"± {amount.value - amount.low:.1f} GiB"


def _live(around: Outlook, found: list[dict[str, Any]]) -> str:
    """What the page's script gets, as JSON: the numbers for fit.js, the bars, and the ends of the sliders."""
    longest, most = around.longest, around.most
    numbers = {
        "numbers": around.numbers,
        "bars": [{key: bar[key] for key in ("total", "stage", "sizes", "name")} for bar in found],
        "longest": longest.value if longest is not None else None,
        "most": most.value if most is not None else None,
        "limit": around.model_longest,
        "names": {kind: name for kind, (name, _text) in _names().items()},
        "effects": effects.texts(around),
    }
    return json.dumps(numbers)
