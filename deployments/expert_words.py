"""The engine's settings that people meet most, in plain words; the order is that of the page.

Fields of the form that have a name of their own (context, share of GPU memory and so on) are not here. Ranges are
sensible ends for a person; the engine's own check has the last word.
"""

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True)
class Said:
    """A setting in plain words. `group` is memory, speed, answers, adapters, parts or logs.

    `touches` says which part of the memory it changes (a key of TOUCHES), where no estimate says how much.
    """

    group: str
    label: Any
    text: Any
    low: float | None = None
    high: float | None = None
    example: str = ""  # a value, in no language
    touches: str = "none"


GROUPS: dict[str, Any] = {
    "memory": _("Memory"),
    "speed": _("Speed and sharing"),
    "answers": _("Answers"),
    "adapters": _("Adapters"),
    "parts": _("Several GPUs"),
    "logs": _("Logs and figures"),
}

# {what is touched: (kind of the bar, a sentence)}
TOUCHES: dict[str, tuple[str, Any]] = {
    "kv": ("k", _("Changes how much the KV cache holds.")),
    "work": ("a", _("Changes the scratch space of the engine.")),
    "graphs": ("g", _("Changes the memory of CUDA graphs.")),
    "weights": ("w", _("Changes how much the weights take of each GPU.")),
    "main": ("", _("Takes the machine's memory, none of the GPU.")),
    "more": ("a", _("Needs more memory; less is left for conversations.")),
    "depends": ("", _("Depends on what is set.")),
    "none": ("", _("No effect on memory.")),
}

SAID: dict[str, Said] = {
    "kv_cache_dtype": Said(
        "memory",
        _("Precision of the KV cache"),
        _("How exactly conversations are kept. In FP8 twice as many fit; answers may differ a little."),
        touches="kv",
    ),
    "calculate_kv_scales": Said(
        "memory",
        _("Measure scales of the KV cache"),
        _("With an FP8 cache: its scales are measured while the first question is read, where the model brings none."),
    ),
    "kv_cache_dtype_skip_layers": Said(
        "memory",
        _("Layers kept exact"),
        _("Numbers of layers whose part of the KV cache stays in full precision, beside an FP8 cache."),
        touches="kv",
    ),
    "block_size": Said(
        "memory",
        _("Block size"),
        _("Tokens in one piece of the KV cache. Larger ones waste a little more at the end of each conversation."),
        low=1,
        high=4096,
        touches="kv",
    ),
    "kv_cache_memory_bytes": Said(
        "memory",
        _("Size of the KV cache"),
        _("A fixed size instead of what the share of GPU memory leaves."),
        example="8G",
        touches="kv",
    ),
    "num_gpu_blocks_override": Said(
        "memory",
        _("Number of blocks"),
        _("Exactly so many blocks of the KV cache, whatever was measured. For tests."),
        low=1,
        touches="kv",
    ),
    "enforce_eager": Said(
        "memory",
        _("No CUDA graphs"),
        _(
            "On: starts sooner and leaves a little more memory; answers come more slowly, above all for one "
            "person alone."
        ),
        touches="graphs",
    ),
    "cpu_offload_gb": Said(
        "memory",
        _("Weights in main memory, GiB"),
        _(
            "So much of the weights of each GPU stays in the machine's memory. It fits on smaller cards, and "
            "is much slower."
        ),
        low=0,
        high=4096,
        touches="weights",
    ),
    "kv_offloading_size": Said(
        "memory",
        _("KV cache in main memory, GiB"),
        _("Conversations that are not answered just now may wait in the machine's memory."),
        low=0,
        high=65536,
        touches="main",
    ),
    "quantization": Said(
        "memory",
        _("Quantisation"),
        _("How the weights are packed. Empty: as the model's files say, which is nearly always right."),
        touches="weights",
    ),
    "disable_hybrid_kv_cache_manager": Said(
        "memory",
        _("Treat all layers alike"),
        _("On: layers that look back only a little way keep as much as all others. Costs memory; a way round faults."),
        touches="kv",
    ),
    "enable_prefix_caching": Said(
        "speed",
        _("Reuse common beginnings"),
        _("Questions that begin alike (the same instructions or document) are read only once."),
    ),
    "enable_chunked_prefill": Said(
        "speed",
        _("Read long texts in pieces"),
        _("Answers of others go on while a long document is read."),
    ),
    "max_num_batched_tokens": Said(
        "speed",
        _("Tokens in one step"),
        _("More reads long documents faster; the answers of others falter more, and more working memory is needed."),
        low=1,
        high=10_000_000,
        touches="work",
    ),
    "long_prefill_token_threshold": Said(
        "speed",
        _("What counts as a long text"),
        _("Tokens from which on a question waits its turn in pieces. 0: the engine decides."),
        low=0,
        high=10_000_000,
    ),
    "scheduling_policy": Said(
        "speed",
        _("Whose turn it is"),
        _("fcfs: first come, first served. priority: by the priority that a request names."),
    ),
    "async_scheduling": Said(
        "speed",
        _("Prepare the next step early"),
        _("The next step is made ready while the present one is computed; faster answers for many people."),
    ),
    "stream_interval": Said(
        "speed",
        _("Tokens in one message"),
        _("Larger ones send an answer in bigger pieces and cost less of the processor."),
        low=1,
        high=1000,
    ),
    "attention_backend": Said(
        "speed",
        _("Way of computing attention"),
        _("A name of one of the engine's own; empty: it takes the fastest that works on this GPU."),
    ),
    "performance_mode": Said(
        "speed",
        _("What the engine is tuned for"),
        _("interactivity: quick answers for few people. throughput: the most tokens for many. balanced: between them."),
        touches="work",
    ),
    "optimization_level": Said(
        "speed",
        _("How much is compiled at the start"),
        _("0 to 3: more makes answers faster and the start slower."),
        touches="graphs",
    ),
    "cudagraph_capture_sizes": Said(
        "speed",
        _("Sizes of CUDA graphs"),
        _("Numbers of requests for which steps are recorded. Fewer start sooner and take less memory."),
        touches="graphs",
    ),
    "max_cudagraph_capture_size": Said(
        "speed",
        _("Largest CUDA graph"),
        _("The most requests for which a step is recorded; above it answers come a little more slowly."),
        low=1,
        high=65_536,
        touches="graphs",
    ),
    "speculative_config": Said(
        "speed",
        _("Guess ahead"),
        _("JSON that names a small model or a method which guesses the next tokens; quicker answers, more memory."),
        touches="more",
    ),
    "enable_auto_tool_choice": Said(
        "answers",
        _("Let the model call tools"),
        _("Programs may offer tools to the model. It needs the reader of tool calls below."),
    ),
    "tool_call_parser": Said(
        "answers",
        _("Reader of tool calls"),
        _("How this family of models writes a tool call."),
        example="hermes, llama3_json, qwen3_coder",
    ),
    "reasoning_parser": Said(
        "answers",
        _("Reader of thoughts"),
        _("How this family of models marks what it thinks before it answers."),
        example="qwen3, deepseek_r1",
    ),
    "chat_template": Said(
        "answers",
        _("Chat template"),
        _("A file below the model folders of the host, or the template itself. Empty: the model's own."),
    ),
    "chat_template_content_format": Said(
        "answers",
        _("Form of messages"),
        _("How the template is given a message. auto is nearly always right."),
    ),
    "generation_config": Said(
        "answers",
        _("Usual way of answering"),
        _("auto: temperature and so on as the model's makers advise. vllm: the engine's plain values."),
    ),
    "override_generation_config": Said(
        "answers",
        _("Other usual values"),
        _("JSON with values for requests that name none."),
        example='{"temperature": 0.2}',
    ),
    "max_logprobs": Said(
        "answers",
        _("Most likely words told"),
        _("How many alternatives with their likelihood a program may ask for at each word. -1: all."),
        low=-1,
        high=1_000_000,
    ),
    "seed": Said(
        "answers",
        _("Seed of chance"),
        _("The same number gives the same answers again, as far as the engine can."),
    ),
    "hf_overrides": Said(
        "answers",
        _("Other values of the model's description"),
        _("JSON that replaces values of the model's config.json, for example to stretch its context."),
        touches="depends",
    ),
    "limit_mm_per_prompt": Said(
        "answers",
        _("Pictures and films in one question"),
        _("JSON with the most of each kind. None at all leaves more memory for conversations."),
        example='{"image": 2, "video": 0}',
        touches="work",
    ),
    "language_model_only": Said(
        "answers",
        _("Text only"),
        _("On: the part that sees pictures is not loaded."),
        touches="weights",
    ),
    "runner": Said(
        "answers",
        _("Kind of work"),
        _("generate: writes text. pooling: makes vectors or scores. auto: as the model's description says."),
    ),
    "enable_lora": Said(
        "adapters",
        _("Use adapters (LoRA)"),
        _("Small additions that change what the model does. They need some memory."),
        touches="more",
    ),
    "max_loras": Said(
        "adapters",
        _("Adapters at once"),
        _("How many different ones are used in one step."),
        low=1,
        high=1000,
        touches="more",
    ),
    "max_lora_rank": Said(
        "adapters",
        _("Largest rank"),
        _("As large as the largest of your adapters says, no larger: it sets aside memory."),
        touches="more",
    ),
    "tensor_parallel_size": Said(
        "parts",
        _("GPUs that share each layer"),
        _("All of them work on every token; it needs a fast connection between them."),
        low=1,
        high=64,
        touches="weights",
    ),
    "pipeline_parallel_size": Said(
        "parts",
        _("Groups of layers"),
        _("Each GPU has some of the layers. Slower than sharing layers, and content with a slow connection."),
        low=1,
        high=64,
        touches="weights",
    ),
    "data_parallel_size": Said(
        "parts",
        _("Whole copies side by side"),
        _("Each has all weights and serves other people."),
        low=1,
        high=64,
    ),
    "enable_expert_parallel": Said(
        "parts",
        _("Whole experts on each GPU"),
        _("For models made of experts: each GPU has some of them, instead of a part of each."),
    ),
    "disable_custom_all_reduce": Said(
        "parts",
        _("Plain exchange between GPUs"),
        _("On: slower and simpler. A way round starts that hang with several GPUs."),
    ),
    "log_level": Said(
        "logs",
        _("How much the engine logs"),
        _("DEBUG says the most. It is for finding faults; the log grows fast."),
    ),
    "uvicorn_log_level": Said(
        "logs",
        _("How much its web server logs"),
        _("info is usual; warning leaves out each single request."),
    ),
    "enable_log_requests": Said(
        "logs",
        _("Log every question"),
        _("Questions of people then stand in the log. Off unless you say otherwise."),
    ),
    "disable_log_stats": Said(
        "logs",
        _("No figures in the log"),
        _("On: the engine no longer logs how busy it is."),
    ),
    "enable_prompt_tokens_details": Said(
        "logs",
        _("Tell reused tokens"),
        _("Answers then say how much of a question was found in the cache."),
    ),
    "load_format": Said(
        "logs",
        _("How the files are read"),
        _("The engine's own choice is right for nearly all; another one is for files of an unusual kind."),
    ),
}
