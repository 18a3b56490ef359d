"""What is not well with an engine that serves, by its numbers over the last minutes and by its log. Pure.

Each rule says when a finding begins and, more loosely, when it stays, so that a number at a limit does not make it
come and go. What is not known begins nothing and ends nothing. `docs/running.md` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Literal

from deployments.diagnosis import serving_log
from panel.fleet.wire_serving import Point

Level = Literal["bad", "warn", "note"]
Params = dict[str, Any]

SLACK_S = 20.0  # between two points; also what a window may lack of its length
STALE_S = 60.0  # without a newer point nothing is known of now
BASE_AFTER_S = 600.0  # from ready until memory has settled
GIB = 1024  # MiB


@dataclass(frozen=True)
class Symptom:
    """Something that is not well; kept in `Run.findings` and told as a finding. `family` is one rule's, `code` says it
    in words; `since` is in Unix seconds.
    """

    family: str
    code: str
    level: Level
    since: float
    params: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What is known beside the points. `planned_rss_mib` is main memory that it is meant to take (on a CPU).

    `silent_since` is when the first question of those that got no answer was asked; None: it answers, or nobody asks.
    """

    now: float
    ready_at: float
    on_gpu: bool = False
    max_num_seqs: int | None = None
    planned_rss_mib: int | None = None
    classes: Mapping[str, Any] = field(default_factory=dict)  # of the log, see serving_log
    silent_since: float | None = None
    silent_times: int = 0


class Window:
    """Points of the last minutes, the oldest first, looked at from `now`."""

    def __init__(self, points: Sequence[Point], now: float) -> None:
        self.points = [point for point in points if point.at <= now + SLACK_S]
        self.now = now

    @property
    def fresh(self) -> bool:
        """Whether the newest point tells of now."""
        return bool(self.points) and self.now - self.points[-1].at <= STALE_S

    def last(self, seconds: float) -> list[Point]:
        return [point for point in self.points if point.at > self.now - seconds]

    def whole(self, seconds: float) -> bool:
        """Whether all of that time was seen."""
        return self.fresh and self.points[0].at <= self.now - seconds + SLACK_S

    def always(self, seconds: float, test: Callable[[Point], bool]) -> bool:
        """Whether it was so at every look of that time, all of which was seen."""
        return self.whole(seconds) and all(test(point) for point in self.last(seconds))

    def grew(self, seconds: float, name: str) -> float | None:
        """By how much a total grew; None where it is not told. A total that fell began anew."""
        start = next((n for n, point in enumerate(self.points) if point.at > self.now - seconds), len(self.points))
        told = [n for point in self.points[max(0, start - 1) :] if (n := getattr(point, name)) is not None]
        return sum(max(0.0, b - a) for a, b in pairwise(told)) if len(told) > 1 else None

    def rate(self, seconds: float, name: str) -> float | None:
        """How much a total grew per second; None where it is not told twice in that time."""
        grew, seen = self.grew(seconds, name), self.last(seconds)
        earlier = [point.at for point in self.points if point.at <= self.now - seconds][-1:]
        span = seen[-1].at - [*earlier, seen[0].at][0] if seen else 0.0
        return grew / span if grew is not None and span > 0 else None

    def mean(self, seconds: float, name: str) -> float:
        told = [n for point in self.last(seconds) if (n := getattr(point, name)) is not None]
        return fmean(told) if told else 0.0

    def since(self, test: Callable[[Point], bool]) -> float:
        """From when on it has been so without a break."""
        found = self.now
        for point in reversed(self.points):
            if not test(point):
                break
            found = point.at
        return found


@dataclass(frozen=True)
class Rule:
    """`begins` gives the code's ending, the time and the numbers, or None; `stays` is asked while it is there."""

    family: str
    level: Level
    begins: Callable[[Window, Facts, Params], tuple[str, float, Params] | None]
    stays: Callable[[Window, Facts, Params], bool]


# --- memory for conversations, waiting, preemption --------------------------------------------------------------------


def _above(limit: float) -> Callable[[Point], bool]:
    return lambda point: point.kv_usage is not None and point.kv_usage > limit


def _kv_full(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    if not w.always(180, _above(0.9)):
        return None
    return "", w.since(_above(0.9)), {"percent": _step(100 * w.mean(180, "kv_usage"), 5)}


def _kv_still(w: Window, f: Facts, base: Params) -> bool:
    return not w.always(120, lambda point: point.kv_usage is not None and point.kv_usage < 0.8)


def _queue(point: Point) -> bool:
    return point.waiting is not None and point.waiting >= 1


def _waiting(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    if not w.always(180, _queue):
        return None
    running, kv = w.mean(180, "running"), w.mean(180, "kv_usage")
    at_limit = f.max_num_seqs is not None and running >= 0.95 * f.max_num_seqs
    why = "_memory" if kv > 0.85 else "_limit" if at_limit else ""
    numbers = {"waiting": rough(w.mean(180, "waiting")), "running": rough(running), "limit": f.max_num_seqs}
    return why, w.since(_queue), {**numbers, "percent": _step(100 * kv, 5)}


def _waiting_still(w: Window, f: Facts, base: Params) -> bool:
    return not w.always(60, lambda point: point.waiting == 0)


def _preempted(w: Window, f: Facts) -> float | None:
    told = w.grew(300, "preemptions")
    return (
        told if told is not None else serving_log.recent(f.classes, f.now, lambda code: code == "run.preempt") or None
    )


def _preempting(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    times = _preempted(w, f)
    most = max((point.running or 0 for point in w.last(300)), default=0)
    return ("", f.now, {"count": rough(times), "most": rough(most)}) if times is not None and times >= 3 else None


def _preempting_still(w: Window, f: Facts, base: Params) -> bool:
    return bool(_preempted(w, f)) or not (w.whole(300) or f.classes)


# --- errors -----------------------------------------------------------------------------------------------------------


def _errors_in(w: Window) -> float | None:
    told = w.grew(300, "http_5xx")
    return told if told is not None else w.grew(300, "failed")


def _errors(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    count = _errors_in(w)
    if count is None or count < 3:
        return None
    answered = w.grew(300, "http_ok") or w.grew(300, "done") or 0.0
    return "", f.now, {"count": rough(count), "all": rough(count + answered)}


def _errors_still(w: Window, f: Facts, base: Params) -> bool:
    return bool(_errors_in(w)) or not w.whole(300)


def _refused(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    count, answered = w.grew(300, "http_4xx") or 0.0, w.grew(300, "http_ok") or 0.0
    return ("", f.now, {"count": rough(count), "all": rough(count + answered)}) if count >= max(10, answered) else None


def _refused_still(w: Window, f: Facts, base: Params) -> bool:
    return (w.grew(300, "http_4xx") or 0.0) >= 3 or not w.whole(300)


# --- it lives, and does not ------------------------------------------------------------------------------------------


def _ill(point: Point) -> bool:
    return point.health is not None and point.health >= 500


def _dead(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    newest = w.points[-2:]
    if not w.fresh or len(newest) < 2 or not all(map(_ill, newest)):
        return None
    return "", w.since(_ill), {"status": newest[-1].health}


def _dead_still(w: Window, f: Facts, base: Params) -> bool:
    return not w.fresh or w.points[-1].health != 200


def _mute_now(point: Point) -> bool:
    return point.health is None and point.problem in ("timeout", "refused", "unreadable")


def _mute(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    return ("", w.since(_mute_now), {}) if w.always(60, _mute_now) else None


def _mute_still(w: Window, f: Facts, base: Params) -> bool:
    return not w.fresh or _mute_now(w.points[-1])


def _silent(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    if f.silent_since is None or f.silent_times < 2:
        return None
    return "", f.silent_since, {"times": f.silent_times}


def _silent_still(w: Window, f: Facts, base: Params) -> bool:
    return f.silent_since is not None


# --- main memory, speed -----------------------------------------------------------------------------------------------


def _rss(points: Iterable[Point]) -> list[int]:
    return [point.rss_mib for point in points if point.rss_mib]


def base_of(w: Window, f: Facts, base: Params) -> Params:
    """What its main memory was when it had settled; taken once, 10 min after it got ready."""
    if base or f.now - f.ready_at < BASE_AFTER_S or not w.whole(120) or not (told := _rss(w.last(120))):
        return base
    return {"at": f.now, "rss_mib": int(median(told))}


def _creeping(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    told = _rss(w.last(900))
    if not base or not w.whole(900) or len(told) < 9:
        return None
    first, last = told[: len(told) // 3], told[-(len(told) // 3) :]
    before, now = max(base["rss_mib"], f.planned_rss_mib or 0), int(median(last))
    if min(last) <= max(first) or now < before * 1.25 or now < before + 2 * GIB:
        return None
    return "", base["at"], {"from_mib": base["rss_mib"], "to_mib": _step(now, GIB // 4)}


def _creeping_still(w: Window, f: Facts, base: Params) -> bool:
    told = _rss(w.last(300))
    before = max(base.get("rss_mib", 0), f.planned_rss_mib or 0)
    return not base or not told or median(told) >= before * 1.15


def _idle_gpu(point: Point) -> bool:
    return bool(point.running) and point.gpu_pct is not None and point.gpu_pct < 30


def _slow(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    if not f.on_gpu or not w.always(180, _idle_gpu):
        return None
    rate = (w.grew(180, "generation_tokens") or 0.0) / 180
    if rate >= 10 * max(1.0, w.mean(180, "running")):
        return None  # a small model that is quick with little work
    return "", w.since(_idle_gpu), {"percent": _step(w.mean(180, "gpu_pct"), 5), "rate": rough(rate)}


def _slow_still(w: Window, f: Facts, base: Params) -> bool:
    return not w.always(60, lambda point: not _idle_gpu(point))


# --- the log ----------------------------------------------------------------------------------------------------------


def _long(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    count = serving_log.recent(f.classes, f.now, lambda code: code == serving_log.TOO_LONG)
    if count < 3:
        return None
    asked = f.classes.get(serving_log.TOO_LONG, {}).get("asked")
    return "", f.now, {"count": rough(count), "asked": asked}


def _long_still(w: Window, f: Facts, base: Params) -> bool:
    return serving_log.recent(f.classes, f.now, lambda code: code == serving_log.TOO_LONG) > 0


def _memory_short(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    count = serving_log.recent(f.classes, f.now, serving_log.of_memory)
    most = max((point.running or 0 for point in w.last(600)), default=0)
    return ("", f.now, {"count": rough(count), "most": rough(most)}) if count >= 2 else None


def _memory_short_still(w: Window, f: Facts, base: Params) -> bool:
    return serving_log.recent(f.classes, f.now, serving_log.of_memory) > 0


def _logged(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    counted = serving_log.others(f.classes, f.now)
    if not counted or counted[0][1] < 3:
        return None
    code, count = counted[0]
    return "", f.now, {"cause": code, "count": rough(count), **serving_log.said(f.classes[code], code)}


def _logged_still(w: Window, f: Facts, base: Params) -> bool:
    return bool(serving_log.others(f.classes, f.now))


RULES = (
    Rule("serve.silent", "bad", _silent, _silent_still),
    Rule("serve.dead", "bad", _dead, _dead_still),
    Rule("serve.mute", "bad", _mute, _mute_still),
    Rule("serve.memory_short", "bad", _memory_short, _memory_short_still),
    Rule("serve.errors", "bad", _errors, _errors_still),
    Rule("serve.creeping", "warn", _creeping, _creeping_still),
    Rule("serve.preempting", "warn", _preempting, _preempting_still),
    Rule("serve.waiting", "warn", _waiting, _waiting_still),
    Rule("serve.kv_full", "warn", _kv_full, _kv_still),
    Rule("serve.slow", "warn", _slow, _slow_still),
    Rule("serve.long", "note", _long, _long_still),
    Rule("serve.refused", "note", _refused, _refused_still),
    Rule("serve.logged", "note", _logged, _logged_still),
)


def judge(points: Sequence[Point], facts: Facts, before: Iterable[Symptom], base: Params) -> list[Symptom]:
    """What is not well now, the worst first. `before` is what was found at the look before, `base` see `base_of`."""
    window, known = Window(points, facts.now), {finding.family: finding for finding in before}
    found = []
    for rule in RULES:
        old, new = known.get(rule.family), rule.begins(window, facts, base)
        if new is not None:
            ending, since, params = new
            if old is not None:  # the words and the time stay; the numbers are of now
                found.append(Symptom(rule.family, old.code, rule.level, old.since, {**old.params, **params}))
            else:
                found.append(Symptom(rule.family, f"{rule.family}{ending}", rule.level, since, params))
        elif old is not None and rule.stays(window, facts, base):
            found.append(old)
    return found


def rough(value: float) -> int:
    """A number as it is said: to two digits, so that it does not change at every look."""
    whole = round(value)
    if whole < 20:
        return whole
    digits = int(10 ** (len(str(whole)) - 2))
    return round(whole / digits) * digits


def _step(value: float, step: int) -> int:
    return round(value / step) * step
