"""Adapters (LoRA and its kin): adapter_config.json and the small weights beside it. Pure."""

from __future__ import annotations

from typing import Any

from models_catalog.facts import Adapter, Problem
from models_catalog.inspect.listing import Listing, LocalFile
from models_catalog.inspect.reading import Unusable, clean, real, texts, whole
from models_catalog.inspect.safetensors import Weights, read_safetensors
from models_catalog.inspect.weights import pickled_damage

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def adapter_of(config: dict[str, Any]) -> Adapter:
    """What adapter_config.json says. Targets may be a pattern instead of a list."""
    targets = config.get("target_modules")
    kind = clean(config.get("peft_type"), 20).lower() or "lora"
    return Adapter(
        kind="dora" if config.get("use_dora") is True else kind,
        base=clean(config.get("base_model_name_or_path")),
        rank=whole(config.get("r")),
        alpha=real(config.get("lora_alpha")),
        targets=[clean(targets)] if isinstance(targets, str) and targets else sorted(texts(targets, 100)),
    )


def adapter_weights(listing: Listing, problems: list[Problem]) -> tuple[list[LocalFile], Weights | None]:
    """The adapter's weight file and the sums of its header; damage becomes a problem."""
    file = next((listing.files[name] for name in WEIGHTS if listing.has(name)), None)
    if file is None:
        problems.append(Problem(code="missing_weights"))
        return [], None
    params: dict[str, Any] = {"file": clean(file.name)}
    try:
        if file.name.endswith(".safetensors"):
            return [file], read_safetensors(file.real)
        if code := pickled_damage(file):
            problems.append(Problem(code=code, params=params))
    except Unusable as exc:
        problems.append(Problem(code=exc.problem.code, params=params | exc.problem.params))
    except OSError:
        problems.append(Problem(code="cannot_read", params=params))
    return [file], None
