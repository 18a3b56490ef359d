"""Where a model that nobody has yet would fit: by its configuration where that can be read, else by its size. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from models_catalog.downloads.picks import Choice
from models_catalog.estimate import Gpu, Options, try_estimate
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config

GIB = 1 << 30
MORE = 1.15  # of the weights: what loading and a short conversation take beside them, when nothing else is known
CONTEXT = 4096  # tokens of one conversation that has to fit
SPARE_MIB = 256  # of the disk, as the host leaves free

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]


@dataclass(frozen=True)
class Machine:
    """A host as far as this question goes; MiB. `gpus` are (name, MiB) of each."""

    name: str
    gpus: tuple[tuple[str, int], ...]
    ram_mib: int
    free_mib: int | None  # of the disk of the folder


@dataclass(frozen=True)
class Fit:
    """`gpus`: how many cards it takes (0: in the RAM); `disk` False when it does not fit there."""

    verdict: Verdict
    gpus: int
    card: str
    disk: bool | None


def facts_of(choice: Choice, config: Mapping[str, Any]) -> ModelFacts:
    """What is known before the download: the shape of config.json, and the weights' size."""
    facts = facts_of_config(dict(config)) if config and choice.format == "hf" else ModelFacts(format="hf")
    return facts.model_copy(update={"weight_bytes": choice.weights or None})


def fit(choice: Choice, facts: ModelFacts, machine: Machine) -> Fit:
    """On one host: in as few equal GPUs as possible, else in its RAM."""
    room = machine.free_mib
    disk = None if room is None else (choice.size >> 20) + SPARE_MIB <= room
    best: Fit | None = None
    for name, mib in dict.fromkeys(machine.gpus):
        count = machine.gpus.count((name, mib))
        for cards in [n for n in (1, 2, 4, 8, 16) if n <= count]:
            verdict = _on_gpus(choice, facts, name, mib, cards)
            if verdict in ("fits", "tight"):
                found = Fit(verdict, cards, name, disk)
                if best is None or (found.gpus, found.verdict) < (best.gpus, best.verdict):
                    best = found
                break
    if best is not None:
        return best
    if machine.gpus:
        name, mib = max(dict.fromkeys(machine.gpus), key=lambda gpu: gpu[1])
        return Fit("does_not_fit", machine.gpus.count((name, mib)), name, disk)
    return Fit(_by_size(choice.weights, machine.ram_mib) if machine.ram_mib else "unknown", 0, "", disk)


def _on_gpus(choice: Choice, facts: ModelFacts, name: str, mib: int, cards: int) -> Verdict:
    rough = _by_size(choice.weights, mib * cards)
    if facts.geometry is None or choice.format != "hf":
        return rough
    longest = min(CONTEXT, facts.context_length or CONTEXT)
    plan = try_estimate(facts, Options(context=longest, tp=cards), Gpu(name, total_gib=mib / 1024))
    return rough if plan is None or plan.verdict == "unknown" else plan.verdict


def _by_size(weights: int, mib: int) -> Verdict:
    need = weights * MORE / GIB + 0.5
    have = mib / 1024
    if need > have * 0.95:
        return "does_not_fit"
    return "tight" if need > have * 0.8 else "fits"
