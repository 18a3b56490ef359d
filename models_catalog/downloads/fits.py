"""Where a model that nobody has yet would fit: by its configuration where that can be read, else by its size. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models_catalog.downloads.picks import Choice
from models_catalog.estimate.kernels import Capability
from models_catalog.estimate.machines import Machine, answer
from models_catalog.estimate.need import Needs
from models_catalog.estimate.plan import Verdict
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config

GIB = 1 << 30
MORE = 1.15  # of the weights: what loading and a short conversation take beside them, when nothing else is known
CONTEXT = 4096  # tokens of one conversation that has to fit
SPARE_MIB = 256  # of the disk, as the host leaves free
GOOD = ("fits", "tight")


@dataclass(frozen=True)
class Host:
    """A host as far as this question goes; MiB. `gpus` are (name, MiB) of each."""

    name: str
    gpus: tuple[tuple[str, int], ...]
    ram_mib: int
    free_mib: int | None  # of the disk of the folder
    capability: Mapping[str, Capability | None] = field(default_factory=dict)  # by the GPU's name


@dataclass(frozen=True)
class Fit:
    """`gpus`: how many cards it takes (0: in the RAM); `disk` False when it does not fit there."""

    verdict: Verdict
    gpus: int
    card: str
    disk: bool | None


def needs_of(choice: Choice, config: Mapping[str, Any]) -> Needs:
    """By what is known before the download: the shape of config.json, and the weights' size."""
    facts = facts_of_config(dict(config)) if config and choice.format == "hf" else ModelFacts(format="hf")
    return Needs(facts.model_copy(update={"weight_bytes": choice.weights or None}))


def fit(choice: Choice, needs: Needs, machine: Host, version: str = "") -> Fit:
    """On one host: in as few equal GPUs as possible, else in its RAM. `needs` are those of needs_of."""
    room = machine.free_mib
    disk = None if room is None else (choice.size >> 20) + SPARE_MIB <= room
    best: Fit | None = None
    for name, mib in dict.fromkeys(machine.gpus):
        count = machine.gpus.count((name, mib))
        for cards in [n for n in (1, 2, 4, 8, 16) if n <= count]:
            verdict = _verdict(
                choice, needs, Machine(name, mib, cards, capability=machine.capability.get(name)), version
            )
            if verdict in GOOD:
                found = Fit(verdict, cards, name, disk)
                if best is None or (found.gpus, found.verdict) < (best.gpus, best.verdict):
                    best = found
                break
    if best is not None:
        return best
    if machine.gpus:
        name, mib = max(dict.fromkeys(machine.gpus), key=lambda gpu: gpu[1])
        return Fit("does_not_fit", machine.gpus.count((name, mib)), name, disk)
    verdict = _verdict(choice, needs, Machine("CPU", machine.ram_mib, cpu=True), version)
    return Fit(verdict if machine.ram_mib else "unknown", 0, "", disk)


def _verdict(choice: Choice, needs: Needs, machine: Machine, version: str) -> Verdict:
    """As the catalog will say when it is there; by the size where the configuration tells too little for that."""
    if needs.facts is not None and needs.facts.geometry is not None and choice.format == "hf":
        found = answer(needs, machine, min(CONTEXT, needs.longest or CONTEXT), version).verdict
        if found != "unknown":
            return found
    return _by_size(choice.weights, machine.total_mib * machine.count)


def _by_size(weights: int, mib: int) -> Verdict:
    need = weights * MORE / GIB + 0.5
    have = mib / 1024
    if need > have * 0.95:
        return "does_not_fit"
    return "tight" if need > have * 0.8 else "fits"
