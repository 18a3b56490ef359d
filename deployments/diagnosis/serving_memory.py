"""Memory of an engine that serves, which grows and is not given back: the machine's, and that of its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from deployments.diagnosis.serving_window import Facts, Params, Window, step
from panel.fleet.wire_serving import Point

BASE_AFTER_S = 600.0  # from ready until memory has settled
GIB = 1024  # MiB
RSS, GPU = "rss_mib", "gpu_mib"  # names of a point's numbers
GPU_PART = 0.03  # of the cards: an engine takes its share at the start, and little may come after that


def _told(points: Sequence[Point], name: str) -> list[int]:
    return [mib for point in points if (mib := getattr(point, name))]


def base_of(w: Window, f: Facts, base: Params) -> Params:
    """What its memory was when it had settled; each taken once, 10 min after it got ready or as soon as it is told."""
    missing = [name for name in (RSS, GPU) if name not in base]
    if not missing or f.now - f.ready_at < BASE_AFTER_S or not w.whole(120):
        return base
    taken = {name: int(median(told)) for name in missing if (told := _told(w.last(120), name))}
    return {"at": f.now, **base, **taken} if taken else base


def _risen(w: Window, name: str) -> int | None:
    """What it is now, where it has gone on rising for a quarter of an hour."""
    told = _told(w.last(900), name)
    if not w.whole(900) or len(told) < 9:
        return None
    first, last = told[: len(told) // 3], told[-(len(told) // 3) :]
    return int(median(last)) if min(last) > max(first) else None


def creeping(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    """Main memory: a quarter and 2 GiB more."""
    now = _risen(w, RSS)
    if now is None or RSS not in base:
        return None
    before = max(base[RSS], f.planned_rss_mib or 0)
    if now < before * 1.25 or now < before + 2 * GIB:
        return None
    return "", base["at"], {"from_mib": base[RSS], "to_mib": step(now, GIB // 4)}


def creeping_still(w: Window, f: Facts, base: Params) -> bool:
    told = _told(w.last(300), RSS)
    before = max(base.get(RSS, 0), f.planned_rss_mib or 0)
    return not base or not told or median(told) >= before * 1.15


def _above(f: Facts, base: Params, part: float) -> float:
    """MiB of GPU memory above what it had, or was meant to take, by a part of what is much."""
    before: float = max(base[GPU], f.planned_gpu_mib or 0)
    return before + part * max(GIB, GPU_PART * (f.cards_mib or before))


def creeping_gpu(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    """GPU memory: 1 GiB and 3 % of its cards more."""
    now = _risen(w, GPU)
    if now is None or GPU not in base or now < _above(f, base, 1):
        return None
    return "", base["at"], {"from_mib": base[GPU], "to_mib": step(now, GIB // 4)}


def creeping_gpu_still(w: Window, f: Facts, base: Params) -> bool:
    told = _told(w.last(300), GPU)
    return GPU not in base or not told or median(told) >= _above(f, base, 0.5)
