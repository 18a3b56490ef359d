"""Three small open models for a panel that has none yet, with their rough sizes. What is fetched, the hub says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Starter:
    """`gib` is about what its files take; `key` is that of a picks.Choice."""

    repo: str
    gib: float
    licence: str
    key: str = "hf"


STARTERS = (
    Starter("HuggingFaceTB/SmolLM2-135M-Instruct", 0.26, "Apache-2.0"),
    Starter("Qwen/Qwen3-0.6B", 1.4, "Apache-2.0"),
    Starter("Qwen/Qwen3-4B-Instruct-2507", 7.6, "Apache-2.0"),
)
