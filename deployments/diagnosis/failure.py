"""How a run ended: exit or signal, phase reached, first error of the log, and whether a restart
can cure it. Pure.

The first exception of the first process that failed is the cause; what follows it is echo. See `error_lines` for the
exceptions to that rule.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from deployments.diagnosis import error_lines, phases
from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.lines import Line, clean
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Diagnosis, Evidence, Offer

MAX_LOG_BYTES = 4 << 20  # how much of a log is looked at: the newest bytes of this many
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


# Words that every error line and every banner holds: a quick look, so that a flood costs little.
_QUICK = re.compile(
    r"Error|Exception|Interrupt|Exit|Timeout|Failure|Expired|error: |Killed|fault|Illegal|terminate|version"
)


class _Log:
    """The lines of a log, cleaned when they are looked at. `number` is the 1-based number that an editor shows."""

    def __init__(self, log: bytes, before: int = 0) -> None:
        skipped = max(0, len(log) - MAX_LOG_BYTES)
        self.before = before + log[:skipped].count(b"\n")
        self.raw = log[skipped:].replace(b"\0", b" ").decode("utf-8", "replace").split("\n")
        self.marked = [index for index, raw in enumerate(self.raw) if _QUICK.search(raw)]
        self.seen: dict[int, Line] = {}

    def number(self, index: int) -> int:
        return self.before + index + 1

    def line(self, index: int) -> Line:
        """One line; of a progress bar only its last picture."""
        if index not in self.seen:
            shown = self.raw[index].rstrip("\r").rpartition("\r")[2]
            self.seen[index] = clean(shown[: 2 * _MAX_LINE])
        return self.seen[index]


def signal_name(number: int) -> str:
    """SIGKILL for 9; "signal 99" for one without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def explain(
    *,
    log: bytes,
    phases: Sequence[Mapping[str, Any]] = (),
    exit_code: int | None = None,
    signal: int | None = None,
    refusal: Mapping[str, Any] | None = None,
    own_reason: Mapping[str, Any] | None = None,
    probe: Mapping[str, Any] | None = None,
    was_ready: bool = False,
    evidence: Evidence | None = None,
    before: int = 0,
) -> Ending:
    """The end of a run. `before` lines stand above `log`, where that is only the newest part of it.

    `phases` are those that the parser found while the log grew, `own_reason` is the panel's own (a deadline, an answer
    that failed), `refusal` the host's. An exit code above 128 is the signal that a wrapper reported.
    """
    if refusal:
        return Ending({"code": str(refusal.get("code")), "params": dict(refusal.get("params") or {})})
    ended = {} if own_reason else {"exit_code": exit_code, "signal": signal}
    found = diagnosed(log, **ended, evidence=evidence, before=before)
    block = _block_of(found) or first_error(log, before)
    proven = found.recognised and found.root_line is not None
    reached = _furthest(found.phase, phases) if proven else _phase_reached(log, phases, block)
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
    log: bytes,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    evidence: Evidence | None = None,
    before: int = 0,
) -> Diagnosis:
    """What the rules say of the newest part of a log, above which `before` lines stand."""
    reader = Reader()
    skipped = max(0, len(log) - MAX_LOG_BYTES)
    reader.count = before + log[:skipped].count(b"\n")
    reader.feed(log[skipped:])
    return diagnose(reader, exit_code=exit_code, signal=signal, evidence=evidence)


def _offered(fix: Offer) -> dict[str, Any]:
    """A fix as it is kept: its text with its places still open, so that it can be said in the reader's language."""
    return {"kind": fix.kind, "text": fix.text, "params": dict(fix.params), "command": fix.command}


def _block_of(found: Diagnosis) -> dict[str, Any]:
    """The error block of a cause that was recognised by a line."""
    if not found.recognised or found.root_line is None or not found.lines:
        return {}
    return {
        "first_line": found.numbers[0],
        "root_line": found.root_line,
        "root": found.root,
        "lines": [line[:_MAX_LINE] for line in found.lines[-MAX_BLOCK:]],
        "numbers": list(found.numbers[-MAX_BLOCK:]),
    }


def _furthest(phase: str, given: Sequence[Mapping[str, Any]]) -> str:
    """What ends an engine that was up ended it while serving, whatever the class usually does."""
    seen = str(given[-1]["code"]) if given else "start"
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


# --- the first error -------------------------------------------------------------------------------------------------


def first_error(log: bytes, before: int = 0) -> dict[str, Any]:
    """{first_line, root_line, root, lines, numbers} of the first error block, {} when the log holds none."""
    lines = _Log(log, before)
    root = _root(lines)
    if root is None:
        return {}
    process = lines.line(root).process
    own = [i for i in range(_block_start(lines, root), root + 1) if lines.line(i).process == process]
    following = range(root + 1, min(root + 3, len(lines.raw)))
    own += [i for i in following if lines.line(i).text.lstrip().startswith("For further information")]
    own = own[-MAX_BLOCK:]
    return {
        "first_line": lines.number(own[0]),
        "root_line": lines.number(root),
        "root": lines.line(root).text[:_MAX_LINE],
        "lines": [lines.line(i).text[:_MAX_LINE] for i in own],
        "numbers": [lines.number(i) for i in own],
    }


def _errors(log: _Log) -> list[int]:
    """Error lines of the last start that has any, in a log that holds several (a container that restarted)."""
    errors = [index for index in log.marked if error_lines.is_error(log.line(index))]
    starts = [index for index in log.marked if phases.BANNER.search(log.line(index).text)]
    for start in reversed(starts[1:]):
        if errors and errors[-1] > start:
            return [index for index in errors if index > start]
    return errors


def _root(log: _Log) -> int | None:
    """Index of the line that names the cause."""
    errors = _errors(log)
    if not errors:
        return None
    # Where the log holds echoes only, the first of them is all there is to show.
    first = next((index for index in errors if not error_lines.is_echo(log.line(index))), errors[0])
    text = log.line(first).text
    if error_lines.VALIDATION.search(text):  # the reason stands in the next line
        near = range(first + 1, min(first + 6, len(log.raw)))
        return next((index for index in near if error_lines.VALUE.match(log.line(index).text)), first)
    if "out of memory" in text:  # the engine's own words that follow carry the numbers
        return next((i for i in errors if i >= first and error_lines.FRIENDLY.search(log.line(i).text)), first)
    return first


def _block_start(log: _Log, root: int) -> int:
    """Where the traceback of the root line begins: same process, nothing but its frames between."""
    process, start = log.line(root).process, root
    for index in range(root - 1, max(-1, root - 400), -1):
        line = log.line(index)
        if line.process != process:
            continue
        if line.text.startswith("Traceback (most recent call last)"):
            return index
        framed = line.text.startswith((" ", "\t")) or not line.text or line.level == "ERROR"
        if not framed:
            break
        start = index
    return start


# --- the phase -------------------------------------------------------------------------------------------------------


def _phase_reached(log: bytes, given: Sequence[Mapping[str, Any]], block: Mapping[str, Any]) -> str:
    """The phase in which it failed: what the error's own frames say, else how far the log came."""
    state = phases.feed(log[-MAX_LOG_BYTES:], {}, 0.0)
    # A long log has lost its beginning by now, and a parser that saw it knows better.
    marked = max(phases.current(state), str(given[-1]["code"]) if given else "start", key=phases.ORDER.index)
    if not block or marked in ("serving", "answered"):
        return marked
    hinted = error_lines.framed(block["lines"])
    if not hinted and marked == "load" and "weights_gib" in state["facts"]:
        return "profile"  # the weights were in, so the memory was being measured
    return hinted or marked
