"""Whether a Hugging Face folder has a tokenizer, and which. Pure; the tokenizer itself is never loaded."""

from __future__ import annotations

import re
from typing import Any

from models_catalog.facts import Problem
from models_catalog.inspect.listing import Listing, LocalFile
from models_catalog.inspect.reading import LFS_MARK, clean, open_regular

# Files that make up or configure a tokenizer, for the list of files on the model's page.
TOKENIZER_NAMES = frozenset(
    {
        "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json",
        "tiktoken.model",
    }
)  # fmt: skip
BY_FILE = {
    "tokenizer.model": "sentencepiece",
    "spiece.model": "sentencepiece",
    "sentencepiece.bpe.model": "sentencepiece",
    "tekken.json": "tekken",
    "tiktoken.model": "tiktoken",
    "vocab.json": "bpe",
    "vocab.txt": "wordpiece",
}
# In tokenizer.json; older ones leave the type out, and are told by what only they have.
_TYPE = re.compile(rb'"model"\s*:\s*\{\s*"type"\s*:\s*"(\w{1,20})"')
_OLD = re.compile(rb'"model"\s*:\s*\{[^{}]{0,400}?"(continuing_subword_prefix|unk_id|dropout)"')
OLD_SIGNS = {b"unk_id": "unigram", b"dropout": "bpe", b"continuing_subword_prefix": "wordpiece"}
CHUNK, MAX_LOOK = 256 << 10, 4 << 20  # the model stands behind the added words


def tokenizer_of(listing: Listing, tokenizer_config: dict[str, Any]) -> str:
    """The main tokenizer file, "" when there is none.

    A tokenizer made by the model's own code (auto_map in tokenizer_config.json) counts by that file's name.
    """
    found = listing.tokenizer_file()
    if found:
        return found
    return "tokenizer_config.json" if tokenizer_config.get("auto_map") else ""


def kind_of(listing: Listing, name: str, problems: list[Problem]) -> str:
    """How it cuts words: bpe, unigram, wordpiece, sentencepiece, tekken, tiktoken; "" when unknown. Names damage."""
    file = listing.files.get(name)
    if file is None:
        return ""
    try:
        damage = _damage(file)
        kind = _in_json(file) if name == "tokenizer.json" else BY_FILE.get(name, "")
    except OSError:
        damage, kind = "cannot_read", ""
    if damage:
        problems.append(Problem(code=damage, params={"file": clean(name)}))
        return ""
    return "tiktoken" if name.endswith(".tiktoken") else kind


def _damage(file: LocalFile) -> str:
    """The code of what is wrong with it, as far as its two ends show; "" when nothing is."""
    if file.size == 0:
        return "zero_bytes"
    with open_regular(file.real) as stream:
        if stream.read(len(LFS_MARK)) == LFS_MARK:
            return "lfs_pointer"
        stream.seek(max(0, file.size - 64))
        end = stream.read(64).rstrip()
    return "bad_tokenizer" if file.name.endswith(".json") and not end.endswith(b"}") else ""


def _in_json(file: LocalFile) -> str:
    tail, old, total = b"", "", 0
    with open_regular(file.real) as stream:
        while total < MAX_LOOK and (chunk := stream.read(CHUNK)):
            total += len(chunk)
            tail = tail[-600:] + chunk
            if found := _TYPE.search(tail):
                return found[1].decode().lower()
            if not old and (sign := _OLD.search(tail)):
                old = OLD_SIGNS[sign[1]]
    return old


def is_tokenizer_file(name: str) -> bool:
    return name in TOKENIZER_NAMES or name.endswith(".tiktoken")
