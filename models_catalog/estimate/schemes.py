"""Quantisation schemes: the bytes that one linear layer takes on a GPU.

Only linear layers are packed. Embeddings, output head, router, norms and vision stay in 16 bits (edge case 8).
"""

from __future__ import annotations

from dataclasses import dataclass

from models_catalog.estimate.plan import Reason
from models_catalog.estimate.units import ceil_div
from models_catalog.facts import ModelFacts


@dataclass(frozen=True)
class Scheme:
    """Bytes of a linear layer with `out` × `into` weights: packed weights, and scales by channel, block or group."""

    name: str
    weight: float = 2.0  # bytes per weight
    channel: float = 0.0  # bytes per output channel
    block: float = 0.0  # bytes per 128 × 128 block
    group: int = 0  # weights that share a scale
    group_scale: float = 0.0  # bytes of that scale
    group_zero: float = 0.0  # bytes of its zero point
    experts_only: bool = False
    exact: bool = True  # False: layouts of this name differ, so the range is wider
    words: bool = False  # word vectors and output head are packed too

    @property
    def source(self) -> Reason:
        """Where a size counted with it comes from."""
        return Reason("weights.plain") if self.name == "none" else Reason("weights.shape", {"scheme": self.name})

    def linear(self, out: int, into: int, copies: int = 1) -> list[float]:
        """Sizes of the tensors, as the engine fuses them; `copies` are experts, stacked into one tensor."""
        weights = float(out * into * copies)
        sizes = [weights * self.weight]
        if self.channel:
            sizes.append(out * copies * self.channel)
        if self.block:
            sizes.append(ceil_div(out, 128) * ceil_div(into, 128) * self.block * copies)
        if self.group:
            sizes.append(weights / self.group * self.group_scale)
        if self.group_zero:
            sizes.append(weights / self.group * self.group_zero)
        return sizes


PLAIN = Scheme("none")
UNPACKED = Scheme("unknown", exact=False)  # stands for a packing that is not known: no more than 16 bits
FULL = Scheme("fp32", weight=4.0)
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        PLAIN,
        FULL,
        Scheme("fp8-channel", weight=1.0, channel=4.0),
        Scheme("int8-channel", weight=1.0, channel=4.0),
        Scheme("fp8-online", weight=1.0),
        Scheme("fp8-tensor", weight=1.0),
        Scheme("fp8-block128", weight=1.0, block=4.0),
        Scheme("awq-int4-g128", weight=0.5, group=128, group_scale=2.0, group_zero=0.5),
        Scheme("gptq-int4-g128", weight=0.5, group=128, group_scale=2.0),
        Scheme("gptq-int8-g128", weight=1.0, group=128, group_scale=2.0),
        Scheme("int4-g32", weight=0.5, group=32, group_scale=2.0),
        Scheme("int4-g64", weight=0.5, group=64, group_scale=2.0),
        Scheme("nvfp4", weight=0.5, group=16, group_scale=1.0),
        Scheme("mxfp4", weight=0.53125, experts_only=True, exact=False),
        Scheme("mxfp8", weight=1.0, group=32, group_scale=1.0, exact=False),
        Scheme("bitsandbytes-4bit", weight=0.5, group=64, group_scale=4.0, exact=False),
        Scheme("bitsandbytes-8bit", weight=1.0, channel=4.0, exact=False),
    )
}
ALIASES = {
    "": "none",
    "auto": "none",
    "bf16": "none",
    "bfloat16": "none",
    "fp16": "none",
    "float16": "none",
    "half": "none",
    "float32": "fp32",
    "fp8": "fp8-online",
    "ptpc_fp8": "fp8-channel",
    "fp8-dynamic": "fp8-channel",
    "w8a8": "int8-channel",
    "int8": "int8-channel",
    "awq": "awq-int4-g128",
    "awq_marlin": "awq-int4-g128",
    "awq-int4": "awq-int4-g128",
    "gptq": "gptq-int4-g128",
    "gptq_marlin": "gptq-int4-g128",
    "gptq-int4": "gptq-int4-g128",
    "int4-autoround": "gptq-int4-g128",
    "auto-round": "gptq-int4-g128",
    "int4": "gptq-int4-g128",
    "w4a16": "gptq-int4-g128",
    "modelopt_fp4": "nvfp4",
    "modelopt": "fp8-tensor",
    "bitsandbytes": "bitsandbytes-4bit",
    "unquantized": "none",
    "no": "none",
    "f16": "none",
    "fp8-per-tensor": "fp8-tensor",
    "fp8-static": "fp8-tensor",
    "fp8-per-channel": "fp8-channel",
    "fp8-w8a8": "fp8-channel",
    "w8a8-fp8": "fp8-channel",
    "fbgemm-fp8": "fp8-channel",
    "ptpc-fp8": "fp8-channel",
    "fp8-per-block": "fp8-block128",
    "fp8-block": "fp8-block128",
    "fp8-pb-wo": "fp8-block128",
    "int8-w8a8": "int8-channel",
    "w8a8-int8": "int8-channel",
    "int8-per-channel-weight-only": "int8-channel",
    "experts-int8": "int8-channel",
    "w8a16": "gptq-int8-g128",
    "gptq-int8": "gptq-int8-g128",
    "8bit": "gptq-int8-g128",
    "auto-awq": "awq-int4-g128",
    "awq-marlin": "awq-int4-g128",
    "awq-4bit": "awq-int4-g128",
    "int4-awq": "awq-int4-g128",
    "w4a16-awq": "awq-int4-g128",
    "awq-int4-g64": "int4-g64",
    "awq-int4-g32": "int4-g32",
    "auto-gptq": "gptq-int4-g128",
    "gptq-marlin": "gptq-int4-g128",
    "gptq-4bit": "gptq-int4-g128",
    "gptq-int4-g64": "int4-g64",
    "gptq-int4-g32": "int4-g32",
    "autoround": "gptq-int4-g128",
    "inc": "gptq-int4-g128",
    "moe-wna16": "gptq-int4-g128",
    "int4-g128": "gptq-int4-g128",
    "4bit": "gptq-int4-g128",
    "modelopt-fp4": "nvfp4",
    "fp4": "nvfp4",
    "nvfp4a16": "nvfp4",
    "nvfp4-per-token": "nvfp4",
    "modelopt-mxfp8": "mxfp8",
    "gpt-oss-mxfp4": "mxfp4",
    "bnb": "bitsandbytes-4bit",
    "bnb-4bit": "bitsandbytes-4bit",
    "bnb-nf4": "bitsandbytes-4bit",
    "nf4": "bitsandbytes-4bit",
    "bnb-8bit": "bitsandbytes-8bit",
    "bitsandbytes-int8": "bitsandbytes-8bit",
}
INEXACT = frozenset({
    "int4-autoround", "auto-round", "autoround", "inc", "int4", "awq-int4", "4bit", "8bit", "moe-wna16", "experts-int8",
})  # fmt: skip
UNSURE = frozenset({"", "unknown"})  # what is left of "?" and the like: the packing was not told
# Bits of a weight on average, all tensors of such a GGUF file together.
FILE_BITS = {
    "f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_k": 6.56, "q5_k_m": 5.69, "q5_k_s": 5.54, "q5_0": 5.54,
    "q4_k_m": 4.85, "q4_k_s": 4.58, "q4_0": 4.55, "q3_k_m": 3.91, "q2_k": 3.0, "iq4_xs": 4.3, "iq4_nl": 4.5,
    "iq3_xxs": 3.1, "iq2_xxs": 2.1, "iq1_s": 1.6, "q4_1": 5.0, "q5_1": 6.0, "q3_k_l": 4.27, "q3_k_s": 3.5,
    "iq3_m": 3.7, "iq3_s": 3.5, "iq2_m": 2.7, "iq2_s": 2.5, "iq1_m": 1.75, "q4_k_xl": 4.9, "q6_k_l": 6.7,
    "q5_k_xl": 5.75, "q8_k_xl": 10.0, "q3_k_xl": 4.1, "q2_k_xl": 3.1,
}  # fmt: skip


def scheme_named(name: str) -> Scheme | None:
    """By a flag's value or a name of this table; None when it is neither."""
    wanted = name.strip().lower()
    sure = not wanted.endswith("?")
    wanted = wanted.rstrip("? ")
    if wanted in UNSURE and not sure:
        return None
    if bits := file_bits(wanted):
        return Scheme(wanted, weight=bits / 8, exact=False, words=True)
    dashed = wanted.replace("_", "-").replace(" ", "-")
    found = SCHEMES.get(ALIASES.get(wanted, wanted)) or SCHEMES.get(ALIASES.get(dashed, dashed))
    if found and (dashed in INEXACT or not sure):
        return Scheme(**{**found.__dict__, "exact": False})
    return found


def file_bits(name: str) -> float | None:
    """Of a GGUF's file type, with what makers of dynamic ones put before it; None for another name."""
    wanted = name.strip().lower().removeprefix("gguf").strip("-_ :").removeprefix("ud-")
    if wanted in ("f32", "f16", "bf16") and not name.strip().lower().startswith("gguf"):
        return None  # that is no packing
    return FILE_BITS.get(wanted)


def scheme_of(facts: ModelFacts, asked: str) -> Scheme | None:
    """What the engine loads: asked for by a flag, else as the files are; None when that is not known.

    A flag that only names the method of an already quantised model does not change its layout.
    """
    own, wanted = _own(facts), asked.strip().lower()
    if wanted in ("", "auto") or (wanted == "none" and facts.quantisation):
        return own
    if own is not PLAIN and wanted.rstrip("? ") in UNSURE:
        return own
    if own is not None and own is not PLAIN and wanted not in SCHEMES:
        return own
    return scheme_named(wanted)


def _own(facts: ModelFacts) -> Scheme | None:
    if facts.weight_scheme:
        return scheme_named(facts.weight_scheme)
    if facts.quantisation is not None:
        return None
    return PLAIN  # float32 files too: the engine loads them in 16 bits unless it is told not to
