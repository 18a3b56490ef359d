"""vLLM: adapters (LoRA), models that guess ahead, pictures."""

from deployments.diagnosis.rule import Rule, drop, model, newer, put
from deployments.diagnosis.rule import gettext_noop as _

RULES = (
    Rule(
        "mm.tokens_gt_batched",
        "config",
        _("A picture may need more tokens than one step takes"),
        _("Pictures are not cut into parts here, so one step must be able to take the largest."),
        (
            r"max_tokens_per_mm_item \((?P<need>\d+)\) is larger than max_num_batched_tokens",
            r"multi-modal.*tokens.*max_num_batched_tokens",
            r"Attempted to assign .* multimodal tokens",
        ),
        (
            "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (16384) is larger than max_num_batched_tokens (8192).",
            "ValueError: Attempted to assign 576 = 576 multimodal tokens to 575 placeholders",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Encoder cache will be initialized with a budget of 16384 tokens",),
        (put("max_num_batched_tokens", "=need", 85, "memory"),),
    ),
    Rule(
        "lora.rank",
        "http",
        _("An adapter is larger than the engine has room for"),
        _("The engine keeps room for adapters (LoRA) up to a size, their rank, and this one has a higher one."),
        (r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank (?P<max>\d+)",),
        (
            "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
            "ValueError: LoRA rank 128 is greater than max_lora_rank 32.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] max_lora_rank=16",),
        (put("max_lora_rank", "=rank", 95, "memory"),),
    ),
    Rule(
        "lora.rank_invalid",
        "config",
        _("The engine does not take this size of adapters"),
        _("The highest rank (size) of adapters (LoRA) must be one of a few values, such as 8, 16 or 32."),
        (r"max_lora_rank \((?P<rank>\d+)\) must be one of", r"max_lora_rank.*Input should be"),
        (
            "  Value error, max_lora_rank (7) must be one of (8, 16, 32, 64, 128, 256, 320, 512).",
            "max_lora_rank   Input should be 1, 8, 16, 32, 64, 128, 256, 320 or 512 [type=literal_error, input_value=7]",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] max_lora_rank=16",),
        (put("max_lora_rank", "=rank", 95),),
    ),
    Rule(
        "lora.unsupported",
        "load",
        _("This model takes no adapters"),
        _("The engine cannot use adapters (LoRA) with this kind of model."),
        (r"does not support LoRA(?! yet for)", r"is not supported for LoRA|LoRA is not supported"),
        (
            "ValueError: Model InternVLChatModel does not support LoRA, but LoRA is enabled. Support is not implemented.",
            "ValueError: BitsAndBytes quantization is not supported for LoRA",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] LoRA is enabled",),
        (drop("enable_lora", 85, "quality"), model(_("Use a model into which the adapter was merged."))),
    ),
    Rule(
        "lora.not_found",
        "http",
        _("The adapter's folder was not found"),
        _("There is no adapter (LoRA) at this path on the engine's host."),
        (
            r"No adapter found for (?P<path>\S+)",
            r"LoRAAdapterNotFoundError|Loading lora \S+ failed: No",
            r"adapter_config\.json'?.*(?:not found|No such file)|No such file.*adapter_config\.json|Can't find 'adapter_config\.json'",
        ),
        (
            "vllm.exceptions.LoRAAdapterNotFoundError: Loading lora a failed: No adapter found for /models/a",
            "FileNotFoundError: [Errno 2] No such file or directory: '/models/a/adapter_config.json'",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Loaded adapter a",),
        (put("lora_modules", "=path", 60), drop("lora_modules", 70, "quality")),
    ),
    Rule(
        "lora.modules",
        "http",
        _("The adapter is made for another model"),
        _("It changes parts that this model does not have."),
        (
            r"expected target modules in .* but received|vLLM only supports modules_to_save being None",
            r"unsupported LoRA weight",
            r"Call to add_lora method failed(?!: Worker failed)",
        ),
        (
            "ValueError: While loading /models/a, expected target modules in ['q_proj'] but received ['wqkv'].",
            "ValueError: base_model.model.x is unsupported LoRA weight",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] target modules: q_proj",),
        (model(_("Use an adapter made for this base model."), 70), drop("lora_modules", 60, "quality")),
    ),
    Rule(
        "spec.vocab",
        "config",
        _("The helper model speaks another vocabulary"),
        _("The small model that guesses ahead must have the same vocabulary as the large one."),
        (
            r"Target and draft model should have the same vocabulary size",
            r"draft.*vocab.*(?:mismatch|must match|not match)",
        ),
        (
            "  Value error, Target and draft model should have the same vocabulary size. Target model vocab_size=512.",
            "ValueError: Target and draft model should have the same vocabulary size. Draft model vocab_size=1024.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] draft model vocab 512",),
        (drop("speculative_config", 75, "speed"), model(_("Use a helper model of the same family."), 60)),
    ),
    Rule(
        "spec.no_tokens",
        "config",
        _("The settings do not say how many tokens the helper model guesses"),
        _(
            "A small helper model guesses the next tokens, and the large one checks them. The number of guesses in one step is missing."
        ),
        (r"num_speculative_tokens`? was (?:not )?provided",),
        (
            "  Value error, A speculative model was provided, but `num_speculative_tokens` was not provided",
            "ValueError: num_speculative_tokens was provided but without speculative model.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] num_speculative_tokens=3",),
        (put("speculative_config", "=spec_tokens", 85), drop("speculative_config", 75, "speed")),
    ),
    Rule(
        "spec.unsupported",
        "config",
        _("This way to guess ahead is not supported"),
        _("The method is unknown to this version, or does not go with another setting or the model."),
        (r"Unsupported speculative method", r"[Ss]peculative decoding .*(?:is )?not (?:yet )?supported"),
        (
            "NotImplementedError: Unsupported speculative method: 'foo'",
            "ValueError: Speculative decoding is not supported with pipeline parallelism.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] speculative decoding is on",),
        (drop("speculative_config", 85, "speed"), newer(_("Start with a newer version of the engine."), 40)),
    ),
)
