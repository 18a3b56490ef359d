"""What an engine says of itself while it starts that people should know: versions, and warnings that matter. Pure.

Most warnings mean nothing to anybody. These change how fast or how well it answers, or how much it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from deployments.diagnosis.rule import gettext_noop as _

MOST = 5  # of one start
LONGEST = 80  # characters of a name or a number in it

# (code, pattern, sentence). A named part of the pattern is a place of the sentence.
NOTICES: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (code, re.compile(pattern), text)
    for code, pattern, text in (
        ("eager", r"Enforce eager set|Cudagraph is disabled under eager mode|[Ff]allback to eager mode",
         _("It does not record its work on the GPU (CUDA graphs), so answers come more slowly.")),
        ("quant_slow", r"quantization is not fully optimized yet",
         _("This kind of quantisation is not fast in this version; the plain model may answer faster.")),
        ("fp8_weights", r"not have native support for FP8",
         _("This GPU cannot calculate in FP8: the weights are kept in 8 bits and calculated with 16.")),
        ("no_p2p", r"Custom allreduce is disabled because",
         _("The GPUs cannot reach each other's memory directly, so a model on several of them is slower.")),
        ("few_files", r"Found ulimit of (?P<n>\d{1,4}) and failed to automatically increase",
         _("Only %(n)s files may be open at once, which can be too few under many requests.")),
        ("experts_plain", r"Using default MoE config",
         _("There are no tuned settings for this model's experts on this GPU, so it is somewhat slower.")),
        ("other_dtype", r"Casting torch\.(?P<old>\w+) to torch\.(?P<new>\w+)",
         _("The weights are in %(old)s, and it calculates in %(new)s.")),
        ("other_dtype", r"doesn't support torch\.(?P<old>\w+)\. Falling back to torch\.(?P<new>\w+)",
         _("The weights are in %(old)s, and it calculates in %(new)s.")),
        ("kv_rounding", r"padding layers, may waste at most (?P<share>[\d.]+)%",
         _("Up to %(share)s %% of the memory for conversations (KV cache) is lost to rounding.")),
        ("kv_usual", r"VLLM_CPU_KVCACHE_SPACE .*(?:is|was) not set",
         _("How much memory conversations may take was not set, so it took its usual amount.")),
        ("shorter", r"[Aa]uto-fit max_model_len: reduced from (?P<old>\d+) to (?P<new>\d+)",
         _("The context was shortened from %(old)s to %(new)s tokens, so that it fits.")),
        ("assumed_length", r"Assuming the model's maximum length is (?P<n>\d+)",
         _("The model's files do not say how long its context is; %(n)s tokens were assumed.")),
        ("cpu_slow", r"libtcmalloc is not found|libiomp is not found",
         _("A library that makes an engine on a CPU faster is not there.")),
        ("unknown_variable", r"Unknown vLLM environment variable detected: (?P<name>\w+)",
         _("It does not know the environment variable %(name)s, and passes it over.")),
        ("model_sampling", r"sampling parameters have been overridden by",
         _("How it chooses words (temperature and the like) follows the model's own generation_config.json.")),
        ("deprecated", r"quantization method (?P<name>[\w-]+) is deprecated",
         _("The kind of quantisation %(name)s will be taken out of a later version.")),
    )
)  # fmt: skip
TEXTS = {code: text for code, _pattern, text in NOTICES}
VERSIONS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (name, literal, re.compile(pattern))
    for name, literal, pattern in (
        ("nccl", "using nccl==", r"using nccl==(\d[\w.+-]*)"),
        ("nccl", "NCCL version", r"NCCL version (\d[\w.+-]*)"),
        ("torch", "PyTorch version", r"PyTorch version *: *(\d[\w.+]*)"),
        ("torch", "torch==", r"\btorch==(\d[\w.+]*)"),
        ("cuda", "used to build PyTorch", r"CUDA used to build PyTorch *: *(\d[\d.]*)"),
        ("transformers", "transformers==", r"\btransformers==(\d[\w.]*)"),
        ("transformers", "transformers_version", r"transformers_version['\"]?[:=] *['\"]?(\d[\w.]*)"),
    )
)
# Every line that tells one of them holds one of these.
WORDS = (
    "nforce eager", "eager mode", "fully optimized", "native support", "Custom allreduce", "Found ulimit", "MoE config",
    "Casting torch", "Falling back to torch", "padding layers", "KVCACHE_SPACE", "uto-fit", "Assuming the",
    " is not found in LD", "variable detected", "sampling parameters", " is deprecated", "using nccl==", "NCCL version",
    "PyTorch version", "to build PyTorch", "torch==", "transformers==", "transformers_version",
)  # fmt: skip
BYTES = tuple(word.encode() for word in WORDS)


def take(facts: dict[str, Any], text: str, number: int) -> None:
    """What one cleaned line tells, into the facts of its start; `number` is the line's, 0 where it is not known."""
    if not any(word in text for word in WORDS):
        return
    for name, literal, pattern in VERSIONS:
        if literal in text and (found := pattern.search(text)) and len(found[1]) <= LONGEST:
            facts[name] = found[1]
    known = facts.get("notices") or []
    if len(known) >= MOST:
        return
    for code, pattern, _text in NOTICES:
        if (met := pattern.search(text)) and all(each["code"] != code for each in known):
            values = {name: value[:LONGEST] for name, value in met.groupdict().items() if value}
            facts["notices"] = [*known, {"code": code, "line": number, "values": values}]
            return


def sentence(notice: Mapping[str, Any], translate: Callable[[str], str] = str) -> str:
    """One kept notice in words; "" for one that this version does not know."""
    text, values = TEXTS.get(str(notice.get("code")), ""), notice.get("values") or {}
    if not text or not set(re.findall(r"%\((\w+)\)s", text)) <= set(values):
        return ""
    shown = {name: f"{int(value):,}" if str(value).isdecimal() else value for name, value in values.items()}
    return translate(text) % shown
