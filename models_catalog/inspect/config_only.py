"""Facts from a config.json alone, before a model is downloaded: its shape, not its files. Pure."""

from __future__ import annotations

from typing import Any

from models_catalog.facts import ModelFacts
from models_catalog.inspect import hf_config, hf_use
from models_catalog.inspect.hf_code import needs_remote_code
from models_catalog.inspect.hf_geometry import geometry
from models_catalog.inspect.hf_packing import kv_scheme, packing


def facts_of_config(config: dict[str, Any], extra: dict[str, Any] | None = None) -> ModelFacts:
    """`extra` is hf_quant_config.json or quantize_config.json, where a model has one. Never raises for its content."""
    quantisation = hf_config.quantisation(config, extra or {})
    dtype = hf_config.dtype(config)
    purpose = hf_use.purpose(config, sentence_embedding=False)
    scheme, plain_parts = packing(config, extra or {})
    return ModelFacts(
        format="hf",
        label=quantisation.label if quantisation else dtype,
        architectures=hf_config.architectures(config),
        dtype=dtype,
        quantisation=quantisation,
        purpose=purpose,
        tasks=hf_use.tasks(purpose),
        inputs=hf_use.inputs(config, purpose),
        needs_remote_code=needs_remote_code(config),
        geometry=geometry(config),
        weight_scheme=scheme,
        plain_parts=plain_parts,
        kv_scheme=kv_scheme(config, extra or {}),
        **hf_config.dimensions(config),
    )
