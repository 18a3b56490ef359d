"""Number formats of vLLM's KV cache: what one number takes, and scales beside the numbers.

Source: CacheDType in vLLM's config/cache.py and kv_cache_interface.py of 0.32.
"""

from __future__ import annotations

import re
from functools import lru_cache

SIZES: tuple[tuple[str, float], ...] = (  # how a name begins; the first that matches counts
    ("fp8", 1.0), ("float8", 1.0), ("int8", 1.0), ("e4m3", 1.0), ("e5m2", 1.0), ("uint8", 1.0),
    ("nvfp4", 0.5 + 1 / 16), ("int4", 0.5), ("fp4", 0.5 + 1 / 16), ("turboquant_k8v4", 0.75), ("turboquant_4bit", 0.5),
    ("turboquant_k3v4", 0.4375), ("turboquant_3bit", 0.375), ("ultraquant_4bit", 0.5),
    ("bfloat16", 2.0), ("bf16", 2.0), ("float16", 2.0), ("fp16", 2.0), ("half", 2.0), ("float32", 4.0), ("fp32", 4.0),
    ("float", 4.0), ("f16", 2.0), ("f32", 4.0),
)  # fmt: skip
OWN = frozenset({"", "auto", "none", "default"})
HEAD_SCALE_BYTES = 4  # of each token and head, keys and values alike


@lru_cache(maxsize=1024)
def plain(name: str) -> str:
    """As vLLM writes it: "torch.float8_e4m3fn", "FP8 (e4m3)" and "fp8?" are fp8 too."""
    return re.sub(r"[\s?()-]+", "_", name.strip().lower()).strip("_").removeprefix("torch.")


def number_bytes(name: str, default: str = "") -> tuple[float | None, bool]:
    """(bytes of one number, whether the name is known). None bytes: as the model's own numbers."""
    wanted = plain(name)
    if wanted in OWN:
        wanted = plain(default)
        if wanted in OWN:
            return None, True
    for start, size in SIZES:
        if wanted.startswith(start):
            return size, True
    return None, False


def scale_bytes(name: str) -> int:
    """Beside the numbers of one token in one head."""
    return HEAD_SCALE_BYTES if plain(name).endswith("per_token_head") else 0
