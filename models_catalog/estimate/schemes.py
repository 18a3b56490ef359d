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
}
INEXACT = frozenset({"int4-autoround", "auto-round", "int4", "awq-int4"})


def scheme_named(name: str) -> Scheme | None:
    """By a flag's value or a name of this table; None when it is neither."""
    wanted = name.strip().lower()
    found = SCHEMES.get(ALIASES.get(wanted, wanted))
    if found and wanted in INEXACT:
        return Scheme(**{**found.__dict__, "exact": False})
    return found


def scheme_of(facts: ModelFacts, asked: str) -> Scheme | None:
    """What the engine loads: asked for by a flag, else as the files are; None when that is not known.

    A flag that only names the method of an already quantised model does not change its layout.
    """
    own, wanted = _own(facts), asked.strip().lower()
    if wanted in ("", "auto") or (wanted == "none" and facts.quantisation):
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
