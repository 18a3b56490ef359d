"""Which parser reads a model's tool calls and thoughts: by the model's family, of those that the runtime has. Pure.

Facts from vLLM's documentation (tool calling, reasoning outputs) and the registry of its releases. Names come and go
between releases, so each family lists several, the best first; what the runtime does not have is never proposed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

TOOLS, THOUGHTS = "tool_call_parser", "reasoning_parser"
OPTIONS = (TOOLS, THOUGHTS)

# Tried in this order on "name, model type, architecture" in small letters: a pattern, parsers of tool calls, of
# thoughts. What names a version stands before its family. No parser of thoughts: that model does not think aloud.
_FAMILIES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (r"xlam", ("xlam",), ()),
    (r"toolace", ("pythonic",), ()),
    (r"hermes", ("hermes",), ()),
    (r"functiongemma", ("functiongemma",), ()),
    (r"deepseek[-_ ]?r1[-_ ]?distill", (), ("deepseek_r1",)),
    (r"deepseek[-_ ]?r1", ("deepseek_v3",), ("deepseek_r1",)),
    (r"deepseek[-_ ]?v3[.]?2|deepseek_?v32", ("deepseek_v32", "deepseek_v31"), ("deepseek_v3",)),
    (r"deepseek[-_ ]?v3[.]?1", ("deepseek_v31",), ("deepseek_v3",)),
    (r"deepseek[-_ ]?v3", ("deepseek_v3",), ()),
    (r"qwq", ("hermes",), ("deepseek_r1",)),
    (r"qwen3[-_ ]?coder", ("qwen3_coder", "qwen3_xml"), ()),
    (r"qwen3[.]5|qwen3_5", ("qwen3_coder", "qwen3_xml"), ("qwen3",)),
    (r"qwen3[-\w. ]*instruct", ("hermes", "qwen3_json"), ()),
    (r"qwen3(?!\w*_vl)", ("hermes", "qwen3_json"), ("qwen3",)),
    (r"qwen", ("hermes", "qwen3_json"), ()),
    (r"smollm3", ("hermes",), ()),
    (r"magistral", ("mistral",), ("mistral",)),
    (r"mistral|mixtral|ministral|devstral|codestral", ("mistral",), ()),
    (r"llama[-_ ]?4|llama4", ("llama4_pythonic", "llama4_json", "pythonic"), ()),
    (r"llama[-_ ]?3[.][123]", ("llama3_json",), ()),
    (r"granite[-_ ]?20b[-\w]*function", ("granite-20b-fc",), ()),
    (r"granite[-_ ]?4|granitemoehybrid", ("granite4", "granite", "hermes"), ()),
    (r"granite[-_ ]?3[.]2", ("granite",), ("granite",)),
    (r"granite[-_ ]?3", ("granite",), ()),
    (r"gpt[-_ ]?oss|gptoss", ("openai",), ("openai_gptoss", "GptOss")),
    (r"glm[-_ ]?4[.]7|glm[-_ ]?5", ("glm47", "glm45"), ("glm47", "glm45")),
    (r"glm[-_ ]?4[.][56]|glm4_moe", ("glm45",), ("glm45",)),
    (r"kimi[-_ ]?k2", ("kimi_k2",), ("kimi_k2",)),
    (r"hunyuan[-_ ]?a13b|hunyuan_?v1_?moe", ("hunyuan_a13b",), ("hunyuan_a13b",)),
    (r"minimax[-_ ]?m2", ("minimax_m2",), ("minimax_m2_append_think", "minimax_m2")),
    (r"minimax", ("minimax",), ()),
    (r"internlm2[._]5|internlm2", ("internlm",), ()),
    (r"jamba", ("jamba",), ()),
    (r"phi[-_ ]?4[-_ ]?mini", ("phi4_mini_json",), ()),
    (r"olmo[-_ ]?3", ("olmo3",), ("olmo3",)),
    (r"seed[-_ ]?oss", ("seed_oss",), ("seed_oss",)),
    (r"ernie[-_ ]?4[._]?5", ("ernie45",), ("ernie45",)),
    (r"step[-_ ]?3", ("step3",), ("step3",)),
    (r"longcat", ("longcat",), ()),
    (r"gigachat[-_ ]?3", ("gigachat3",), ()),
    (r"lfm2", ("lfm2",), ()),
    (r"apertus", ("apertus",), ()),
    (r"gemma[-_ ]?4", ("gemma4",), ("gemma4",)),
    (r"holo2", (), ("holo2",)),
)  # fmt: skip


def kinds_of(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells the family of a model: what it is called, then what its files say."""
    said = (name, str(facts.get("origin") or ""), str(facts.get("model_type") or ""),
            *map(str, facts.get("architectures") or ()))  # fmt: skip
    return tuple(word.lower() for word in said if word)


def fitting(option: str, kinds: Collection[str], there: Collection[str]) -> str:
    """The parser for this model among those that are `there`; "" where none is known to fit."""
    return next((name for name in _of_family(option, kinds) if name in there), "")


def _of_family(option: str, kinds: Collection[str]) -> Iterator[str]:
    place = OPTIONS.index(option) if option in OPTIONS else None
    if place is None:
        return
    for pattern, *parsers in _FAMILIES:
        if any(re.search(pattern, word) for word in kinds):
            yield from parsers[place]
            return
