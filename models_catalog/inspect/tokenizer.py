"""Whether a Hugging Face folder has a tokenizer, and which. Pure; the tokenizer itself is never loaded."""

from __future__ import annotations

from typing import Any

from models_catalog.inspect.listing import Listing

# Files that make up or configure a tokenizer, for the list of files on the model's page.
TOKENIZER_NAMES = frozenset(
    {
        "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json",
        "tiktoken.model",
    }
)  # fmt: skip


def tokenizer_of(listing: Listing, tokenizer_config: dict[str, Any]) -> str:
    """The main tokenizer file, "" when there is none.

    A tokenizer made by the model's own code (auto_map in tokenizer_config.json) counts by that file's name.
    """
    found = listing.tokenizer_file()
    if found:
        return found
    return "tokenizer_config.json" if tokenizer_config.get("auto_map") else ""


def is_tokenizer_file(name: str) -> bool:
    return name in TOKENIZER_NAMES or name.endswith(".tiktoken")
