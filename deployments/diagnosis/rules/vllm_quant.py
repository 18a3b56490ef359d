"""vLLM: quantisation, number formats, attention, GGUF files."""

from deployments.diagnosis.rule import Rule, drop, env, host, model, newer, put
from deployments.diagnosis.rule import gettext_noop as _

OTHER_FORMAT = _("Use another quantised file of this model.")
NEWER = _("Start with a newer version of the engine.")

RULES = (
    Rule(
        "gguf.arch_unsupported",
        "config",
        _("This engine cannot read GGUF files of this kind of model"),
        _("The architecture or the kind of quantisation inside the GGUF file is not known to it."),
        (
            r"GGUF model with architecture (?P<arch>\S+) is not supported|Failed to map GGUF parameters",
            r"Unknown gguf model_type",
            r"Unsupported GGUF quantization type",
        ),
        (
            "ValueError: GGUF model with architecture qwen3moe is not supported yet.",
            "RuntimeError: Unknown gguf model_type: gemma3n",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] gguf architecture: llama",),
        (
            host(_("Serve this file with llama.cpp, outside Berth."), chance=80, name="llamacpp"),
            model(_("Use the model's safetensors files."), 70),
        ),
    ),
    Rule(
        "gguf.unsupported_tensor",
        "load",
        _("A part of this GGUF file is not known to the engine"),
        _("A quantised part stands where this version expects a plain one."),
        (r"no module or parameter named '[^']*qweight_type'", r"KeyError: '[\w.]*qweight_type'"),
        (
            "ValueError: There is no module or parameter named 'lm_head.qweight_type' in Qwen2ForCausalLM",
            "KeyError: 'model.embed_tokens.qweight_type'",
        ),
        ("ValueError: There is no module or parameter named 'layers.1' in LlamaModel",),
        (
            newer(NEWER, 60),
            host(_("Serve this file with llama.cpp, outside Berth."), chance=75, name="llamacpp"),
            model(OTHER_FORMAT, about="other_form"),
        ),
    ),
    Rule(
        "gpu.gguf_no_cpu_kernels",
        "serving",
        _("This engine cannot calculate with GGUF files on a processor"),
        _("The file was read, but the programs for its quantisation exist for GPUs only."),
        (r"Triton dequant kernels require CUDA", r"ggml_\w+.*(?:require|only).*CUDA"),
        (
            "ValueError: Triton dequant kernels require CUDA tensors",
            "RuntimeError: ggml_dequantize is only implemented for CUDA",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Triton kernels for CUDA are used",),
        (
            host(_("Serve this file with llama.cpp, outside Berth."), chance=85, name="llamacpp"),
            model(_("Use the model's safetensors files."), 70),
        ),
    ),
    Rule(
        "quant.mismatch",
        "config",
        _("The chosen quantisation is not the model's"),
        _(
            "Quantisation keeps the weights in fewer bits. These files were made in one way, and the setting names another."
        ),
        (
            r"Quantization method specified in the model config \((?P<have>.*?)\) does not match the quantization "
            r"method specified in the `quantization` argument \((?P<asked>.*?)\)",
            r"Quantization method specified in the model config|load format and QLoRA adapter only support",
        ),
        (
            "ValueError: Quantization method specified in the model config (awq) does not match the quantization method "
            "specified in the `quantization` argument (gptq).",
            "  Value error, Quantization method specified in the model config (fp8) does not match the quantization method "
            "specified in the `quantization` argument (awq).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] quantization=awq",),
        (drop("quantization", 90), put("quantization", "=have", 70)),
    ),
    Rule(
        "quant.unknown",
        "config",
        _("This version does not know the quantisation"),
        _(
            "Quantisation keeps the weights in fewer bits. This kind of it is made for another engine, is too new, or was taken out of this version."
        ),
        (
            r"Unknown quantization method: (?P<value>\S*?)\. Must be one of",
            r"(?:Unknown|Invalid) quantization method",
        ),
        (
            "  Value error, Unknown quantization method: bitsandbytes. Must be one of ['awq', 'fp8']",
            "ValueError: Invalid quantization method: exl2",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] quantization method: awq",),
        (
            drop("quantization", 60),
            model(OTHER_FORMAT, 60, about="other_form"),
            newer(_("Use an engine version that knows it."), 50),
        ),
    ),
    Rule(
        "quant.no_config",
        "config",
        _("The model is not quantised in the chosen way"),
        _("The setting names a quantisation for which the files hold no configuration."),
        (r"Cannot find the config file for (?P<value>\w+)", r"requires a .*quant\w* config"),
        ("  Value error, Cannot find the config file for awq", "ValueError: Cannot find the config file for gptq"),
        ("INFO 01-01 10:00:00 [x.py:1] config file for the model",),
        (drop("quantization", 85), put("quantization", "fp8", 50, "quality")),
    ),
    Rule(
        "quant.gpu_capability",
        "config",
        _("This GPU is too old for the quantisation"),
        _(
            "Quantisation keeps the weights in fewer bits. This kind of it needs a newer generation of GPUs than the one in this machine."
        ),
        (
            r"uantization method (?P<value>\S+) is not supported for the current GPU\. Minimum capability: (?P<need>\d+)",
            r"[Qq]uantization (?:scheme|method).* is not supported for the current GPU",
        ),
        (
            "ValueError: The quantization method awq is not supported for the current GPU. Minimum capability: 75. Current capability: 70.",
            "RuntimeError: Quantization scheme is not supported for the current GPU. Min capability: 80.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] capability 75",),
        (
            model(
                _("Use a quantisation that this GPU can run (GPTQ on 7.0, AWQ from 7.5, FP8 from 8.9)."),
                65,
                about="other_form",
            ),
        ),
    ),
    Rule(
        "quant.dtype",
        "config",
        _("The quantisation does not go with the number format"),
        _("Quantisation keeps the weights in fewer bits. This kind of it calculates in one number format only."),
        (
            r"torch\.(?P<have>\w+) is not supported for quantization method (?P<value>\w+)\. Supported dtypes: \[torch\.(?P<want>\w+)",
            r"is not supported for quantization method",
        ),
        (
            "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]",
            "  Value error, torch.float32 is not supported for quantization method gptq. Supported dtypes: [torch.float16]",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] dtype=torch.bfloat16",),
        (put("dtype", "=want", 90, "quality"),),
    ),
    Rule(
        "quant.no_kernel",
        "load",
        _("No program for this quantisation fits this GPU and this model"),
        _(
            "The sizes, the GPU or the number format rule out every way to calculate it. The next lines name the reasons."
        ),
        (
            r"Failed to find a kernel that can implement the (?P<what>\S+)",
            r"No (?:suitable|compatible|valid) (?:\w+ )?kernel (?:found|for|backend)",
            r"No \w+ MoE backend supports|Failed to (?:initialize|run) cutlass|gemm is not implemented for",
        ),
        (
            "ValueError: Failed to find a kernel that can implement the WNA16 linear layer. Reasons: ",
            "NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Using MarlinLinearKernel for GPTQMarlinLinearMethod",),
        (
            put("tensor_parallel_size", "=half_tp", 60, "speed"),
            model(OTHER_FORMAT, 60, about="other_form"),
            put("dtype", "half", 40),
        ),
    ),
    Rule(
        "quant.unsupported_layers",
        "load",
        _("The quantised files do not fit what the engine expects"),
        _("This version does not know this quantisation for this kind of model."),
        (
            r"KeyError: '(?P<key>[\w.]*(?:qweight|absmax|qzeros|scales|g_idx|weight_scale\w*|input_scale|_scale(?:_inv)?|quant_state\w*|nested_absmax))'",
            r"does not support BitsAndBytes quantization yet|No compressed-tensors compatible scheme",
            r"no module or parameter named '(?P<key>[\w.]*(?:qweight|absmax|qzeros|scales|g_idx|weight_scale\w*|input_scale|quant_state[\w.]*))'",
        ),
        ("KeyError: 'layers.0.mlp.down_proj.weight.absmax'", "KeyError: 'model.layers.23.attention.wqkv.qweight'"),
        ("KeyError: 'layers.5.self_attn.v_proj.weight'",),
        (
            put("tensor_parallel_size", "1", 40, "speed"),
            model(_("Use the model's files without quantisation."), 65),
            newer(NEWER, 50),
        ),
    ),
    Rule(
        "dtype.bf16_cc",
        "device",
        _("This GPU does not know the number format bfloat16"),
        _("GPUs before the Ampere generation (V100, T4, RTX 20) calculate in float16 instead."),
        (
            r"[Bb]float16 is only supported on GPUs with compute capability of at least",
            r"[Bb]float16 is not supported (?:on|by)",
        ),
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has 7.5.",
            "RuntimeError: bfloat16 is not supported on this device",
        ),
        ("WARNING 01-01 10:00:00 [x.py:1] Your device 'Tesla T4' doesn't support torch.bfloat16. Falling back",),
        (put("dtype", "half", 90),),
    ),
    Rule(
        "dtype.fp16_forbidden",
        "config",
        _("This model does not work in float16"),
        _("Its numbers grow too large for that format, and its answers would be wrong."),
        (r"model type .* does not support float16", r"does not support float16\. Reason"),
        (
            "  Value error, The model type 'gemma3' does not support float16. Reason: Numerical instability.",
            "ValueError: The model type 'plamo2' does not support float16. Reason: Numerical instability.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] dtype=float16",),
        (put("dtype", "bfloat16", 90), put("dtype", "float32", 60, "memory")),
    ),
    Rule(
        "dtype.fp8_cc",
        "profile",
        _("This GPU cannot calculate in FP8"),
        _("The FP8 format needs a GPU of the Ada or Hopper generation or newer."),
        (
            r"type fp8e4nv not supported in this architecture",
            r"[Ff][Pp]8.*(?:requires|only supported|supported only).*(?:8\.9|9\.0|>= ?89|>= ?90|Hopper|Ada)",
            r"torch\._scaled_mm is only supported on",
        ),
        (
            "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')",
            "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Using fp8 data type to store kv cache.",),
        (
            put("kv_cache_dtype", "auto", 70, "memory"),
            model(_("Use a quantisation that this GPU can run (AWQ or INT8)."), 70, about="other_form"),
        ),
    ),
    Rule(
        "dtype.mismatch",
        "profile",
        _("Two parts calculate in different number formats"),
        _("One part of the model gives numbers in a format that the next part does not take."),
        (
            r"expected scalar type (?P<want>\w+) but found (?P<have>\w+)",
            r"expected m1 and m2 to have the same dtype",
            r"expected mat1 and mat2 to have the same dtype|self and mat2 must have the same dtype",
            r"query and key must have the same dtype|Expected query, key, and value to have the same dtype",
        ),
        (
            "RuntimeError: expected scalar type BFloat16 but found Half",
            "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: c10::BFloat16 != c10::Half",
        ),
        ("ValueError: expected scalar 3",),
        (put("dtype", "half", 60), put("lora_dtype", "auto", 40)),
    ),
    Rule(
        "attn.no_backend",
        "device",
        _("No way to calculate attention fits these settings"),
        _("The model's sizes, the number format and the format of the KV cache rule out every way on this GPU."),
        (
            r"No valid attention backend (?:found|from)",
            r"[Hh]ead size \d+ is not supported by|does not support headdim not being|failed to dispatch head_dim",
            r"(?:Attention|MLA|Impl) (?:currently )?(?:does not|only) supports? (?!Ampere|fp8)[\w ]*(?:head|alibi|sink|soft ?cap|sliding)",
            r"only supports? head[ _]dim|Sinks are only supported",
        ),
        (
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=40)",
            "ValueError: No valid attention backend found for rocm with head_size=80",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Using FLASH_ATTN attention backend out of potential backends",),
        (put("kv_cache_dtype", "auto", 60), drop("attention_backend", 60), put("dtype", "bfloat16", 40)),
    ),
    Rule(
        "attn.backend_unavailable",
        "config",
        _("The chosen way to calculate attention is not available"),
        _(
            "Attention is how a model looks back at earlier words. This version does not know the chosen way, or it does not run with this model or GPU."
        ),
        (
            r"Unknown attention backend: '(?P<value>\w+)'",
            r"Selected backend .* is not valid",
            r"Invalid attention backend|attention backend .* (?:has been removed|is not supported)",
            r"[Bb]ackend \S+ (?:has been removed|is not supported)",
        ),
        (
            "ValueError: Unknown attention backend: 'FOO'. Valid options are: FLASH_ATTN, TRITON_ATTN",
            "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason: ['x']",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Selected backend FLASH_ATTN",),
        (drop("attention_backend", 85), env("VLLM_ATTENTION_BACKEND", "", 60)),
    ),
    Rule(
        "attn.fa_ampere",
        "profile",
        _("The chosen way to calculate attention needs a newer GPU"),
        _("FlashAttention runs on GPUs of the Ampere generation (A100, RTX 30) or newer."),
        (
            r"FlashAttention only supports Ampere GPUs or newer",
            r"(?:Error|Exception): Cannot use FA version|FlashAttention-?[23] (?:is only|requires)",
        ),
        (
            "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
            "AssertionError: Cannot use FA version 3, it is not supported on this device",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.",),
        (put("attention_backend", "TRITON_ATTN", 60), env("VLLM_ATTENTION_BACKEND", "XFORMERS", 60)),
    ),
    Rule(
        "attn.kv_dtype",
        "device",
        _("The number format of the KV cache does not go with this GPU or way to calculate"),
        _(
            "The KV cache is the memory for conversations. It was asked for in a format that this way to calculate attention, or this GPU, does not take."
        ),
        (
            r"fp8_e5m2 kv-cache is not supported",
            r"does not support fp8 kv-?\s?cache",
            r"(?:Unknown|Invalid|Unsupported) kv[ _]cache dtype",
            r"kv-cache .*not supported",
            r"FP8 KV cache on CPU requires",
        ),
        (
            "NotImplementedError: FlashAttention does not support fp8 kv-cache on this device.",
            "ValueError: fp8_e5m2 kv-cache is not supported with fp8 checkpoints.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] kv-cache dtype fp8",),
        (put("kv_cache_dtype", "auto", 90, "memory"),),
    ),
)
