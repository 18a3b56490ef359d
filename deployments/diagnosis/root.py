"""Which of the lines that a reader kept is the root of a failure. Pure.

The earliest fatal one is, whoever printed it; save that a process which only lost its connection to another tells less
than anything that this other one, or the system, says of its end, be that above or below.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from deployments.diagnosis import phases
from deployments.diagnosis.found import Found, Start

# Weak causes that say more than an error that no rule knows; the other weak ones say less.
_TELLING = ("config.invalid_config", "arch.inspect_failed", "env.ext_not_built", "dist.store_timeout")
GENERIC = ("run.bug",)
_FIRST = ("import", "args", "config")
_NEAR = 200  # lines within which an error that no rule knows may lead to one that a rule knows
# A broken connection that does not say to whom: it names no class.
_RESET = re.compile(r"Connection (?:reset|closed) by peer|^EOFError\b")
# Waiting in vain, which is what follows when another process is gone.
_WAITED = ("run.rpc_timeout", "run.ready_timeout", "nccl.timeout", "dist.store_timeout")
# The kernel, or Ray's watch over memory, says itself that it ended a process.
RAY_MEMORY = re.compile(r"NODE_OUT_OF_MEMORY|node running low on memory")
_KERNEL = re.compile(rf"oom-kill|[Oo]ut of memory: Kill|code: -9|: -9\}}|{RAY_MEMORY.pattern}")
# A process is gone and nobody says why. Ray names the system's memory each time, as one of several reasons it knows.
VANISHED = re.compile(r"died unexpectedly|ActorDiedError|RayActorError|worker died")


def root_of(found: Sequence[Found], start: Start, engine: str) -> Found | None:
    """The line that tells the cause; None when nothing failed or nothing tells."""
    lost = [item for item in found if item.kind == "peer" or (item.kind == "unknown" and _RESET.search(item.text))]
    if not lost:
        return _root(found, start, engine)
    rest = [item for item in found if item not in lost and not _only_follows(item, lost)]
    told = _root(rest, start, engine)
    if told is not None and told.kind not in ("aside", "request"):
        return told
    return next((item for item in lost if item.kind == "peer"), None) or _root([*lost, *rest], start, engine)


def _only_follows(item: Found, lost: Sequence[Found]) -> bool:
    """Whether it tells no more than that a process is gone to which another lost its connection."""
    code, later = item.rule.code if item.rule else "", item.number > lost[0].number
    if code == "run.worker_died" and (worker := re.search(r"\d+$", item.groups.get("worker", ""))):
        return int(worker[0]) in {_rank(other.process) for other in lost}  # what it printed before is all it has to say
    if item.kind == "unknown" or code in GENERIC:
        return later and not _is_other_worker(item.process, lost)
    return later and (item.kind == "end" or code in _WAITED or "exited unexpectedly" in item.text)


def _is_other_worker(process: str, lost: Sequence[Found]) -> bool:
    """Whether a process works beside those that lost one. Without a name it may be one: the first of older releases."""
    if process in {item.process for item in lost}:
        return False
    return not process or "Worker" in process or _stem(process) in {_stem(item.process) for item in lost}


def _stem(process: str) -> str:
    """Worker_TP of "Worker_TP1 pid=12"."""
    return re.sub(r"\d", "", process.partition(" ")[0])


def _rank(process: str) -> int | None:
    """1 of "Worker_TP1 pid=12" and "VllmWorker rank=1 pid=12"."""
    told = re.search(r" rank=(\d+)", process) or re.search(r"(\d+)$", process.partition(" ")[0])
    return int(told[1]) if told else None


def _root(found: Sequence[Found], start: Start, engine: str) -> Found | None:
    strong = _fatal([item for item in found if item.kind in ("cause", "unknown", "end")])
    weak = [item for item in found if item.kind == "weak" and item.rule]
    telling = [item for item in weak if item.rule and item.rule.code in _TELLING]
    generic = [item for item in weak if item.rule and item.rule.code in GENERIC]
    known_causes = [item for item in strong if item.kind != "unknown"]
    if strong and strong[0].kind != "unknown":
        return strong[0]
    if strong:
        first = strong[0]
        known = next((item for item in known_causes if _follows(first, item)), None)
        if known or telling:
            return known or telling[0]
        return min([first, *generic], key=lambda item: item.number)
    if telling or generic:
        return min(telling or generic, key=lambda item: item.number)
    late = [item for item in found if item.kind == "late"]
    killed = [item for item in weak if not (engine == "sglang" and item.text.strip() == "Killed")]
    if late or killed:
        return late[0] if late else next((item for item in killed if _KERNEL.search(item.text)), killed[0])
    least = [item for item in found if item.kind == "aside" and item.rule] or [i for i in found if i.kind == "request"]
    return least[0] if least and not start.served else None


def _fatal(strong: list[Found]) -> list[Found]:
    """Without errors of the first steps that did not end the start: weights were loaded all the same."""
    loaded = max((item.number for item in strong if phases.RANK[item.phase] >= phases.RANK["load"]), default=0)
    return [item for item in strong if item.phase not in _FIRST or item.number > loaded]


def _follows(first: Found, item: Found) -> bool:
    """Whether a known error belongs to the chain that an unknown one began."""
    return item.number - first.number <= _NEAR or item.process == first.process
