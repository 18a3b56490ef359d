"""What a reader of logs looks for before it looks closely: words, stamps of a new start, stops, hints. Pure."""

from __future__ import annotations

import re

FRAME = b'  File "'
# Every line that tells of a failure holds one of these (a test compares them with the examples of all rules). A flood
# of ever new lines is searched for the first ones only.
CORE_WORDS: tuple[bytes, ...] = (
    b"rror", b"xception", b"ailed", b"illed", b"nterrupt", b" fault", b"llegal", b"NCCL WARN", b"Input should", b"n't ",
    b"ut of memory", b" died", b"xited",
)  # fmt: skip
ERROR_WORDS: tuple[bytes, ...] = (
    *CORE_WORDS, b" E ", b"fatal", b"preempted", b"No available", b"Xid", b"ASSERT", b"sigquit", b"insufficient",
    b"compatible", b"VRAM", b"magic", b"atchdog", b"SIGTERM", b"OutOf", b"trap invalid", b"terminate", b"too large", b"of-memory", b"=ERROR", b"does not exist", b" dead", b"oom",
    b"unable to", b"bounds", b"fallen", b"exc.", b"enied", b"SIGSEGV", b"egfault", b"No module", b"unavailable", b"not found",
)  # fmt: skip
# Every line that tells a phase or a new start holds one of these.
CORE_MARKS: tuple[bytes, ...] = (b"version", b"server_args", b"startup", b"fired up", b"istening", b"aptur")
MARK_WORDS: tuple[bytes, ...] = (
    *CORE_MARKS, b"platform", b"args", b"usage: ", b"rchitecture", b"max model len", b"multiple tasks", b"prefill",
    b"nitializing", b"rontend to", b"engine process", b"worker ready", b"nccl", b"world", b"DP group", b"assigned as", b"P2P access",
    b"backend", b"Model Runner", b"oading", b"Load", b"checkpoint", b"cache", b"ytecode", b"ompil", b"rofiling",
    b"instance can", b"KV", b"blocks", b"oncurrency", b"init engine", b"upported", b"Starting", b"routes", b"INFO:  ",
    b"throughput", b"Dumping input", b"torch dist", b"eight ", b"Memory pool", b"build", b"n_ctx", b"tensors: ",
    b"starting", b"slots", b"loaded", b"runner started", b"weights", b"constructing", b"FlashAttention", b"the graph", b"graph memory",
    b"Decode ", b"graph addresses", b"graph pool", b"ctual usage", b"compute graph", b"compute buffer", b" device=",
)  # fmt: skip
# What a serving engine may still print: a new start, a stop, and errors.
SERVING_WORDS: tuple[bytes, ...] = (b"version", b"server_args", b"shutdown", b"Shutting", b"build", b"Dumping input")

NEW_START = re.compile(
    r"[█▄▀] +version \d+\.\d+\S*$|vLLM API server version |server_args=ServerArgs\(|"
    r"^(?:main: )?build(?: =|:) \d+|^(?:srv +)?llama_server: initializing|msg=\"Listening on "
)
STOP = re.compile(
    r"\[shutdown\] API server: shutdown triggered|trigger received signal=SIGTERM|^INFO: +Shutting down|"
    r"SIGTERM received|Received SIGTERM|Gracefully shutting down|cleaning up before exit"
)
SERVER_PLACE = re.compile(
    r"(?:[\w./]*/)?(?:serving\w*|api_server|api_router|server_utils|launcher|entry|protocol|chat_utils|base)\.py"
)
HEADER = re.compile(
    r"validation errors? for |^\S*BackendCompilerFailed: .*raised:\s*$|^\S+Error: backend=.*raised:\s*$"
)
VALUE = re.compile(r"^\s*(?:Value error|Assertion failed|Input should|Extra inputs|Field required|Unexpected keyword)")
FIELD = re.compile(r"^[a-z_][\w.]*$")
SKIPPED = re.compile(r"^(?:    |\t|raise |File \"|-+> |\d+ +\S|\^|return |self\.|~+\^)")
WARNED = re.compile(r"engine core exited unexpectedly|Failed to import from vllm\._C|is preempted by|No available shared memory"
                     r"|NewLlamaServer failed|no compatible GPUs|low vram mode|VRAM usage didn|failed to measure the memory|oom-kill|Out of memory: Kill")  # fmt: skip
HINTS: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("sglang", (b"sglang", b"server_args=ServerArgs", b"sgl_kernel", b"--mem-fraction-static", b"sigquit from a child",
                b"Supported list: [", b"router init state")),
    ("vllm", (b"vLLM", b"/vllm/", b"\\vllm\\", b"vllm serve", b"vllm: error", b"VllmWorker", b"EngineCore", b"vllm.")),
    ("ollama", (b"ollama", b".go:", b"[GIN] 20")),
    ("llamacpp", (b"llama-server", b"llama_model_load", b"llama_server", b"llm_load", b"ggml_", b"gguf_init", b"llama_context",
                  b"llama_init", b"common_chat_templates", b"common_init", b"clip_init:", b"mtmd_init", b"clip_model_loader:")),
)  # fmt: skip


OPTION = re.compile(r"['\"]?\b(tensor_parallel_size|max_model_len|gpu_memory_utilization|max_num_seqs|max_num_batched_tokens|"
                     r"pipeline_parallel_size|model|quantization|dtype|tp_size|mem_fraction_static|context_length|port)['\"]?"
                     r"[=:] ?(?:'([^']*)'|([\w./-]+))")  # fmt: skip
# Warnings of Python, of loggers without a form of their own, and of compiled parts.
WARNING = re.compile(
    r"(?:WARN(?:ING)?|INFO|DEBUG)\b[: ]|\[W\d|W\d{4} |\S+:\d+: \w*Warning: |warnings\.warn|[Ww]arning: "
)
# What begins the traceback of something that the engine goes on without.
ASIDE = re.compile(
    r"Exception (?:in thread|ignored in)|(?:Task|Future) exception was never retrieved|Error in sys\.excepthook|"
    r"Error (?:saving|loading) model info cache|--- Logging error ---"
)
CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
# Errors that healthy engines print while they start: what is tried again, and what is optional.
HARMLESS = re.compile(
    r"\[Autotuner\]|"
    r"Error retrieving (?:safetensors|file list)|, retrying \d+ of |Ignore import error|ggml_cuda_init: failed|"
    r"HandlerFileNotFoundError|pip's dependency resolver"
)

_WANTED = {
    (True, False): CORE_WORDS + CORE_MARKS,
    (True, True): CORE_WORDS + CORE_MARKS,
    (False, False): ERROR_WORDS + MARK_WORDS,
    (False, True): ERROR_WORDS + SERVING_WORDS,
}


def wanted(*, flood: bool, served: bool) -> tuple[bytes, ...]:
    """Words of which a line holds one that is looked at: few in a flood, others once it takes requests."""
    return _WANTED[flood, served]


def may_start(text: str) -> bool:
    """A quick look before `NEW_START`."""
    return "ersion" in text or "server_args" in text or "build" in text or "nitializing" in text or "Listening" in text


def may_stop(text: str) -> bool:
    """A quick look before `STOP`."""
    return "hutdown" in text or "SIGTERM" in text or "hutting" in text or "cleaning" in text
