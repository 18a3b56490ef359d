"""How a run ended: exit or signal, phase reached, first error of the log, and whether a restart
can cure it. Pure.

The log is read once, by one `Reader`: all of it, or as much as is there. Which line is the cause is told in `root`.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from deployments.diagnosis import phases
from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Diagnosis, Evidence, Offer

MAX_BLOCK = 40  # lines of the error block
MAX_FIXES = 3
# What the engine said of itself, as far as pages show it.
KEPT_FACTS = (
    "version", "architecture", "nccl", "torch", "cuda", "transformers", "attention", "max_model_len", "context",
    "auto_max_model_len", "weights_gib", "kv_gib", "kv_tokens", "concurrency", "graphs_gib", "load_s", "compile_s",
    "engine_s", "notices",
)  # fmt: skip
SURE_WITHOUT_A_LINE = 0.8  # a KILL alone may be anyone's, though the kernel's is the usual one
_MAX_LINE = 2000  # characters of one line of it


@dataclass(frozen=True)
class Ending:
    """`reason` is {code, params}; `error_block` is {first_line, root_line, lines, numbers} with 1-based numbers.

    `diagnosis` is what is kept for later: class, how sure, every offer, what was ruled out, what changed since.
    """

    reason: dict[str, Any]
    phase: str = ""
    error_block: dict[str, Any] = field(default_factory=dict)
    curable: bool = False
    diagnosis: dict[str, Any] = field(default_factory=dict)


def signal_name(number: int) -> str:
    """SIGKILL for 9; "signal 99" for one without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def explain(
    *,
    log: bytes | Reader,
    phases: Sequence[Mapping[str, Any]] = (),
    exit_code: int | None = None,
    signal: int | None = None,
    refusal: Mapping[str, Any] | None = None,
    own_reason: Mapping[str, Any] | None = None,
    probe: Mapping[str, Any] | None = None,
    was_ready: bool = False,
    evidence: Evidence | None = None,
) -> Ending:
    """The end of a run. `log` is all of it, or a reader that has read it.

    `phases` are those that the parser found while the log grew, `own_reason` is the panel's own (a deadline, an answer
    that failed), `refusal` the host's. An exit code above 128 is the signal that a wrapper reported.
    """
    if refusal:
        return Ending({"code": str(refusal.get("code")), "params": dict(refusal.get("params") or {})})
    ended = {} if own_reason else {"exit_code": exit_code, "signal": signal}
    found = diagnosed(log, **ended, evidence=evidence)
    block = _block_of(found)
    proven = found.recognised and found.root_line is not None
    reached = _furthest(found.phase, phases, known=bool(block))
    # A start that was given up on was ended by the panel: its signal says nothing.
    reason = dict(own_reason) if own_reason else _how(exit_code, signal)
    params = {**dict(reason.get("params") or {}), "phase": reached}
    if found.recognised and (proven or found.confidence >= SURE_WITHOUT_A_LINE):
        params |= {"cause": found.code, "title": found.title, "why": found.why}
        if found.told.get("say"):
            params["told"] = {name: found.told[name] for name in ("say", "values", "adds")}
        params |= {
            "confidence": round(found.confidence, 2),
            "fixes": [_offered(fix) for fix in found.fixes[:MAX_FIXES]],
        }
    if proven:
        params["root_line"] = found.root_line
    if probe and probe.get("status"):
        params["status"] = probe["status"]
    known: dict[str, Any] = {key: block[key] for key in ("first_line", "root_line", "lines", "numbers") if key in block}
    # Memory that was short while it served may be free now; while it loaded, it will be short again.
    short = found.code == "mem.host_oom_killed" and reached in ("serving", "answered")
    cure = found.curable or short if proven else None
    curable = _curable(str(reason["code"]), reached, cure, bool(block), exit_code, signal, was_ready=was_ready)
    return Ending(
        {"code": reason["code"], "params": params}, reached, known, curable, _kept(found, said="cause" in params)
    )


def _kept(found: Diagnosis, *, said: bool) -> dict[str, Any]:
    """Without the log, a later look can offer what helps then. `said`: it was sure enough to be told."""
    facts = {name: found.facts[name] for name in KEPT_FACTS if found.facts.get(name) not in (None, "")}
    log = {"facts": facts} if facts else {}
    if not said:
        return {**log, "changed": dict(found.facts["changed"])} if found.facts.get("changed") else log
    return {
        **log,
        "told": dict(found.told),
        "class": found.code,
        "phase": found.phase,
        "confidence": round(found.confidence, 2),
        "offers": [asdict(fix) for fix in found.fixes],
        "ruled_out": [{"class": code, "line": line} for code, line in found.ruled_out],
        "changed": dict(found.facts.get("changed", {})),
    }


def diagnosed(
    log: bytes | Reader,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    evidence: Evidence | None = None,
) -> Diagnosis:
    """What the rules say of a log."""
    reader = log if isinstance(log, Reader) else Reader()
    if isinstance(log, bytes):
        reader.feed(log)
    return diagnose(reader, exit_code=exit_code, signal=signal, evidence=evidence)


def _offered(fix: Offer) -> dict[str, Any]:
    """A fix as it is kept: its text with its places still open, so that it can be said in the reader's language."""
    return {"kind": fix.kind, "text": fix.text, "params": dict(fix.params), "command": fix.command}


def _block_of(found: Diagnosis) -> dict[str, Any]:
    """The lines that end in the cause, or in the first error where no class is known."""
    if found.root_line is None or not found.lines:
        return {}
    return {
        "first_line": found.numbers[0],
        "root_line": found.root_line,
        "root": found.root,
        "lines": [line[:_MAX_LINE] for line in found.lines[-MAX_BLOCK:]],
        "numbers": list(found.numbers[-MAX_BLOCK:]),
    }


def _furthest(phase: str, given: Sequence[Mapping[str, Any]], *, known: bool) -> str:
    """What ends an engine that was up ended it while serving, whatever the class usually does. Where no line is
    `known`, a parser that saw the log grow may have seen more of it than is left.
    """
    seen = str(given[-1]["code"]) if given else "start"
    if not known:
        return max(phase, seen, key=phases.ORDER.index)
    up = phases.ORDER.index("serving")
    return seen if phases.ORDER.index(seen) >= up > phases.ORDER.index(phase) or phase == "start" else phase


def _how(exit_code: int | None, signal: int | None) -> dict[str, Any]:
    """The code of an end that came from the process itself."""
    number = _signal_of(exit_code, signal)
    if number:
        return {"code": "exit.signal", "params": {"signal": signal_name(number), "number": number}}
    if exit_code is None:
        return {"code": "exit.unknown", "params": {}}
    if exit_code == 0:
        return {"code": "exit.zero", "params": {"exit_code": 0}}
    return {"code": "exit.code", "params": {"exit_code": exit_code}}


def _signal_of(exit_code: int | None, signal: int | None) -> int:
    if signal:
        return signal
    return exit_code - 128 if exit_code is not None and 128 < exit_code < 128 + 65 else 0


def _curable(
    code: str,
    phase: str,
    cure: bool | None,
    has_error: bool,
    exit_code: int | None,
    signal: int | None,
    *,
    was_ready: bool,
) -> bool:
    """Whether the same start may go well the next time."""
    if code == "answer.failed":
        return False
    if cure is not None:
        return cure or was_ready
    if was_ready or code in ("start.deadline", "start.hung", "exit.unknown"):
        return True
    number = _signal_of(exit_code, signal)
    if number in (signals.SIGILL, signals.SIGSYS):
        return False
    if number == signals.SIGKILL:  # most likely the kernel, short of memory: it will be short again
        return phase in ("serving", "answered")
    if number:
        return True
    return not has_error and phase in ("http", "serving", "answered")
