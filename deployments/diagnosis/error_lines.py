"""Which lines are errors, which of them only echo one, and which phase the frames of a traceback tell. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deployments.diagnosis.lines import Line
from deployments.diagnosis.rule import literals_of

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Expired)s?(?:: .*)?$"
    r"|^(?:[a-z_]\w*\.)+[a-z]\w*Error: "
    r"|^(?:KeyboardInterrupt|Exception: .+|[A-Z]\w*Error\([^)].*)$"
)
_OTHER = re.compile(
    r"^vllm( serve)?: error: |^\w+\.py: error: |^Fatal Python error: |^Killed$|"
    r": error: Failures have been detected|: Assertion `.*' failed\.$|GGML_ASSERT\(.+\) failed$|"
    r"^Segmentation fault|^Illegal instruction|^terminate called|fatal error: \w+\.h: No such file|"
    r"^subprocess\.CalledProcessError|^ImportError|error while loading shared libraries|^Bus error"
)
_ECHO = re.compile(
    r"Engine core initialization failed|Engine process failed to start|EngineCore failed to start|"
    r"WorkerProc (initialization failed|was terminated|hit an exception)|EngineDeadError|EngineGenerate|"
    r"died, exit code: -15|BrokenPipeError|ensure_kv_transfer_shutdown|resource_tracker|destroy_process_group|"
    r"Engine loop is not running|MQEngineDeadError|Background loop has errored|"
    r"please check the stack trace above|See stack trace|HandlerFileNotFoundError|Queue <.*> is closed|"
    r"Error retrieving (?:safetensors|file list)|, retrying \d+ of |Ignore import error|ggml_cuda_init: failed|"
    r"RPCServer process died|Engine process \(pid \d+\) died|Frontend process failed during engine core|"
    r"Executor failed\.$|Ray workers have not started|Initialization failed\. Please see|Input socket thread died|"
    r"Executor' object has no attribute '(?:workers|io_thread_pool)'|NoneType' object has no attribute 'shutdown'|"
    r"^RuntimeError: cancelled$|^EOFError$|Error in sys\.excepthook|Exception ignored|CancelledError|SystemExit"
)
_ECHO_WORDS = literals_of(_ECHO.pattern)  # every echo holds one of these; to look for them is quicker


def is_error(line: Line) -> bool:
    """Whether a line ends a traceback or is an error of another kind. Notices and warnings never are."""
    text = line.text
    if line.level in ("DEBUG", "INFO", "WARNING") or not text:
        return False
    return bool(_EXCEPTION.search(text) or _OTHER.search(text))


def is_echo(line: Line) -> bool:
    """Whether it only reports an error that stands above it, or a clean-up that went wrong."""
    text = line.text
    return any(word in text for word in _ECHO_WORDS) and _ECHO.search(text) is not None


# Frames of a traceback tell where the engine was. The deepest match decides, save that serving beats all.
_FRAMES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        ("serving", r"in (_process_engine_step|run_busy_loop|run_engine_loop|step_with_batch_queue|sample_tokens)\b"),
        ("serving", r"/serving_(chat|completion|engine|embedding)\.py"),
        ("args", r"in (create_server_socket|validate_parsed_serve_args|make_arg_parser|parse_args)\b"),
        ("config", r"in (create_engine_config|create_model_config|get_config)\b|/vllm/config(\.py|/)"),
        ("dist", r"in (init_distributed_environment|init_worker_distributed_environment|init_process_group)\b"),
        ("dist", r"in (initialize_model_parallel|ncclCommInitRank)\b"),
        ("device", r"in (init_worker|_create_worker|init_cpu_threads_env)\b"),
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
        ("graph", r"in (capture_model|compile_or_warm_up_model)\b"),
        ("dist", r"in init_torch_distributed\b"),
        ("kvcache", r"in (init_memory_pool|profile_max_num_token)\b"),
        ("graph", r"/cuda_graph_runner\.py|in init_(cuda|device)_graphs\b"),
        ("serving", r"in event_loop_\w+"),
        ("http", r"in (init_app_state|build_app|serve_http|add_lora|init_static_loras|process_lora_modules)\b"),
    )
)

# Code of the later steps calls functions that are named like those of the former.
_BEFORE, _LATER = ("device", "load", "tokenizer"), ("profile", "compile", "kvcache", "graph")


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
                if not (phase in _BEFORE and phase_found in _LATER):
                    phase_found = phase
                break
    return phase_found
