"""What memory use depends on in a GPU: its measured size, its generation, how it talks to its neighbours.

Sizes are what `cudaMemGetInfo` reports, which is less than the label says (formulas: edge case 7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Class = Literal["datacenter", "workstation", "consumer", "unknown"]


@dataclass(frozen=True)
class Gpu:
    """One GPU as it was measured. `total_gib` None: only its name is known; `free_gib` None: nothing else uses it."""

    name: str = ""
    total_gib: float | None = None
    free_gib: float | None = None
    cpu: bool = False  # no GPU at all: the engine computes on the processor, total is the machine's memory


@dataclass(frozen=True)
class Traits:
    kind: Class
    multiprocessors: int
    hopper: bool = False
    blackwell_datacenter: bool = False
    shared_memory: bool = False  # CPU and GPU use the same memory


# name pattern: (measured GiB, multiprocessors, kind). The first that matches counts.
KNOWN: tuple[tuple[str, float | None, int, Class], ...] = (
    (r"GB10\b|SPARK", None, 48, "workstation"),
    (r"GH200", None, 132, "datacenter"),
    (r"JETSON|ORIN|THOR", None, 16, "workstation"),
    (r"H200", 139.81, 132, "datacenter"),
    (r"H20\b", 95.0, 78, "datacenter"),
    (r"H100.?NVL", 93.1, 132, "datacenter"),
    (r"H100|H800", 79.19, 132, "datacenter"),
    (r"B300", 267.0, 160, "datacenter"),
    (r"B200", 178.0, 148, "datacenter"),
    (r"A100.*40", 39.39, 108, "datacenter"),
    (r"A100|A800", 79.25, 108, "datacenter"),
    (r"MI3\d\d", 191.69, 304, "datacenter"),
    (r"PRO.?6000", 94.97, 188, "workstation"),
    (r"L40", 44.42, 142, "workstation"),
    (r"A40\b|A6000", 44.4, 84, "workstation"),
    (r"L4\b", 22.03, 58, "workstation"),
    (r"A10G?\b", 22.06, 80, "workstation"),
    (r"T4\b", 14.56, 40, "workstation"),
    (r"V100", 31.73, 80, "datacenter"),
    (r"5090", 31.36, 170, "consumer"),
    (r"5080", 15.47, 84, "consumer"),
    (r"5070", 15.47, 70, "consumer"),
    (r"4090", 23.53, 128, "consumer"),
    (r"3090", 23.57, 82, "consumer"),
)
CONSUMER = re.compile(r"RTX|GEFORCE|\b24 ?GB|\b1[26] ?GB|\b6 ?GB", re.I)
USUAL_MULTIPROCESSORS = 108
LARGE_GIB = 70.0  # cards for data centres, and today's largest for workstations


def traits(gpu: Gpu) -> Traits:
    """Of a name as the driver, a report or a person writes it."""
    name = gpu.name.upper()
    for pattern, _total, multiprocessors, kind in KNOWN:
        if re.search(pattern, name):
            return Traits(
                kind,
                multiprocessors,
                hopper=bool(re.search(r"H100|H200|H800|H20\b|GH200", name)),
                blackwell_datacenter=bool(re.search(r"B[23]00", name)),
                shared_memory=bool(re.search(r"GB10\b|GH200|SPARK|JETSON|ORIN|THOR", name)),
            )
    if CONSUMER.search(name):
        return Traits("consumer", USUAL_MULTIPROCESSORS)
    small = gpu.total_gib is not None and gpu.total_gib < LARGE_GIB
    return Traits("workstation" if small else "unknown", USUAL_MULTIPROCESSORS)


def total_gib(gpu: Gpu) -> float | None:
    """The measured size, or the one that cards of this name have; None when neither is known."""
    if gpu.total_gib is not None:
        return gpu.total_gib
    return next((total for pattern, total, *_rest in KNOWN if re.search(pattern, gpu.name.upper())), None)
