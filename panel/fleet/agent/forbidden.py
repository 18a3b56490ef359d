"""What no order may put on an engine's command line or into its environment: the lists behind guard.py.

Kept apart from the checks, since a release of an engine changes these lists and seldom the checks. The panel's early
refusals (deployments/engines/denied.py) read the variables from here; tests/security holds both to the flags and the
variables that the tested vLLM really has, so that a new one is looked at before it is let through.
"""

from __future__ import annotations

import re


def words(text: str) -> tuple[str, ...]:
    """A list written as running text."""
    return tuple(text.split())


# Engines that are found and shown, and that Berth does not start yet: nobody has looked at their flags.
NOT_STARTED = ("sglang", "llama-server", "ollama")

# Flags that load code, take serialised objects from whoever asks, open a further port, read settings from elsewhere,
# write files, put a secret into the process list, or name another model than the one that was checked.
FLAGS = words(
    """
    tool-parser-plugin reasoning-parser-plugin io-processor-plugin middleware worker-cls
    worker-extension-cls scheduler-cls logits-processors model-class-overrides kv-transfer-config
    ec-transfer-config ec-manager-config kv-events-config weight-transfer-config additional-config
    model-loader-extra-config aux-output-config config log-config-file logging-config
    profiler-config api-key hf-token uds grpc grpc-port data-parallel-supervisor-port
    data-parallel-address data-parallel-rpc-port master-addr master-port nnodes node-rank headless
    tool-server allowed-local-media-path allowed-media-domains download-dir otlp-traces-endpoint
    trust-request-chat-template trust-request-mm-kwargs enable-prompt-embeds enable-mm-embeds
    enable-trace-replay enable-scale-out mm-encoder-fp8-scale-save-path ray-workers-use-nsight
    custom-pipeline rpc api-key-file slot-save-path log-file media-path models-dir path hf-repo
    hf-file model-url model model-tag
    """
)
# Short spellings of the above (-O0 to -O3 are plain levels). Other one-dash flags pass.
SHORT = re.compile(r"-O(?![0-3]$).*|-cc.*|-dp[ap]([=0-9].*)?|-[nrm](=?[0-9]+)?|-m=.*|-hf[a-z]*(=.*)?|-mu(=.*)?")
# Full names that begin like a denied flag's abbreviation, but are flags of their own.
OWN_NAMES = words(
    """
    host port reasoning-parser
    """
)
REMOTE_CODE = "trust-remote-code"
CODE_VALUES = {  # flags that are fine with a plain word, and load a class when the value is a dotted path
    "distributed-executor-backend",
    "load-format",
    "model-impl",
    "tokenizer-mode",
    "config-format",
    "attention-backend",
    "scheduling-policy",
    "mm-encoder-attn-backend",
    "mamba-backend",
    "reasoning-parser",
    "tool-call-parser",
    "quantization",
}
# ray would start a cluster of its own, with open ports.
ONLY_VALUES = {
    "distributed-executor-backend": ("mp", "uni"),
    "data-parallel-backend": ("mp",),
    "dpb": ("mp",),
}
CODE_WORDS = ("custom_class", "custom_pipeline")  # values that make another value the name of a class
# Parts of JSON keys that name code, or a place to write to, inside the values of structured flags.
CODE_KEYS = words(
    """
    module_path connector_module _cls qualname plugin trust_remote_code auto_map inductor_passes
    inductor_compile_config cache_dir dump_path profiler_dir config_file
    """
)

# --- the environment ------------------------------------------------------------------------------------------------
# Families that only tune are let in by their prefix and lose what DENIED names; libraries that compile or fetch
# (Triton, Inductor, FlashInfer, the Hugging Face hub) are let in name by name, since a single one of their variables
# can be a compiler, a compiler's flags, or a folder that libraries are loaded from.
SETTINGS = re.compile(
    r"(VLLM|OMP|GOMP|KMP|MKL|OPENBLAS|NCCL|GLOO|TORCH_NCCL|TORCH_CPU)_[A-Z0-9_]{1,100}|"
    r"HF_HUB_(OFFLINE|DISABLE_PROGRESS_BARS|VERBOSITY|DISABLE_TELEMETRY|DOWNLOAD_TIMEOUT|ETAG_TIMEOUT|DISABLE_XET)|"
    r"TRANSFORMERS_(OFFLINE|VERBOSITY|NO_ADVISORY_WARNINGS)|TOKENIZERS_PARALLELISM|"
    r"TRITON_(INTERPRET|ALWAYS_COMPILE|PRINT_AUTOTUNING|F32_DEFAULT|DISABLE_LINE_INFO)|"
    r"FLASHINFER_(DISABLE_VERSION_CHECK|LOGGING_LEVEL|LOGLEVEL|JIT_VERBOSE|CUDA_ARCH_LIST)|"
    r"TORCHINDUCTOR_(COMPILE_THREADS|MAX_AUTOTUNE|MAX_AUTOTUNE_GEMM|MAX_AUTOTUNE_POINTWISE|FX_GRAPH_CACHE|"
    r"AUTOGRAD_CACHE|COORDINATE_DESCENT_TUNING|FREEZING)|"
    r"PYTORCH_(CUDA_ALLOC_CONF|ALLOC_CONF|HIP_ALLOC_CONF|NO_CUDA_MEMORY_CACHING)|TORCH_LOGS|TORCH_LOG_LEVEL|"
    r"TORCH_COMPILE_DISABLE|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING|CUDA_MODULE_LOADING|LANG|LC_[A-Z]{1,20}|TZ|NO_COLOR|"
    r"PYTHONHASHSEED|PYTHONFAULTHANDLER"
)
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")  # the addresses that lead nowhere, of VLLM_LOGGING_STREAM
# Let in by a family's prefix, yet they load code or libraries, take pickles, open debug routes or ports, fetch from or
# send to another address, or point at files.
DENIED = re.compile(
    r"VLLM_SERVER_DEV_MODE|VLLM_ALLOW_INSECURE_SERIALIZATION|VLLM_ALLOW_RUNTIME_LORA_UPDATING|VLLM_USE_MODELSCOPE|"
    r"VLLM_USE_RUST_FRONTEND|VLLM_ASSETS_CACHE|VLLM_V1_USE_OUTLINES_CACHE|VLLM_PATTERN_MATCH_DEBUG|VLLM_RAY_.*|"
    r"VLLM_ENABLE_STARTUP_PLAN|VLLM_COMPILE_CACHE_SAVE_FORMAT|VLLM_USE_MEGA_AOT_ARTIFACT|"
    r"VLLM_USE_RAY_.*|VLLM_USE_RUST_BENCH|VLLM_MEDIA_CACHE|VLLM_TRACE_FUNCTION|VLLM_DISABLE_REQUEST_ID_RANDOMIZATION|"
    r"VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME|VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS|"
    r"VLLM_ENABLE_RESPONSES_API_STORE|"
    r"NCCL_COMM_ID|NCCL_HOSTID|KMP_SETTINGS_FILE|"
    r".*(PATH|PLUGIN|LIBRAR|PRELOAD|INJECT|_SO_|_SO$|CONFIG_ROOT|CACHE_ROOT|CACHE_DIR|CONF_FILE|CONFIG_FILE|"
    r"TRUST_REMOTE_CODE|TOOL_|_DIR$|TMPDIR|FOLDER|INTERPOSER|CUSTOM_|_CMD$|COMMAND|HOOK|_FILE$|FILENAME|OUTPUT_FILE|"
    r"_HOME$|_HOST$|_IPS?$|_ADDR|_PORT$|_SERVER$|ENDPOINT|_URL$|REPO|PACKAGE|MANAGER|LDFLAGS|CFLAGS|NVCC).*"
)
