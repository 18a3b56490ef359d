"""From config.json to what a recurrent layer is made of and keeps (facts.State). Pure: dicts in, values out.

Each family names it by keys of its own; where a configuration leaves a value out, the default of its class holds.
"""

from __future__ import annotations

from typing import Any

from models_catalog.facts import State
from models_catalog.inspect.reading import first_whole, obj, whole


def state(part: dict[str, Any], hidden: int) -> State | None:
    """Of the language part; None where no layer is recurrent."""
    return (
        _gated_delta(part)
        or _delta(part, hidden)
        or _short_convolution(part, hidden)
        or _mamba(part, hidden)
        or _mamba_one(part, hidden)
    )


def _gated_delta(part: dict[str, Any]) -> State | None:
    names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    key_heads, value_heads, key_dim, value_dim = (whole(part.get(name)) for name in names)
    if not (key_heads and value_heads and key_dim and value_dim):
        return None
    keys, values = key_heads * key_dim, value_heads * value_dim
    return State(
        in_width=2 * keys + 2 * values,
        gate_width=2 * value_heads,
        out_width=values,
        conv_width=2 * keys + values,
        conv_steps=whole(part.get("linear_conv_kernel_dim")) or 4,
        elements=value_heads * key_dim * value_dim,
        element_bytes=4 if part.get("mamba_ssm_dtype") == "float32" else 2,
    )


def _delta(part: dict[str, Any], hidden: int) -> State | None:
    """Kimi's delta attention: a decay for each channel, from two small projections; its state is in float32."""
    told = obj(part.get("linear_attn_config"))
    heads = whole(told.get("num_heads")) or whole(part.get("linear_num_heads"))
    width = whole(told.get("head_dim")) or whole(part.get("linear_head_dim"))
    if not (heads and width):
        return None
    both = heads * width
    return State(
        in_width=3 * both,
        gate_width=heads + 2 * width + 2 * both * width // hidden,
        out_width=both,
        conv_width=3 * both,
        conv_steps=whole(told.get("short_conv_kernel_size")) or whole(part.get("linear_conv_kernel_dim")) or 4,
        elements=both * width,
        element_bytes=4,
    )


def _short_convolution(part: dict[str, Any], hidden: int) -> State | None:
    """LFM2: no state but the last columns of a convolution."""
    steps = whole(part.get("conv_L_cache"))
    if not steps:
        return None
    return State(
        in_width=3 * hidden, gate_width=0, out_width=hidden, conv_width=hidden, conv_steps=steps, elements=0,
    )  # fmt: skip


def _mamba_one(part: dict[str, Any], hidden: int) -> State | None:
    """The first Mamba, as Jamba names it: channels by themselves, without heads."""
    depth, ratio = whole(part.get("mamba_d_state")), whole(part.get("mamba_expand"))
    if not (depth and ratio):
        return None
    inner, rank = ratio * hidden, whole(part.get("mamba_dt_rank")) or -(-hidden // 16)
    return State(
        in_width=2 * inner,
        gate_width=2 * inner * (rank + depth) // hidden,
        out_width=inner,
        conv_width=inner,
        conv_steps=whole(part.get("mamba_d_conv")) or 4,
        elements=inner * depth,
    )


def _mamba(part: dict[str, Any], hidden: int) -> State | None:
    """Mamba 2, as Granite 4, Nemotron-H and Bamba name it."""
    heads, _ = first_whole(part, "mamba_n_heads", "mamba_num_heads")
    width, _ = first_whole(part, "mamba_d_head", "mamba_head_dim")
    depth, _ = first_whole(part, "mamba_d_state", "ssm_state_size")
    groups, _ = first_whole(part, "mamba_n_groups", "n_groups")
    steps, _ = first_whole(part, "mamba_d_conv", "conv_kernel")
    if not (heads and depth):
        return None
    inner = heads * width if width else 2 * hidden
    both = inner + 2 * (groups or 1) * depth
    return State(
        in_width=inner + both,
        gate_width=heads,
        out_width=inner,
        conv_width=both,
        conv_steps=steps or 4,
        elements=inner * depth,
        element_bytes=4 if "float32" in (part.get("mamba_ssm_dtype"), part.get("mamba_ssm_cache_dtype")) else 2,
    )
