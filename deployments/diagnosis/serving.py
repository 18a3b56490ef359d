"""What is not well with an engine that serves, by its numbers over the last minutes and by its log. Pure.

Each rule says when a finding begins and, more loosely, when it stays, so that a number at a limit does not make it
come and go. What is not known begins nothing and ends nothing. `docs/running.md` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from deployments.diagnosis import serving_log, serving_memory
from deployments.diagnosis.serving_window import Facts, Params, Rule, Symptom, Window, rough, step
from panel.fleet.wire_serving import Point

# --- memory for conversations, waiting, preemption --------------------------------------------------------------------


def _above(limit: float) -> Callable[[Point], bool]:
    return lambda point: point.kv_usage is not None and point.kv_usage > limit


def _kv_full(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    if not w.always(180, _above(0.9)):
        return None
    return "", w.since(_above(0.9)), {"percent": step(100 * w.mean(180, "kv_usage"), 5)}


def _kv_still(w: Window, f: Facts, base: Params) -> bool:
    return not w.always(120, lambda point: point.kv_usage is not None and point.kv_usage < 0.8)


def _queue(point: Point) -> bool:
    return point.waiting is not None and point.waiting >= 1


def _waiting(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    if not w.always(180, _queue):
        return None
    running, kv = w.mean(180, "running"), w.mean(180, "kv_usage")
    # Between two answers a look may see one request fewer: of few places that is a large part.
    at_limit = f.max_num_seqs is not None and running >= min(0.95 * f.max_num_seqs, f.max_num_seqs - 0.5)
    why = "_memory" if kv > 0.85 else "_limit" if at_limit else ""
    numbers = {"waiting": rough(w.mean(180, "waiting")), "running": rough(running), "limit": f.max_num_seqs}
    return why, w.since(_queue), {**numbers, "percent": step(100 * kv, 5)}


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


# --- speed, answers ---------------------------------------------------------------------------------------------------


def _idle_gpu(point: Point) -> bool:
    return bool(point.running) and point.gpu_pct is not None and point.gpu_pct < 30


def _slow(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    if not f.on_gpu or not w.always(180, _idle_gpu):
        return None
    rate = (w.grew(180, "generation_tokens") or 0.0) / 180
    if rate >= 10 * max(1.0, w.mean(180, "running")):
        return None  # a small model that is quick with little work
    return "", w.since(_idle_gpu), {"percent": step(w.mean(180, "gpu_pct"), 5), "rate": rough(rate)}


def _slow_still(w: Window, f: Facts, base: Params) -> bool:
    return not w.always(60, lambda point: not _idle_gpu(point))


def _markers(w: Window, f: Facts, base: Params) -> tuple[str, float, Params] | None:
    return ("", f.slip_since, f.slip) if f.slip else None


def _markers_still(w: Window, f: Facts, base: Params) -> bool:
    return f.slip is not None


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
    Rule("serve.creeping", "warn", serving_memory.creeping, serving_memory.creeping_still),
    Rule("serve.creeping_gpu", "warn", serving_memory.creeping_gpu, serving_memory.creeping_gpu_still),
    Rule("serve.role_markers", "warn", _markers, _markers_still),
    Rule("serve.preempting", "warn", _preempting, _preempting_still),
    Rule("serve.waiting", "warn", _waiting, _waiting_still),
    Rule("serve.kv_full", "warn", _kv_full, _kv_still),
    Rule("serve.slow", "warn", _slow, _slow_still),
    Rule("serve.long", "note", _long, _long_still),
    Rule("serve.refused", "note", _refused, _refused_still),
    Rule("serve.logged", "note", _logged, _logged_still),
)


def judge(points: Sequence[Point], facts: Facts, before: Iterable[Symptom], base: Params) -> list[Symptom]:
    """What is not well now, the worst first. `before` is what was found at the look before, `base` see
    serving_memory.base_of."""
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
