"""What a person decides about a deployment, as far as memory depends on it. None: the engine's own default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Flags of the engines under one name each; in brackets what vLLM calls them.

    Memory is GiB, everything else is counted in tokens, sequences, layers or GPUs.
    """

    engine: str = "vllm"
    tp: int = 1  # GPUs that share every layer (tensor-parallel-size)
    pp: int = 1  # stages that hold some layers each (pipeline-parallel-size)
    dp: int = 1  # replicas that share the experts among them (data-parallel-size)
    dcp: int = 1  # decode-context-parallel-size
    utilisation: float | None = None  # share of a GPU's total, not of what is free (gpu-memory-utilization)
    context: int | None = None  # max-model-len
    sequences: int | None = None  # max-num-seqs
    batched_tokens: int | None = None  # max-num-batched-tokens
    kv_type: str = "auto"  # kv-cache-dtype; llama.cpp: of the keys
    kv_default: str = ""  # what "auto" means for this model, by its own packing; "" its own numbers
    kv_value_type: str = ""  # llama.cpp: of the values; "" as the keys
    scheme: str = ""  # quantization, or a name of schemes.py
    eager: bool = False  # enforce-eager
    block_size: int | None = None
    kv_gib: float | None = None  # a known size of the cache (kv-cache-memory-bytes; on a CPU VLLM_CPU_KVCACHE_SPACE)
    hybrid_cache: bool = True  # False: disable-hybrid-kv-cache-manager
    state_checkpoints: bool | None = None  # prefix caching of recurrent layers (mamba-cache-mode align); None: default
    text_only: bool = False  # language-model-only, or no image and no video per prompt
    loras: int = 0  # max-loras
    lora_rank: int = 0  # max-lora-rank
    draft_tokens: int = 0  # num_speculative_tokens
    draft_full_layers: int = 0  # layers of the drafter that attend to everything (MTP: 1)
    draft_sliding_layers: int = 0
    draft_window: int = 0
    static_share: float | None = None  # SGLang: mem-fraction-static
    gpu_layers: int | None = None  # llama.cpp: n-gpu-layers; None all
    micro_batch: int = 512  # llama.cpp: ubatch-size
    flash_attention: bool = True  # llama.cpp
    parallel: int = 1  # Ollama: OLLAMA_NUM_PARALLEL

    def __post_init__(self) -> None:
        """Raises ValueError for what no engine can mean."""
        for name in ("tp", "pp", "dp", "dcp", "micro_batch", "parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("context", "sequences", "batched_tokens", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("utilisation", "static_share"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1")
        for name in ("loras", "lora_rank", "draft_tokens", "draft_full_layers", "draft_sliding_layers", "draft_window"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.kv_gib is not None and not self.kv_gib > 0:
            raise ValueError("kv_gib must be above 0")
