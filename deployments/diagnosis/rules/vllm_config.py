"""vLLM: settings that contradict each other or the model; architectures and tokenizers."""

from deployments.diagnosis.rule import Remedy, Rule, drop, model, newer, package, put, repair, runtime
from deployments.diagnosis.rule import gettext_noop as _

NEWER = _("Start with a newer version of the engine.")

RULES = (
    Rule(
        "config.len_gt_derived",
        "config",
        _("The context asked for is longer than the model was made for"),
        _(
            "The context is the longest conversation, in tokens (pieces of words). The model was trained for fewer; beyond that its answers would fall apart."
        ),
        (
            r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
            r"\((?:\w+=)?(?P<derived>\d+)",
            r"User-specified max_model_len",
        ),
        (
            "  Value error, User-specified max_model_len (8192) is greater than the derived max_model_len "
            "(max_position_embeddings=2048.0 or model_max_length=None in model's config.json).",
            "ValueError: User-specified max_model_len (204800) is greater than the derived max_model_len (None=4096 in config).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Using max model len 8192",),
        (put("max_model_len", "=derived", 90, "context"),),
    ),
    Rule(
        "config.batched_lt_len",
        "config",
        _("The engine works on fewer tokens at a time than one request may have"),
        _(
            "Tokens are pieces of words. Long prompts are not cut into parts here, so the longest one must fit into one step."
        ),
        (
            r"max_num_batched_tokens \((?P<batched>\d+)\) is smaller than max_model_len \((?P<length>\d+)\)",
            r"max_num_batched_tokens \(.*\) is smaller than",
        ),
        (
            "  Value error, max_num_batched_tokens (2048) is smaller than max_model_len (32768). This limits the length.",
            "ValueError: max_num_batched_tokens (512) is smaller than max_model_len (4096).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Chunked prefill is enabled with max_num_batched_tokens=2048.",),
        (
            put("max_num_batched_tokens", "=length", 85, "memory"),
            put("enable_chunked_prefill", "true", 70),
            put("max_model_len", "=batched", 60, "context"),
        ),
    ),
    Rule(
        "config.batched_lt_seqs",
        "config",
        _("The engine works on fewer tokens at a time than there are requests"),
        _("Each request that runs needs at least one token in every step."),
        (
            r"max_num_batched_tokens \((?P<batched>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)",
            r"must be greater than or equal to max_num_seqs",
        ),
        (
            "  Value error, max_num_batched_tokens (8) must be greater than or equal to max_num_seqs (64).",
            "ValueError: max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (256).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] max_num_seqs=64",),
        (put("max_num_batched_tokens", "=seqs", 85), put("max_num_seqs", "=batched", 70, "speed")),
    ),
    Rule(
        "config.util_range",
        "config",
        _("The share of GPU memory must lie between 0 and 1"),
        _("It is a share, such as 0.9, not a number of gigabytes and not per cent."),
        (
            r"[Mm]emory utilization must be less than",
            r"gpu_memory_utilization\b.*(?:Input should|must be|less than or equal|greater than)",
        ),
        (
            "ValueError: GPU memory utilization must be less than 1.0. Got 1.5.",
            "gpu_memory_utilization   Input should be less than or equal to 1 [type=less_than_equal, input_value=1.5]",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] gpu_memory_utilization=0.9",),
        (put("gpu_memory_utilization", "0.9", 90),),
    ),
    Rule(
        "config.sliding_window",
        "config",
        _("This version cannot run a model in which some layers look back further than others"),
        _(
            "Some layers see only the newest words (a sliding window) and some see all, or the window does not go with another option."
        ),
        (
            r"[Ss]liding window for some but all layers",
            r"not supported (?:with|for) (?:sliding window|interleaved)",
        ),
        (
            "ValueError: Sliding window for some but all layers is not supported.",
            "NotImplementedError: Prefix caching is not supported with sliding window. Disable it.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] sliding window 4096",),
        (put("disable_sliding_window", "true", 70, "context"), newer(NEWER, 60)),
    ),
    Rule(
        "config.runner_mismatch",
        "config",
        _("The model is of another kind than it is started as"),
        _("An embedding or ranking model is started as a chat model, or the other way round."),
        (
            r"does not support `--(?:runner|convert|task)",
            r"is not supported with --task|does not support the '?\w+'? (?:task|runner)",
            r"Embedding models do not support",
            r"This model does not support (?:`?--(?:task|runner)|the)",
        ),
        (
            "  Value error, This model does not support `--runner generate`.",
            "ValueError: This model does not support the 'embedding' task. Supported tasks: {'generate'}",
        ),
        ("WARNING 01-01 10:00:00 [x.py:1] This model does not support prefix caching",),
        (drop("runner", 75), drop("task", 75), put("convert", "embed", 40)),
    ),
    Rule(
        "config.block_size",
        "kvcache",
        _("The block size does not go with this way to calculate attention"),
        _("The memory for conversations (KV cache) is cut into blocks, and the chosen way takes only some sizes."),
        (
            r"No common block size for (?P<block>\d+)(?:.*?MultipleOf\((?P<multiple>\d+)\))?",
            r"block_size.*(?:is not supported|must be (?:a multiple|divisible|one of))",
        ),
        (
            "ValueError: No common block size for 7 (CPU_ATTN: [MultipleOf(32)]).",
            "ValueError: block_size 48 must be a multiple of 32 for this backend",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] block_size=16",),
        (put("block_size", "=block", 80), drop("block_size", 85)),
    ),
    Rule(
        "config.override_type",
        "config",
        _("A value of the model's configuration has the wrong type"),
        _("A number stands as text, or the other way round, in config.json or in the overrides."),
        (
            r"Field '(?P<field>\w+)' expected (?P<type>\w+), got",
            r"StrictDataclassFieldValidationError|StrictDataclassClassValidationError",
            r"Error in --hf-overrides",
        ),
        (
            "TypeError: Field 'num_attention_heads' expected int, got str (value: 'x')",
            "huggingface_hub.errors.StrictDataclassFieldValidationError: Validation error for field 'rope_theta':",
        ),
        ("TypeError: expected int, got str",),
        (drop("hf_overrides", 70), repair(_("Download config.json again."), 50)),
    ),
    Rule(
        "arch.remote_code",
        "config",
        _("The model brings code of its own, which must be allowed"),
        _("The engine would run Python that came with the model. An admin has to trust its publisher first."),
        (
            r"contains custom code which must be executed",
            r"consider setting `trust_remote_code=True`",
            r"Please pass the argument `trust_remote_code",
            r"requires you to execute (?:the|a) .* in that repo",
        ),
        (
            "  Value error, The repository /models/x contains custom code which must be executed to correctly load the model.",
            "RuntimeError: Failed to load the model config. If the model is custom, consider setting `trust_remote_code=True`.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] trust_remote_code=True",),
        (
            Remedy(
                "permission",
                "trust_remote_code",
                "true",
                _("Ask an admin to allow this model's own code."),
                chance=85,
                cost="safety",
            ),
            newer(_("A newer version may know this model by itself."), 40),
        ),
    ),
    Rule(
        "arch.transformers_old",
        "config",
        _("This version does not know this kind of model yet"),
        _('The model is newer than the package "transformers", by which the engine reads what kind of model it is.'),
        (
            r"model type [`'](?P<type>[\w.-]+)[`'] but Transformers does not recognize",
            r"does not recognize this architecture|`rope_scaling` must be a dictionary with two fields",
            r"^KeyError: '(?P<type>(?:qwen|gemma|llama|glm|deepseek|phi|mistral|mixtral|granite|cohere|olmo|internlm|"
            r"minicpm|chatglm|exaone|gpt_oss|kimi|ernie|hunyuan|smollm|falcon|mllama|pixtral)[\w.]*)'$",
        ),
        (
            "  Value error, The checkpoint you are trying to load has model type `gemma4` but Transformers does not recognize",
            "KeyError: 'qwen3_next'",
        ),
        ("KeyError: 'layers.0.mlp.weight'",),
        (newer(NEWER, 80), package("--upgrade transformers", 60)),
    ),
    Rule(
        "arch.inspect_failed",
        "config",
        _("The code for this model could not be loaded"),
        _(
            "The engine knows this kind of model (its architecture), but could not load the code for it. The error above it tells why."
        ),
        (r"failed to be inspected", r"Error in inspecting model architecture"),
        (
            "  Value error, Model architectures ['Qwen3MoeForCausalLM'] failed to be inspected. Please check the logs",
            "ERROR 01-01 10:00:00 [registry.py:1] Error in inspecting model architecture 'Qwen3MoeForCausalLM'",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Resolved architecture: Qwen3MoeForCausalLM",),
        (runtime(_("Install this version of the engine again, in a Python environment of its own."), 60),),
        role="weak",
    ),
    Rule(
        "arch.unsupported",
        "config",
        _("This version of the engine cannot run this kind of model"),
        _(
            "config.json names the kind of model (its architecture), and it is not among those that this version can run."
        ),
        (
            r"Model architectures \[(?P<arch>[^\]]*)\] are not supported",
            r"has no vLLM implementation and the Transformers implementation is not compatible",
            r"Model architectures? .* (?:are|is) not supported",
            r"Cannot find model module\. .* is not a registered model|(?P<name>\w+) has no vLLM implementation",
        ),
        (
            "  Value error, Model architectures ['FooBarForCausalLM'] are not supported for now. Supported architectures: x",
            "ValueError: TransformersForCausalLM has no vLLM implementation and the Transformers implementation is not compatible",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Resolved architecture: FooBarForCausalLM",),
        (newer(NEWER, 65), runtime(_("Try another engine."), 40, about="other_engine")),
    ),
    Rule(
        "arch.none",
        "config",
        _("The model's config.json does not say what kind of model it is"),
        _('The field "architectures" is missing in it, so the engine cannot know how to run the model.'),
        (
            r"No model architectures are specified",
            r"architectures.*NoneType|NoneType.*architectures",
            r"Should have a `model_type` key in its config|Unrecognized model in",
        ),
        (
            "ValueError: No model architectures are specified",
            "ValueError: Unrecognized model in /models/x. Should have a `model_type` key in its config.json.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] architectures: LlamaForCausalLM",),
        (put("hf_overrides", "=architectures", 50), repair(_("Download config.json again."), 60)),
    ),
    Rule(
        "arch.pp_unsupported",
        "config",
        _("This model cannot be split into stages"),
        _("Its layers cannot lie on several GPUs one after the other (pipeline parallelism)."),
        (r"Pipeline parallelism is (?:only supported|not supported)", r"does not support pipeline parallel"),
        (
            "NotImplementedError: Pipeline parallelism is not supported for this model. Supported models implement the interface.",
            "NotImplementedError: Pipeline parallelism is only supported through AsyncLLMEngine",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] pipeline_parallel_size=1",),
        (put("pipeline_parallel_size", "1", 80, "speed"),),
    ),
    Rule(
        "tok.invalid",
        "tokenizer",
        _("The tokenizer file cannot be read"),
        _(
            "The tokenizer cuts text into the pieces (tokens) that the model reads. Its file was written by a newer version, or it is broken."
        ),
        (
            r"data did not match any variant of untagged enum",
            r"Tokenizer class \S+ does not exist or is not currently imported",
            r"expected value at line \d+ column|EOF while parsing a .* at line",
            r"Error (?:parsing|while deserializing).*tokenizer",
            r"KeyError: .added_tokens.",
        ),
        (
            "Exception: data did not match any variant of untagged enum ModelWrapper at line 250373 column 3",
            "Exception: expected value at line 1 column 1",
        ),
        ("ValueError: expected value 3, got 4",),
        (repair(_("Download the tokenizer's files again."), 70), package("--upgrade tokenizers transformers", 60)),
    ),
    Rule(
        "tok.missing_files",
        "tokenizer",
        _("The model's tokenizer is missing"),
        _(
            "The tokenizer cuts text into the pieces (tokens) that the model reads. There is no tokenizer.json or tokenizer.model beside the weights."
        ),
        (
            r"TypeError: not a string$",
            r"Can't load tokenizer for",
            r"Couldn't instantiate the backend tokenizer",
            r"Unable to load vocabulary",
            r"stat: path should be string.*NoneType",
            r"No tokenizer file found|Failed to load the tokenizer",
        ),
        (
            "TypeError: not a string",
            "OSError: Can't load tokenizer for '/models/x'. If you were trying to load it from the Hub, check the name",
        ),
        ("TypeError: 'x' is not a string type",),
        (put("tokenizer", "=base_model", 60), repair(_("Download the tokenizer's files."), 75)),
    ),
    Rule(
        "tok.chat_template_runtime",
        "serving",
        _("The model has no chat template"),
        _("It is a base model: it continues text and was not taught to chat. Requests to chat are refused."),
        (
            r"default chat template is no longer allowed",
            r"chat_template is not set and no template argument",
            r"Cannot use chat template functions because tokenizer\.chat_template is not set",
        ),
        (
            "ValueError: As of transformers v4.44, default chat template is no longer allowed, so you must provide one",
            "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Using default chat sampling params",),
        (model(_("Use the model's chat variant (Instruct)."), 70), put("chat_template", "=template", 50)),
        role="request",
    ),
    Rule(
        "config.invalid_config",
        "config",
        _("The settings contradict each other"),
        _("The engine refused a setting. Its own words stand in the log line."),
        (
            r"validation errors? for \w+Config\b",
            r"^\s*(?:Value error|Assertion failed), ",
            r"^\s+Input should be |Extra inputs are not permitted",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig",
            "  Value error, kv_transfer_role must be one of x",
        ),
        ("ValidationError: bad request body",),
        (),
        role="weak",
    ),
)
