"""Which lines are errors, which of them only echo one, and what is known of the rest: class, phase, curable. Pure.

The classes are those of the collected start failures of vLLM 0.2 to 0.33; their names are stable. This is the small
table of the first form of the diagnosis: enough to tell the phase and whether the same start may go well next time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deployments.diagnosis.lines import Line

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Expired)s?(?:: .*)?$"
    r"|^(?:[a-z_]\w*\.)+[a-z]\w*Error: "
    r"|^(?:KeyboardInterrupt|[A-Z]\w*Error\([^)].*)$"
)
_OTHER = re.compile(
    r"^vllm( serve)?: error: |^api_server\.py: error: |^Fatal Python error: |^Killed$|"
    r": error: Failures have been detected|"
    r"^Segmentation fault|^Illegal instruction|^terminate called|fatal error: \w+\.h: No such file|"
    r"^subprocess\.CalledProcessError|^ImportError|error while loading shared libraries|^Bus error"
)
_ECHO = re.compile(
    r"Engine core initialization failed|Engine process failed to start|EngineCore failed to start|"
    r"WorkerProc (initialization failed|was terminated|hit an exception)|EngineDeadError|EngineGenerate|"
    r"died, exit code: -15|BrokenPipeError|ensure_kv_transfer_shutdown|resource_tracker|destroy_process_group|"
    r"Engine loop is not running|MQEngineDeadError|Background loop has errored|"
    r"please check the stack trace above|See stack trace|HandlerFileNotFoundError|Queue <.*> is closed|"
    r"Error in sys\.excepthook|Exception ignored|CancelledError|SystemExit"
)
VALIDATION = re.compile(r"validation errors? for ")
VALUE = re.compile(r"\s*(Value error|Assertion failed|Input should)")
FRIENDLY = re.compile(r"when warming up (sampler|pooler)|Failed to load model - not enough GPU memory")


def is_error(line: Line) -> bool:
    """Whether a line ends a traceback or is an error of another kind. Notices and warnings never are."""
    text = line.text
    if line.level in ("DEBUG", "INFO", "WARNING") or not text:
        return False
    return bool(_EXCEPTION.search(text) or _OTHER.search(text))


def is_echo(line: Line) -> bool:
    """Whether it only reports an error that stands above it, or a clean-up that went wrong."""
    return _ECHO.search(line.text) is not None


@dataclass(frozen=True)
class Cause:
    """A known class of failures. `curable`: the same start may go well next time."""

    code: str
    phase: str
    pattern: re.Pattern[str]
    curable: bool = False


def _c(code: str, phase: str, pattern: str, curable: bool = False) -> Cause:
    return Cause(code, phase, re.compile(pattern), curable)


# The first match decides. A phase of "" means that it says nothing about the phase.
CAUSES: tuple[Cause, ...] = (
    _c("args.unrecognized", "args", r"error: (unrecognized arguments|ambiguous option)"),
    _c("args.invalid_json", "args", r"error: argument \S+: Value .* cannot be converted"),
    _c("args.invalid_value", "args", r"error: argument -\S+: "),
    _c("args.chat_template_path", "args", r"supplied chat template.*(appears path-like|looks like a file path)"),
    _c("args.tool_parser_missing", "args", r"--enable-auto-tool-choice requires"),
    _c("args.reasoning_parser_unknown", "config", r"[Rr]easoning parser:? .*not found|invalid reasoning parser"),
    _c("env.abi_mismatch", "", r"undefined symbol: |libtorch_\w+\.so: cannot open"),
    _c("env.cuda_lib_missing", "import", r"lib(cudart|cuda|nvrtc|cublas|nccl|cudnn)[\w.-]*\.so[.\d]*: cannot open"),
    _c("env.glibc", "import", r"version `GLIBC(XX)?_[\d.]+' not found"),
    _c("env.sigill", "import", r"Illegal instruction"),
    _c("env.cuda_fork", "device", r"Cannot re-initialize CUDA in forked subprocess"),
    _c("env.no_device", "config", r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver"),
    _c("env.driver_old", "device", r"driver on your system is too old|CUDA driver version is insufficient"),
    _c("env.invalid_device", "device", r"invalid device ordinal|device >= 0 && device < num_gpus"),
    _c("env.ipc_dir", "http", r"ZMQError: Operation not supported"),
    _c("env.disk_full", "", r"No space left on device"),
    _c("env.triton_cache_race", "profile", r"FileNotFoundError.*\.triton/cache", curable=True),
    _c("env.missing_dep", "", r"No module named |Please install "),
    _c("hub.repo_id_invalid", "config", r"Repo id must |HFValidationError"),
    _c("gguf.dir", "config", r"Invalid repository ID or local directory"),
    _c("hub.gated", "config", r"GatedRepo|40[13] Client Error|gated repo"),
    _c("hub.unreachable", "config", r"Max retries exceeded|locate the file on the Hub|couldn't connect to"),
    _c("hub.unreachable", "config", r"LocalEntryNotFound"),
    _c("arch.transformers_old", "config", r"does not recognize this architecture|KeyError: '(qwen|llama|gemma)"),
    _c("arch.remote_code", "config", r"contains custom code|trust_remote_code=True"),
    _c("arch.unsupported", "config", r"Model architectures .* (are not supported|failed to be inspected)"),
    _c("config.len_gt_derived", "config", r"User-specified max_model_len"),
    _c("config.batched_lt_len", "config", r"max_num_batched_tokens \(\d+\) is smaller than"),
    _c("config.batched_lt_seqs", "config", r"max_num_batched_tokens \(\d+\) must be"),
    _c("config.util_range", "config", r"[Mm]emory utilization must be|gpu_memory_utilization.*Input should"),
    _c("config.override_type", "config", r"StrictDataclass|Field '\w+' expected"),
    _c("quant.unknown", "config", r"Unknown quantization method"),
    _c("quant.no_config", "config", r"Cannot find the config file for "),
    _c("quant.mismatch", "config", r"Quantization method specified"),
    _c("tp.heads", "config", r"Total number of attention heads"),
    _c("tp.exceeds_numa", "dist", r"Not enough allowed NUMA nodes"),
    _c("tp.exceeds_gpus", "dist", r"exceeds the total number of available|larger than the number of available"),
    _c("tp.vocab", "load", r"AssertionError: \d+ is not divisible by \d+"),
    _c("tp.quant_shard", "load", r"not divisible by|not aligned with the quantized"),
    _c("spec.vocab", "config", r"should have the same vocabulary size|num_speculative_tokens"),
    _c("ray.missing", "config", r"Unable to load Ray|Failed to import Ray|Ray is not installed"),
    _c("attn.backend_unavailable", "config", r"(Selected|Unknown attention|Invalid attention) backend.* "),
    _c("attn.no_backend", "device", r"No valid attention backend"),
    _c("dtype.bf16_cc", "device", r"Bfloat16 is only supported on GPUs"),
    _c("dtype.fp8_cc", "profile", r"fp8e4nv not supported"),
    _c("mem.gpu_busy", "device", r"on startup is less than desired", curable=True),
    _c("mem.profile_changed", "profile", r"Error in memory profiling", curable=True),
    _c("mem.kv_none", "kvcache", r"No available memory for the cache blocks"),
    _c("mem.kv_lt_len", "kvcache", r"To serve at least one request|maximum number of tokens that can be stored"),
    _c("mem.cpu_kv_space", "kvcache", r"on kv cache allocation is less than|VLLM_CPU_KVCACHE_SPACE"),
    _c("mem.oom_sampler", "graph", r"when warming up (sampler|pooler)"),
    _c("mem.oom_compile", "compile", r"InductorError: .*out of memory|Failed to run autotuning code block"),
    _c("mem.oom_load", "load", r"Failed to load model - not enough GPU memory"),
    _c("mem.wake_up_oom", "serving", r"cumem_allocator"),
    _c("mem.oom", "", r"out of memory"),
    _c("config.block_size", "kvcache", r"No common block size"),
    _c("lora.rank", "http", r"LoRA rank \d+ is greater"),
    _c("http.port_in_use", "args", r"[Aa]ddress already in use", curable=True),
    _c("dist.port", "dist", r"DistNetworkError|EADDRINUSE", curable=True),
    _c("dist.store_timeout", "dist", r"DistStoreError|Timed out after \d+ seconds waiting for clients", curable=True),
    _c("nccl.timeout", "dist", r"Watchdog caught collective|collective operation timeout", curable=True),
    _c("nccl.error", "dist", r"NCCL error|ncclSystemError|ncclUnhandledCudaError"),
    _c("run.rpc_timeout", "serving", r"RPC call to \w+ timed out", curable=True),
    _c("run.segfault", "", r"Segmentation fault|SIGSEGV", curable=True),
    _c("gpu.illegal_memory", "", r"illegal memory access|unspecified launch failure", curable=True),
    _c("gpu.ecc_xid", "serving", r"uncorrectable ECC error|fallen off the bus"),
    _c("gpu.no_kernel_image", "", r"no kernel image is available"),
    _c("gpu.gguf_no_cpu_kernels", "serving", r"Triton dequant kernels require CUDA"),
    _c("load.no_weights", "load", r"Cannot find any model weights"),
    _c("load.corrupt_file", "load", r"SafetensorError|HeaderTooLarge|InvalidHeader|IncompleteBuffer|StreamReader"),
    _c("load.unexpected_key", "load", r"no module or parameter named|KeyError: '(model\.|layers\.|transformer\.)"),
    _c("load.missing_shard", "load", r"FileNotFoundError.*\.safetensors|No such file or directory: .*\.safetensors"),
    _c("load.shape_mismatch", "load", r"Attempted to load weight|size mismatch|exceeds dimension size"),
    _c("compile.cache", "compile", r"hash of the compiled graph", curable=True),
    _c("compile.inductor", "compile", r"torch\._(inductor|dynamo)\.exc"),
    _c("run.interrupted", "", r"^KeyboardInterrupt"),
)  # fmt: skip

# Frames of a traceback tell where the engine was. The deepest match decides, save that serving beats all.
_FRAMES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        ("serving", r"in (_process_engine_step|run_busy_loop|step_with_batch_queue|sample_tokens)\b"),
        ("serving", r"/serving_(chat|completion|engine|embedding)\.py"),
        ("args", r"in (create_server_socket|validate_parsed_serve_args|make_arg_parser|parse_args)\b"),
        ("config", r"in (create_engine_config|create_model_config|get_config)\b|/vllm/config(\.py|/)"),
        ("dist", r"in (init_distributed_environment|init_worker_distributed_environment|init_process_group)\b"),
        ("dist", r"in (initialize_model_parallel|ncclCommInitRank)\b"),
        ("device", r"in (init_worker|_create_worker)\b"),
        ("device", r"in (init_device|_lazy_init|get_device_capability|get_device_name|set_device|_check_if_gpu_\w+)\b"),
        ("load", r"in (load_model|load_weights|initialize_model|get_model|weight_loader)\b"),
        ("load", r"in process_weights_after_loading\b"),
        ("tokenizer", r"in (get_tokenizer|init_tokenizer\w*|cached_tokenizer_from_config)\b"),
        ("tokenizer", r"in check_argument_for_proper_class\b"),
        ("profile", r"in (profile_run|determine_available_memory|determine_num_available_blocks)\b"),
        ("profile", r"in profile_num_available_blocks\b"),
        ("compile", r"neuron_xla_compile|/neuron_cc_wrapper\.py"),
        ("compile", r"/torch/_(inductor|dynamo)/|/vllm/compilation/(backends|compiler_interface|piecewise)"),
        ("kvcache", r"in (get_kv_cache_configs?|_?check_enough_kv_cache_memory|initialize_cache)\b"),
        ("kvcache", r"in (initialize_kv_cache|raise_if_cache_size_invalid|initialize_from_config)\b"),
        ("graph", r"in (capture_model|compile_or_warm_up_model|_dummy_sampler_run)\b"),
        ("http", r"in (init_app_state|build_app|serve_http|add_lora|init_static_loras|process_lora_modules)\b"),
    )
)


def match(root: str) -> Cause | None:
    """The class of a root line, None when the table does not know it."""
    return next((cause for cause in CAUSES if cause.pattern.search(root)), None) if root else None


def phase_of(lines: Sequence[str], root: str) -> str:
    """The phase that the root line's class or the frames of its block tell; "" when neither does."""
    cause = match(root)
    return cause.phase if cause and cause.phase else framed(lines)


def framed(lines: Sequence[str]) -> str:
    """The phase that the frames of a traceback tell, "" for none."""
    phase_found = ""
    for line in lines:
        if not line.lstrip().startswith("File "):
            continue
        for phase, pattern in _FRAMES:
            if pattern.search(line):
                if phase == "serving":
                    return phase
                phase_found = phase
                break
    return phase_found
