"""What memory use depends on in a GPU: its measured size, its generation, how it talks to its neighbours.

Sizes are what `cudaMemGetInfo` reports, which is less than the label says (formulas: edge case 7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
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
    intel: bool = False
    shared_memory: bool = False  # CPU and GPU use the same memory
    size_untold: bool = False  # the driver does not tell the size by its usual way, so vLLM takes it for a small one


# name pattern: (measured GiB, multiprocessors, kind). The first that matches counts.
KNOWN: tuple[tuple[str, float | None, int, Class], ...] = (
    (r"GB10\b|SPARK", 119.6, 48, "workstation"),
    (r"GH200.*(141|144|HBM3E)", 139.81, 132, "datacenter"),
    (r"GH200", 94.5, 132, "datacenter"),
    (r"JETSON|ORIN|THOR", None, 16, "workstation"),
    (r"H200.?NVL|H200", 139.81, 132, "datacenter"),
    (r"H20.?3E|H20.*141", 139.81, 78, "datacenter"),
    (r"H20\b", 95.0, 78, "datacenter"),
    (r"H100.*(NVL|94 ?G)", 93.1, 132, "datacenter"),
    (r"H100.*96 ?G", 94.5, 132, "datacenter"),
    (r"H100.*64 ?G", 63.4, 132, "datacenter"),
    (r"H100|H800", 79.19, 132, "datacenter"),
    (r"G?B300", 267.69, 160, "datacenter"),
    (r"GB200", 184.3, 152, "datacenter"),
    (r"B200", 178.0, 148, "datacenter"),
    (r"A100.*40", 39.39, 108, "datacenter"),
    (r"A100|A800", 79.25, 108, "datacenter"),
    (r"MI355", 287.98, 256, "datacenter"),
    (r"MI325", 255.98, 304, "datacenter"),
    (r"MI3\d\d", 191.69, 304, "datacenter"),
    (r"MI2[15]0", 63.98, 104, "datacenter"),
    (r"PRO.?6000", 94.97, 188, "workstation"),
    (r"6000.?ADA|ADA.?6000|L6000", 47.5, 142, "workstation"),
    (r"L40", 44.42, 142, "workstation"),
    (r"L20\b", 44.5, 92, "workstation"),
    (r"A6000", 47.5, 84, "workstation"),
    (r"A40\b", 44.4, 84, "workstation"),
    (r"A5000", 23.6, 64, "workstation"),
    (r"A4000", 15.7, 48, "workstation"),
    (r"A30\b", 23.6, 56, "datacenter"),
    (r"L4\b", 22.03, 58, "workstation"),
    (r"A10G?\b", 22.06, 80, "workstation"),
    (r"T4\b", 14.56, 40, "workstation"),
    (r"RTX.?8000", 47.4, 72, "workstation"),
    (r"TITAN.?RTX", 23.5, 72, "workstation"),
    (r"V100.*16", 15.77, 80, "datacenter"),
    (r"V100", 31.73, 80, "datacenter"),
    (r"P100", 15.9, 56, "datacenter"),
    (r"5090", 31.36, 170, "consumer"),
    (r"5080", 15.47, 84, "consumer"),
    (r"5070.?TI", 15.47, 70, "consumer"),
    (r"5060.?TI.*8 ?G", 7.6, 36, "consumer"),
    (r"5060.?TI", 15.47, 36, "consumer"),
    (r"5070", 11.5, 48, "consumer"),
    (r"4090.*48", 47.37, 128, "consumer"),
    (r"4090.*LAPTOP|4090.*MOBILE", 15.6, 76, "consumer"),
    (r"4090", 23.53, 128, "consumer"),
    (r"4080|4070.?TI.?SUPER", 15.6, 76, "consumer"),
    (r"4070.*LAPTOP|4060.*LAPTOP", 7.65, 36, "consumer"),
    (r"4070", 11.6, 46, "consumer"),
    (r"4060.?TI.*16", 15.6, 34, "consumer"),
    (r"3090", 23.57, 82, "consumer"),
    (r"3080.?TI|3060", 11.65, 28, "consumer"),
    (r"2080.?TI", 10.75, 68, "consumer"),
)
LABEL = re.compile(r"(?<![\d.])(\d{1,3}) ?GI?B\b")
LABEL_GIB = (4, 400)  # what a label may say
OF_LABEL = 0.975  # of it is there at least: the driver and error correction take the rest
UNTOLD = r"GB10\b|SPARK|JETSON|ORIN|THOR"
INTEL = re.compile(r"\bARC\b|\bXPU\b|\bB[5-7]0\b|DATA CENTER GPU MAX|INTEL")
CONSUMER = re.compile(r"RTX|GEFORCE|\b24 ?GB|\b1[26] ?GB|\b6 ?GB", re.I)
USUAL_MULTIPROCESSORS = 108
LARGE_GIB = 70.0  # cards for data centres, and today's largest for workstations


def traits(gpu: Gpu) -> Traits:
    """Of a name as the driver, a report or a person writes it."""
    return _traits(gpu.name.upper(), small=gpu.total_gib is not None and gpu.total_gib < LARGE_GIB)


@lru_cache(maxsize=1024)
def _traits(name: str, *, small: bool) -> Traits:
    if INTEL.search(name):
        return Traits("workstation", USUAL_MULTIPROCESSORS, intel=True)
    for pattern, _total, multiprocessors, kind in KNOWN:
        if re.search(pattern, name):
            return Traits(
                kind,
                multiprocessors,
                hopper=bool(re.search(r"H100|H200|H800|H20\b|GH200", name)),
                blackwell_datacenter=bool(re.search(r"B[23]00", name)),
                shared_memory=bool(re.search(rf"{UNTOLD}|GH200", name)),
                size_untold=bool(re.search(UNTOLD, name)),
            )
    if CONSUMER.search(name):
        return Traits("consumer", USUAL_MULTIPROCESSORS)
    return Traits("workstation" if small else "unknown", USUAL_MULTIPROCESSORS)


def total_gib(gpu: Gpu) -> float | None:
    """The measured size, or the one that cards of this name have, or a careful one by its label; None: not known."""
    if gpu.total_gib is not None:
        return gpu.total_gib
    return _by_name(gpu.name.upper())


def labelled(gpu: Gpu) -> bool:
    """Whether all that is known of its size is what its name says."""
    name = gpu.name.upper()
    return total_gib(gpu) is not None and not any(re.search(pattern, name) for pattern, *_rest in KNOWN)


@lru_cache(maxsize=1024)
def _by_name(name: str) -> float | None:
    for pattern, total, *_rest in KNOWN:
        if re.search(pattern, name):
            return total
    label = LABEL.search(name)
    low, high = LABEL_GIB
    return int(label[1]) * OF_LABEL if label and low <= int(label[1]) <= high else None
