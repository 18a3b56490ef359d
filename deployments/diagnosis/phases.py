"""Phases of an engine's start, read from its log as it grows. vLLM 0.6 to 0.33. Pure.

`feed(chunk, state, now)` takes the next bytes and gives the next state, which is plain JSON and may be kept between
calls (an empty one is a fresh start). Times are Unix seconds that the caller passes in; `clock` is the log's own stamp
of the moment, where it has one.

A phase is *begun* by its first marker and ended by the first marker of a later one. Markers of an earlier phase never
lead back, but a new start in the same file (its banner) begins anew.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.diagnosis import notices
from deployments.diagnosis.lines import Line, clean
from deployments.diagnosis.rule import literals_of

State = dict[str, Any]

ORDER = (
    "start",  # the process runs, nothing was printed yet
    "import",
    "args",
    "config",
    "dist",
    "device",
    "load",
    "tokenizer",
    "compile",
    "profile",
    "kvcache",
    "graph",
    "http",
    "serving",
    "answered",
)
# The eight steps that a person sees. `placed` is the panel's own; the rest are phases of the log.
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("placed", ()),
    ("process", ("start", "import", "args")),
    ("config", ("config", "dist", "device")),
    ("weights", ("load", "tokenizer")),
    ("memory", ("compile", "profile", "kvcache")),
    ("graphs", ("graph",)),
    ("server", ("http", "serving")),
    ("answered", ("answered",)),
)
_STEP_RANK = {phase: rank for rank, (_step, phases) in enumerate(STEPS) for phase in phases}
RANK = {code: rank for rank, code in enumerate(ORDER)}
_MAX_PARTIAL = 64 << 10  # a longer line without an end is taken as it is
_MAX_FACT = 200  # characters; keeps every number finite, as JSON wants it

# (phase, pattern). The first match decides; patterns are tried only on lines that hold one of the words below.
_MARKERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        ("import", r"(Automatically detected platform|No platform detected|Failed to import from vllm\._C)"),
        ("args", r"(vLLM API server version |[█▄▀] +version \d)"),
        ("args", r"(non-default args: |args: Namespace\()"),
        ("args", r"^(usage: vllm|vllm( serve)?: error: |api_server\.py: error: )"),
        ("config", r"(Resolved architecture: |Using max model len )"),
        ("config", r"Error in inspecting model architecture"),
        ("config", r"(This model supports multiple tasks|Chunked prefill is enabled)"),
        ("config", r"(Initializing an? (LLM|V0 LLM|V1 LLM) engine \(v|Multiprocessing frontend to use)"),
        ("dist", r"(Started engine process with PID|worker ready; awaiting tasks)"),
        ("dist", r"(vLLM is using nccl==|^world_size=\d+ rank=)"),
        ("dist", r"(is assigned as DP rank|DP group leader: )"),
        ("dist", r"(Found nccl from library|generating GPU P2P access cache)"),
        ("device", r"(Using \S+( Attention)? (attention )?backend|Using V2 Model Runner|Cannot use FlashAttention)"),
        ("load", r"(Starting to load model |Loading (safetensors|pt) checkpoint shards:)"),
        ("load", r"(Loading weights took |Model loading took )"),
        ("load", r"(Loading model weights took |Filesystem type for checkpoints)"),
        ("load", r"(Loading .*checkpoint shards|Initializing model took)"),
        ("load", r"(Failed to load model - not enough GPU memory|Using model weights format)"),
        ("compile", r"(Using cache directory: .*torch_compile_cache)"),
        ("compile", r"(Using cache directory: .* for vLLM's torch\.compile)"),
        ("compile", r"(Dynamo bytecode transform time|Compiling a graph for )"),
        ("compile", r"(Cache the graph of|Directly load the compiled graph)"),
        ("compile", r"(torch\.compile (takes|took) |Initial profiling/warmup run took)"),
        ("compile", r"(Warming up model for the compilation)"),
        ("profile", r"(Memory profiling takes |the current vLLM instance can use|model weights take [\d.]+ ?GiB)"),
        ("profile", r"(Encoder cache will be initialized with a budget)"),
        ("profile", r"(Estimated CUDA graph memory|Profiling CUDA graph memory)"),
        ("kvcache", r"(Available KV cache memory: |[GC]PU KV cache size: )"),
        ("kvcache", r"(# (GPU|cuda|CPU|cpu) blocks: |Explicitly set \(.*KV cache)"),
        ("kvcache", r"(Auto set \(.*for KV cache|Maximum concurrency for |reserved \d.*KV Cache)"),
        ("graph", r"(Capturing the model for CUDA graphs|Capturing cudagraphs for)"),
        ("graph", r"(Capturing CUDA graph|Graph capturing finished)"),
        ("graph", r"Registering \d+ cuda graph addresses"),
        ("graph", r"(CUDA graph pool memory: |Actual usage is [\d.]+ GiB for)"),
        ("http", r"(init engine \(profile, create kv cache, warmup model\) took|Supported tasks: \[)"),
        ("http", r"(Supported_tasks: \[)"),
        ("http", r"(Starting vLLM (API )?server|Available routes are:)"),
        ("http", r"(^INFO: +(Started server process|Waiting for application))"),
        ("serving", r"^INFO: +(Application startup complete|Uvicorn running on)"),
        ("serving", r"(Avg prompt throughput: |Dumping input data for)"),
        ("serving", r"^INFO: +\S+:\d+ - \"POST /v1/\S+ HTTP/1\.1\" \d"),
        # SGLang
        ("args", r"server_args=ServerArgs\("),
        ("dist", r"Init torch distributed (begin|ends)"),
        ("load", r"Load weight (begin|end)"),
        ("kvcache", r"(KV Cache is allocated|Memory pool end)"),
        ("graph", r"Capture cuda graph (begin|end|bs)"),
        ("serving", r"(The server is fired up and ready to roll|Decode batch\. |Decode out of memory happened)"),
        # llama.cpp
        ("import", r"^(main: )?build( =|:) \d+"),
        ("load", r"load_model: loading model|llama_model_loader: loaded meta data|^main: loading model"),
        ("load", r"(llm_)?load_tensors: "),
        ("kvcache", r"llama_context: (n_ctx|constructing)|llama_new_context_with_model: n_ctx"),
        ("kvcache", r"llama_kv_cache\w*: .*(KV buffer|size = )|KV self size|: +\w+ compute buffer size = "),
        ("http", r"^(srv|main)\b.*(: model loaded|init: +initializing slots)"),
        ("serving", r"(server is|llama_server:) listening on http|starting the main loop|all slots are idle"),
        # Ollama
        ("http", r"msg=\"Listening on |Listening on \S+:\d+ \(version"),
        ("load", r"msg=\"(starting llama[ -]server|starting runner|starting go runner)"),
        ("load", r"msg=\"model weights\" device="),
        ("kvcache", r"msg=\"(kv cache|compute graph)\" device="),
        ("serving", r"llama runner started in "),
    )
)  # fmt: skip
# The same with a text that each match holds: most lines hold none, and a look for a text costs little.
_BY_TEXT: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (text, code, pattern) for code, pattern in _MARKERS for text in literals_of(pattern.pattern)
)
_WORDS = re.compile(
    r"platform|Failed to import|version|args|usage|error: |architecture|max model len|supports multiple|prefill|"
    r"Initializing|Multiprocessing|engine process|worker ready|nccl|world_size|assigned|leader|backend|Model Runner|"
    r"Cannot use|oad|Filesystem|checkpoint|cache|bytecode|ompil|rofiling|instance can use|KV|blocks|concurrency|"
    r"aptur|init engine|upported|Starting vLLM|routes|INFO:  |throughput|world size|P2P|Dumping|server_args|torch dist|"
    r"eight (?:begin|end)|Memory pool|fired up|build|n_ctx|constructing|istening|starting|runner started|slots|loaded|"
    r"odel weights|ctual usage|graph pool|compute (?:buffer|graph)|kv cache|" + "|".join(map(re.escape, notices.WORDS))
)
BANNER = re.compile(r"([█▄▀] +version \d+\.\d+\S*$|vLLM API server version )")
_PROGRESS = re.compile(
    r"(?P<what>Loading .*?checkpoint shards|Capturing [^:]*).*?\|\s*(?P<done>\d{1,9})/(?P<total>\d{1,9})\b"
)

Fact = tuple[str, re.Pattern[str], Callable[[str], Any]]


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _sum(text: str) -> float:
    """ "32.41 GB, V size: 32.41" → both."""
    return sum(float(number) for number in re.findall(r"\d+(?:\.\d+)?", text))


def _mib(text: str) -> float:
    """In GiB."""
    return round(float(text) / 1024, 4)


def _size(text: str) -> float:
    """ "1.2 GiB", "512.0 MiB" in GiB."""
    number, unit = text.split()
    return round(float(number) / {"K": 1 << 20, "M": 1 << 10, "G": 1}[unit[0]], 4)


_FACTS: tuple[Fact, ...] = (
    ("version", re.compile(r"(?:API server version |engine \(v|[█▄▀] +version )(\d+\.\d+[\w.+]*)(?:\)| *$)"), str),
    ("architecture", re.compile(r"Resolved architecture: (\w+)"), str),
    ("max_model_len", re.compile(r"Using max model len (\d+)"), int),
    ("auto_max_model_len", re.compile(r"[Aa]uto-fit max_model_len.*? (\d[\d,]*) *(?:tokens|\(|$)"), _whole),
    ("weights_gib", re.compile(r"Model loading took ([\d.]+) Gi?B"), float),
    ("weights_gib", re.compile(r"Loading model weights took ([\d.]+) Gi?B"), float),
    ("checkpoint_gib", re.compile(r"Checkpoint size: ([\d.]+) GiB"), float),
    ("load_s", re.compile(r"Loading weights took ([\d.]+) seconds"), float),
    ("compile_s", re.compile(r"torch\.compile (?:takes|took) ([\d.]+) s in total"), float),
    ("kv_gib", re.compile(r"Available KV cache memory: ([\d.]+) GiB"), float),
    ("kv_gib", re.compile(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache"), float),
    ("kv_tokens", re.compile(r"KV cache size: ([\d,]+) tokens"), _whole),
    ("concurrency", re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"), float),
    ("graphs_gib", re.compile(r"Graph capturing finished in [\d.]+ secs?, took ([\d.]+) GiB"), float),
    ("engine_s", re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"), float),
    ("attention", re.compile(r"Using (\S+) (?:attention |Attention )?backend"), str),
    ("context", re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: \d"), _whole),
    ("kv_blocks", re.compile(r"# (?:GPU|cuda) blocks: ([\d,]+)"), _whole),
    ("kv_gib", re.compile(r"reserved for KV Cache is ([\d.]+) ?GiB"), float),
    ("weights_gib", re.compile(r"model weights take ([\d.]+) ?GiB"), float),
    ("activation_gib", re.compile(r"torch peak memory increase: ([\d.]+) ?GiB"), float),
    ("activation_gib", re.compile(r"activation peak memory takes ([\d.]+) ?GiB"), float),
    ("activation_gib", re.compile(r"([\d.]+) GiB for peak activation"), float),
    ("overhead_gib", re.compile(r"non-torch forward increase memory: ([\d.]+) ?GiB"), float),
    ("overhead_gib", re.compile(r"non_torch_memory takes ([\d.]+) ?GiB"), float),
    ("overhead_gib", re.compile(r"([\d.]+) GiB for non-torch memory"), float),
    ("graphs_foreseen_gib", re.compile(r"Estimated CUDA graph memory: ([\d.]+) GiB"), float),
    ("graphs_gib", re.compile(r"CUDA graph pool memory: ([\d.]+) GiB \(actual\)"), float),
    # SGLang
    ("weights_gib", re.compile(r"Load weight end\..*?mem usage=([\d.]+) GB"), float),
    ("kv_tokens", re.compile(r"KV Cache is allocated.*?#tokens: (\d+)"), int),
    ("kv_gib", re.compile(r"KV Cache is allocated.*?KV? size: ([\d.]+(?: GB, V size: [\d.]+)?) GB"), _sum),
    ("graphs_gib", re.compile(r"Capture cuda graph end\..*?mem usage=([\d.]+) GB"), float),
    # llama.cpp: of the first GPU, and the cache of all devices
    ("weights_gib", re.compile(r"(?:CUDA|ROCm|Vulkan)0 model buffer size = +([\d.]+) MiB"), _mib),
    ("activation_gib", re.compile(r"(?:CUDA|ROCm|Vulkan)0 compute buffer size = +([\d.]+) MiB"), _mib),
    ("kv_gib", re.compile(r"(?:llama_kv_cache\w*: +size|KV self size) += +([\d.]+) MiB"), _mib),
    ("context", re.compile(r"llama_context: n_ctx += (\d+)"), int),
    # Ollama
    ("weights_gib", re.compile(r"msg=\"model weights\" device=(?!CPU)\S+ size=\"([\d.]+ [KMG]iB)\""), _size),
    ("kv_gib", re.compile(r"msg=\"kv cache\" device=(?!CPU)\S+ size=\"([\d.]+ [KMG]iB)\""), _size),
    ("activation_gib", re.compile(r"msg=\"compute graph\" device=(?!CPU)\S+ size=\"([\d.]+ [KMG]iB)\""), _size),
)
# Each GPU writes its own line, in any order; the one with the least is what all must do with.
_LEAST = frozenset({"kv_gib", "kv_blocks"})

_FACTS_BY_TEXT = tuple(
    (text, name, pattern, convert) for name, pattern, convert in _FACTS for text in literals_of(pattern.pattern)
)


def new_state(started: float) -> State:
    """The state of a process that has just begun; `started` is its start in Unix seconds."""
    return {"partial": "", "phases": [_phase("start", started, "")], "facts": {}, "lines": 0, "rows": 0}


def _phase(code: str, start: float, clock: str) -> dict[str, Any]:
    return {"code": code, "start": start, "end": None, "done": None, "total": None, "clock": clock}


def feed(chunk: bytes, state: Mapping[str, Any], now: float) -> State:
    """The state after these bytes. `now` is when they were written (or read). The given state is not changed."""
    state = _copy(state) if state else new_state(now)
    # Bytes stay whole, also where a chunk cuts a character in two; NUL cannot be kept in a database's JSON.
    text = state["partial"] + chunk.replace(b"\0", b" ").decode("latin-1")
    *rows, last = text.split("\n")
    # Editors number lines at \n alone. A state of an older version does not know how many it has seen.
    counted = state.get("rows") is not None
    for row in rows:
        number = state["rows"] = state["rows"] + 1 if counted else None
        for raw in row.removesuffix("\r").split("\r") if "\r" in row else (row,):
            state["lines"] += 1
            _take(state, raw, now, number or 0)
    *more, rest = re.split(r"\r(?!$)", last) if "\r" in last else [last]
    if len(rest) > _MAX_PARTIAL:
        more, rest = [*more, rest], ""
    # A progress bar ends in \r, not in \n, and its last picture matters now.
    for raw in [*more, rest[:-1]] if rest.endswith("\r") else more:
        state["lines"] += 1
        _take(state, raw, now, state["rows"] + 1 if counted else 0)
    state["partial"] = rest
    return state


def _copy(state: Mapping[str, Any]) -> State:
    return {**state, "phases": [dict(phase) for phase in state["phases"]], "facts": dict(state["facts"])}


def _take(state: State, raw: str, now: float, number: int) -> None:
    # A serving engine prints a line per request for days: only its own new start matters then.
    serving = RANK[current(state)] >= RANK["serving"]
    if not raw or (serving and "version" not in raw) or not _WORDS.search(raw):
        return
    line = clean(raw[:4000].encode("latin-1", "replace").decode("utf-8", "replace"))
    take(state, line, now)
    notices.take(state["facts"], line.text, number)


def take(state: State, line: Line, now: float) -> bool:
    """One cleaned line, into the given state. True when it told a phase."""
    if line.level == "ERROR" and "Dumping" not in line.text and "inspecting" not in line.text:
        return False  # other errors tell no phase
    code = phase_of(line)
    if not code:
        return False
    if code == "args" and RANK[current(state)] > RANK["config"] and BANNER.search(line.text):
        state["phases"], state["facts"] = [_phase("start", now, line.clock)], {}  # the engine was started anew
    _enter(state, code, now, line.clock)
    _progress(state, code, line)
    for literal, name, pattern, convert in _FACTS_BY_TEXT:
        if literal not in line.text:
            continue
        # A model's own code may print anything: a number that is none (`1.2.3`) or too long for one is no fact.
        if (found := pattern.search(line.text)) and len(found[1]) <= _MAX_FACT:
            with contextlib.suppress(ValueError):
                _learn(state["facts"], name, convert(found[1]))
    return True


def _learn(facts: dict[str, Any], name: str, value: Any) -> None:
    facts[name] = min(value, facts[name]) if name in _LEAST and name in facts else value


def phase_of(line: Line) -> str:
    """The phase that a line begins or belongs to, "" for none."""
    text = line.text
    for literal, code, pattern in _BY_TEXT:
        if literal in text and pattern.search(text):
            return code
    return ""


def _enter(state: State, code: str, now: float, clock: str) -> None:
    if RANK[code] > RANK[current(state)]:
        last = state["phases"][-1]
        last["end"] = now = max(now, last["start"])  # a clock that was put back does not turn their order round
        state["phases"].append(_phase(code, now, clock))


def _progress(state: State, code: str, line: Line) -> None:
    found = _PROGRESS.search(line.text)
    phase = state["phases"][-1]
    if not found or phase["code"] != code:
        return
    done, total = int(found["done"]), int(found["total"])
    # Two bars follow each other when graphs are captured in two ways: the second counts on.
    what = found["what"]
    if phase.get("bar") not in (None, what):
        phase["base"] = phase["total"] or 0
    phase["bar"] = what
    phase["done"], phase["total"] = phase.get("base", 0) + done, phase.get("base", 0) + total


def current(state: Mapping[str, Any]) -> str:
    """The code of the phase that was reached."""
    return str(state["phases"][-1]["code"])


def phases_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a run keeps of it: {code, start, end, done, total, clock} of every phase that was reached."""
    keys = ("code", "start", "end", "done", "total", "clock")
    return [{key: phase[key] for key in keys} for phase in state.get("phases", [])]


# --- steps for people ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepState:
    """One of the eight steps. `state`: yes (done), now, todo, or skip for one that this engine passes over."""

    code: str
    state: str
    start: float | None = None
    end: float | None = None
    done: int | None = None
    total: int | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it goes on or when nothing measured it."""
        return None if self.start is None or self.end is None else max(0.0, self.end - self.start)


def step_states(phases: Sequence[Mapping[str, Any]]) -> list[StepState]:
    """The eight steps of a run that was placed, from its phases (with `answered`, where the question was asked)."""
    by_code = {str(phase["code"]): phase for phase in phases}
    reached = max((_STEP_RANK.get(code, 1) for code in by_code), default=1)
    return [_step(rank, code, [by_code[m] for m in members if m in by_code], reached)
            for rank, (code, members) in enumerate(STEPS)]  # fmt: skip


def _step(rank: int, code: str, own: list[Mapping[str, Any]], reached: int) -> StepState:
    if not own:
        return StepState(code, "todo" if rank > reached else "now" if rank == reached else
                         "yes" if code == "placed" else "skip")  # fmt: skip
    start, end = own[0]["start"], own[-1].get("end")
    over = rank < reached or (code == "answered" and end is not None)
    bars = [phase for phase in own if phase.get("total")]
    done, total = (bars[-1]["done"], bars[-1]["total"]) if bars else (None, None)
    return StepState(code, "yes" if over else "now", start, end, done, total)
