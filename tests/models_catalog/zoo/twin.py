"""A GGUF header of the size of a real small model's: SmolLM2-135M has 49,152 words, 48,900 merges, 272 tensors."""

from functools import cache

from tests.models_catalog.builders import gguf_layout
from tests.models_catalog.zoo import gguf_models as zoo

WORDS, MERGES, TENSORS = 49_152, 48_900, 272


@cache
def twin_layout(words: int = WORDS, merges: int = MERGES) -> tuple[bytes, int]:
    """The header, and the size of the whole file."""
    keys = zoo.keys("llama", tokens=words, **zoo.SMALL, general__file_type=7)
    keys["tokenizer.ggml.merges"] = [f"Ġmerge{n} with" for n in range(merges)]
    tensors = [("token_embd.weight", [576, words], zoo.Q8_0)]
    tensors += [(f"blk.{n}.attn_q.weight", [576, 576], zoo.Q8_0) for n in range(TENSORS - 1)]
    return gguf_layout(keys, tensors)
