"""Which of the lines that a reader kept is the cause: the earliest that is fatal, save a few exceptions. Pure."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deployments.diagnosis import error_lines, offers, phases, told
from deployments.diagnosis.found import Found, Start
from deployments.diagnosis.reader import MAX_MATCHED, Reader, match
from deployments.diagnosis.result import Diagnosis, Evidence
from deployments.diagnosis.root import GENERIC, RAY_MEMORY, VANISHED, root_of
from deployments.diagnosis.rule import Rule
from deployments.diagnosis.rules import BY_CODE, doc_of
from deployments.diagnosis.weighed import weighed


def diagnose(
    reader: Reader, *, exit_code: int | None = None, signal: int | None = None, evidence: Evidence | None = None
) -> Diagnosis:
    """The diagnosis of what was read. An exit code above 128 is the signal that a wrapper reported."""
    reader.flush()
    known = evidence or Evidence()
    number = signal or (exit_code - 128 if exit_code is not None and 128 < exit_code < 128 + 65 else 0)
    start = _start(reader, exit_code, number)
    # What it said before it was up did not keep it from coming up.
    found = [_matched(item, reader.engine) for item in (start.late if start.up else start.all)]
    root = root_of(found, start, reader.engine)
    if root is None and any(item.rule and item.rule.code == "run.engine_dead" for item in found):
        root = root_of(start.found, start, reader.engine)  # the beginning of the log is lost: it was up already
    if root is None or (root.kind == "peer" and number in _BY_SIGNAL):  # a signal is why the others lost it
        return _without(reader, start, found, exit_code, number, known)
    rule, root = _refined(root, found, start, reader.engine)
    if rule.code == "gguf.dir" and known.format == "hf":  # the engine has the same words for both
        rule = BY_CODE["config.json_missing"]
    if rule.code == "mem.host_oom_killed" and known.oom == "none" and "exited unexpectedly" in root.text:
        rule = BY_CODE["run.worker_died"]  # it vanished, and the kernel says that it ended nothing
    gone = rule.code == "dist.peer_gone" or (rule.code == "run.worker_died" and VANISHED.search(root.text))
    if gone and known.oom in _VANISHED:
        rule = BY_CODE["mem.host_oom_killed"]  # it vanished, and the kernel ended something then
    phase = phase_of(root, rule, start)
    rule = _by_phase(rule, phase, reader.engine)
    return _built(reader, start, found, root, rule, phase, _confidence(root, rule, number, known), known)


def _start(reader: Reader, exit_code: int | None, number: int) -> Start:
    """The start to explain: the last one that failed."""
    last = reader.start
    telling = ("cause", "unknown", "late", "weak", "end", "peer", *(() if last.served else ("aside",)))
    if reader.failed is None or any(item.kind in telling for item in last.all):
        return last
    # Errors of imports above the first banner are none: the same process went on.
    early = phases.ORDER.index(reader.failed.phase) < phases.ORDER.index("args")
    if last.served and (exit_code == 0 or number == signals.SIGTERM or early):
        return last
    return reader.failed


def _matched(item: Found, engine: str) -> Found:
    """The engine may have become known only after a line was read."""
    if item.rule is None or item.rule.code == "config.invalid_config" or item.kind in ("echo", "late", "quiet"):
        return item
    rule, groups = match(engine, item.text[:MAX_MATCHED])
    if rule is not None and rule is not item.rule:
        item.rule, item.groups, item.kind = rule, groups, rule.role
    return item


# --- what engines do differently --------------------------------------------------------------------------------------


def _refined(root: Found, found: Sequence[Found], start: Start, engine: str) -> tuple[Rule, Found]:
    """The rule of the root line, or of a better line that belongs to it."""
    rule = root.rule or BY_CODE["run.bug"]
    for look in (
        _out_of_memory,
        _between_gpus,
        _crash,
        _extension,
        _hub,
        _broken_name,
        _broken_json,
        _one_gpu,
        _llamacpp,
    ):
        better = look(rule, root, found, start, engine)
        if better is not None:
            return better
    return rule, root


Better = tuple[Rule, Found] | None


def _pick(found: Sequence[Found], *codes: str, after: int = 0) -> Found | None:
    return next((item for item in found if item.rule and item.rule.code in codes and item.number >= after), None)


def _out_of_memory(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """The engine's own words after a bare "out of memory" carry the numbers."""
    if rule.code not in ("mem.oom_profile", "sglang.oom"):
        return None
    said = _pick(found, "mem.oom_sampler", "mem.oom_compile", "mem.oom_load", "sglang.graph_oom", after=root.number)
    return (said.rule, said) if said and said.rule and said.kind != "late" else None


def _between_gpus(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """NCCL prints why beside the exception, above it or below."""
    if "nccl" not in rule.code:
        return None
    shared = _pick(found, "env.shm", "sglang.shm")
    if shared and shared.rule:
        return shared.rule, shared
    warned = next((item for item in found if "NCCL WARN" in item.text and item.rule), None)
    return (warned.rule, warned) if warned and warned.rule else None


def _crash(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """A signal is reported before Python says where it was."""
    if rule.code != "run.segfault":
        return None
    said = next((item for item in found if item.rule is rule and item.text.startswith("Fatal Python error")), None)
    return (rule, said) if said else None


def _extension(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """A compiled part that is absent was reported as a warning when it failed to load."""
    if rule.code != "env.ext_not_built":
        return None
    warned = next((item for item in found if item.kind == "quiet" and item.rule), None)
    return (warned.rule, warned) if warned and warned.rule and warned.rule.code != rule.code else None


def _hub(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """The hub answers 401 for a model that does not exist, too."""
    if rule.code != "hub.gated" or "401" not in root.text:
        return None
    texts = " ".join(item.text for item in found if item.number >= root.number)
    absent = "RepositoryNotFoundError" in texts and "gated" not in texts.lower()
    return (BY_CODE["hub.not_found"], root) if absent else None


def _broken_name(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """While it builds the sentence that the GPU lacks bfloat16, the engine fails to read the GPU's name."""
    frames = "\n".join(root.lines)
    if root.text.startswith("UnicodeDecodeError") and re.search(r"get_device_name|get_physical_device_name", frames):
        return BY_CODE["dtype.bf16_cc"], root
    return None


def _broken_json(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """The exception does not say which file it was; who read it does."""
    bare = rule.code == "config.json_invalid" and "JSONDecodeError" in root.text
    return (BY_CODE["tok.invalid"], root) if bare and "/tokenization_" in "\n".join(root.lines) else None


def _one_gpu(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """Sizes that do not fit: cut wrongly on several GPUs, the wrong configuration on one."""
    sizes = re.search(r"size of tensor a|start \(0\) \+ length", root.text)
    if rule.code == "tp.quant_shard" and sizes and error_lines.framed(root.lines) in ("profile", "compile", "graph"):
        return BY_CODE["run.bug"], root  # the model computed already
    alone = start.options.get("tensor_parallel_size") == "1"
    return (BY_CODE["load.shape_mismatch"], root) if rule.code == "tp.quant_shard" and sizes and alone else None


def _llamacpp(rule: Rule, root: Found, found: Sequence[Found], start: Start, engine: str) -> Better:
    """A second file (helper model, pictures, adapter) fails in the same words as the model itself."""
    if engine not in ("llamacpp", "ollama"):
        return None
    for code in ("llamacpp.draft", "llamacpp.mmproj", "llamacpp.lora"):
        second = _pick(found, code)
        if second is None or second.rule is None:
            continue
        if code == "llamacpp.draft":
            before = [item for item in found if second.number - 6 < item.number < second.number]
            line = next((item for item in before if "error loading model" in item.text), second)
        else:
            line = next((item for item in found if item.text.startswith("clip_init: failed")), second)
        return second.rule, line
    if rule.code in ("llamacpp.oom_load", "llamacpp.oom_kv"):
        return _llamacpp_memory(rule, root, found)
    return None


def _llamacpp_memory(rule: Rule, root: Found, found: Sequence[Found]) -> Better:
    """The same words for weights, context and work space: what follows tells which."""
    if root.phase != "kvcache":
        bare = "insufficient memory" in root.text and root.phase == "load" and not _pick(found, "llamacpp.oom_compute")
        context = any("failed to initialize the context" in item.text for item in found)
        return (BY_CODE["llamacpp.oom_load"], root) if bare and not context else None
    work = _pick(found, "llamacpp.oom_compute", after=root.number)
    if work and work.rule:
        return work.rule, work
    return (BY_CODE["llamacpp.oom_kv"], root) if rule.code == "llamacpp.oom_load" else None


# --- phase ------------------------------------------------------------------------------------------------------------


def phase_of(root: Found, rule: Rule, start: Start) -> str:
    """In which phase it failed: what the class or the error's own frames say, else how far the log came."""
    if root.served and (rule.code.startswith("http.") or rule.code.endswith(".port_in_use")):
        return "http"  # older servers take their port last
    # A program for the GPU that fails at the first request says so before the engine does.
    if root.served or root.phase == "serving" or (root.phase == "http" and start.served and not rule.phase):
        return "serving"
    if rule.code.startswith("nccl.") and phases.RANK[root.phase] > phases.RANK["load"]:
        return root.phase
    fixed = bool(rule.phase) and rule.code not in _PHASE_BY_LOG
    framed = "" if fixed and rule.code not in _MOVED else error_lines.framed(root.lines)
    if fixed:
        return framed or rule.phase
    if framed:
        return framed
    if root.phase in ("start", "import", "args") and any("/huggingface_hub/" in line for line in root.lines):
        return "config"  # the first thing that is fetched
    if root.phase == "start":
        return _without_a_head(rule, start)
    if root.phase == "load" and root.weights_in:
        return "profile"
    return root.phase


def _without_a_head(rule: Rule, start: Start) -> str:
    """Nothing before the error tells the phase: the beginning of the log is lost."""
    if rule.code == "mem.oom_profile":
        return "load"  # where memory runs out most often
    if rule.phase:
        return rule.phase
    if start.phase in ("dist", "device", "load", "compile", "profile", "kvcache", "graph"):
        return start.phase  # other processes went on for a while
    return _USUAL.get(rule.code, "import" if rule.code.startswith(("env.", "sglang.")) else "start")


_USUAL = {
    "env.permission": "config", "env.uid": "config", "env.disk_full": "load", "env.flashinfer_jit": "profile",
    "gpu.no_kernel_image": "profile", "gpu.illegal_memory": "profile", "gpu.triton_arch": "profile",
}  # fmt: skip
_PHASE_BY_LOG = ("mem.oom_profile", "gpu.triton_arch", "sglang.no_kernel_image")
# Checks that stand elsewhere in other versions, and programs that are built at several points: frames know better.
_MOVED = (
    "gpu.triton_ptx", "gpu.triton_smem", "quant.gpu_capability", "gguf.arch_unsupported", "attn.no_backend",
    "attn.backend_unavailable", "env.numpy2", "mem.gpu_busy", "quant.no_kernel",
)  # fmt: skip
_OOM_OF_PHASE = {
    "start": "mem.oom_load", "import": "mem.oom_load", "args": "mem.oom_load", "config": "mem.oom_load",
    "dist": "mem.oom_load", "device": "mem.oom_load", "load": "mem.oom_load", "tokenizer": "mem.oom_load",
    "graph": "mem.oom_graph", "http": "mem.oom_graph", "serving": "mem.oom_runtime", "answered": "mem.oom_runtime",
}  # fmt: skip


def _by_phase(rule: Rule, phase: str, engine: str) -> Rule:
    """The same words mean different things in different phases."""
    return BY_CODE[_OOM_OF_PHASE.get(phase, rule.code)] if rule.code == "mem.oom_profile" else rule


# --- how sure ---------------------------------------------------------------------------------------------------------


def _confidence(root: Found, rule: Rule, number: int, evidence: Evidence) -> float:
    if root.rule is None:
        return 0.3
    if rule.code in GENERIC or rule.code == "config.invalid_config":
        return 0.45
    if rule.code == "mem.host_oom_killed":
        if root.rule is not rule:  # another process is gone, and only the kernel says why
            return _VANISHED.get(evidence.oom, 0.65)
        ended = number == signals.SIGKILL or "exited unexpectedly" in root.text or RAY_MEMORY.search(root.text)
        return 0.95 if evidence.oom == "just_before" else 0.85 if ended else 0.65
    return {"cause": 0.95, "end": 0.9, "late": 0.85, "request": 0.8, "peer": 0.6}.get(root.kind, 0.7)


# How sure it is that a KILL, or a core that vanished, was the kernel's for lack of memory. Its count is that of all
# who share the memory: alone it never says so.
_KILLED = {"none": 0.3, "unknown": 0.65, "meanwhile": 0.85, "just_before": 0.95}
_VANISHED = {"meanwhile": 0.75, "just_before": 0.95}
# (class, how sure) of an end by a signal of which the log says nothing.
_BY_SIGNAL: dict[int, tuple[str, float]] = {
    signals.SIGILL: ("env.sigill", 0.9),
    signals.SIGKILL: ("mem.host_oom_killed", 0.65),
    signals.SIGSEGV: ("run.segfault", 0.85),
    signals.SIGBUS: ("env.shm", 0.65),
    signals.SIGABRT: ("run.worker_died", 0.5),
    signals.SIGINT: ("user.interrupted", 0.8),
    signals.SIGHUP: ("run.killed", 0.8),
}


def _without(
    reader: Reader, start: Start, found: Sequence[Found], exit_code: int | None, number: int, evidence: Evidence
) -> Diagnosis:
    """No line tells: the way it ended may."""
    facts = _facts(reader, start, evidence)
    code, sure = _BY_SIGNAL.get(number, ("", 0.0))
    if code == "mem.host_oom_killed":
        sure = _KILLED[evidence.oom]
    died = next((item for item in found if item.kind == "echo"), None)
    gone = died is not None and not start.stopped and number not in (signals.SIGTERM, signals.SIGINT)
    if not code and gone and died and died.rule and died.rule.code in ("run.engine_dead", "run.startup_wrapper"):
        # The core vanished without a word: a raised error would have been printed.
        # Where the beginning of the log is lost, so may be the error.
        code, sure = "mem.host_oom_killed", _VANISHED.get(evidence.oom, 0.4 if start.phase == "start" else 0.62)
        if evidence.oom == "none":  # the kernel says that it was someone else
            code = "run.worker_died"
    failed = bool(code) or (exit_code not in (None, 0) and number != signals.SIGTERM) or gone
    if not code:
        shown = died if gone else None
        empty = Diagnosis("", start.phase, failed=failed, facts=facts, phases=_phases(start))
        return (
            replace(empty, root_line=shown.number, root=shown.text, lines=shown.lines, numbers=shown.numbers)
            if shown
            else empty
        )
    rule = BY_CODE[code]
    sure = weighed(code, sure, evidence, {})
    phase = rule.phase if rule.phase and start.phase == "start" else start.phase
    offered = offers.offers(rule, {}, facts, evidence)
    return Diagnosis(code, phase, died.number if died else None, died.text if died else "", sure, rule.title, rule.why,
                     doc_of(rule), rule.curable, True, offered, facts, died.lines if died else (),
                     died.numbers if died else (), phases=_phases(start),
                     told=told.of(rule, "", facts, evidence).as_dict())  # fmt: skip


def _phases(start: Start) -> tuple[dict[str, Any], ...]:
    return tuple(phases.phases_of(start.state))


def _facts(reader: Reader, start: Start, evidence: Evidence) -> dict[str, Any]:
    facts: dict[str, Any] = {"engine": reader.engine or "vllm", "starts": reader.starts, **start.state["facts"]}
    if start.options:
        facts["options"] = dict(start.options)
    if evidence.changed:
        facts["changed"] = {name: list(pair) for name, pair in evidence.changed.items()}
    return facts


def _built(
    reader: Reader,
    start: Start,
    found: Sequence[Found],
    root: Found,
    rule: Rule,
    phase: str,
    sure: float,
    evidence: Evidence,
) -> Diagnosis:
    facts = _facts(reader, start, evidence)
    groups = {**root.groups}
    if root.rule is not rule and (own := rule.match(root.text)):
        groups = {name: value for name, value in own.groupdict().items() if value is not None}
    facts |= {f"log_{name}": value for name, value in groups.items()}
    out = [(item.rule.code, item.number) for item in found
           if item.rule and item is not root and item.rule.code != rule.code]  # fmt: skip
    offered = offers.offers(rule, groups, facts, evidence)
    return Diagnosis(
        rule.code, phase, root.number, root.text, weighed(rule.code, sure, evidence, groups), rule.title, rule.why,
        doc_of(rule), rule.curable, rule.role != "request", offered, facts, root.lines[-40:], root.numbers[-40:],
        tuple(dict(out).items())[:6], _phases(start), told.of(rule, root.text, facts, evidence, root.clock).as_dict(),
    )  # fmt: skip
