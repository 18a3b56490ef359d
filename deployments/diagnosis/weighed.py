"""How what is known of the machine makes a class more or less sure. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.diagnosis.result import Evidence, Machine

ROOMY_GIB = 5.0  # free on every disk: then a full one is not what the line is about, or it is free again
SHM_GIB = 1.0  # engines of several processes are content with this much shared memory
MANY_FILES = 65536  # open files that are enough for any engine
# How sure at least where the machine bears it out, and at most where it speaks against it.
_FITS, _DOUBTED, _CONTRADICTED = 0.95, 0.75, 0.65


def weighed(code: str, sure: float, evidence: Evidence, groups: Mapping[str, str]) -> float:
    """How sure a class is with what the host said of itself; unchanged where that says nothing of it."""
    fits = _fits(code.removeprefix("sglang.").removeprefix("env."), evidence.machine, groups)
    if fits is None:
        return sure
    # A line that names its own cause stays that; a class told by a signal alone stands or falls with the machine.
    most = _CONTRADICTED if code == "env.sigill" else _DOUBTED
    return max(sure, _FITS) if fits else min(sure, most)


def _fits(name: str, machine: Machine, groups: Mapping[str, str]) -> bool | None:
    """Whether the machine is as the class says; None where it is not known."""
    if name == "sigill":
        return None if machine.cpu_flags is None else bool(machine.lacks())
    if name == "shm":
        return None if machine.shm_gib is None else machine.shm_gib < SHM_GIB
    if name == "ulimit":
        files = machine.open_files
        return None if files is None else 0 <= files < MANY_FILES
    if name == "disk_full":
        return None if not machine.disks else min(free for _path, free in machine.disks) < ROOMY_GIB
    if name == "driver_old":
        return _old_driver(machine, groups)
    return None


def _old_driver(machine: Machine, groups: Mapping[str, str]) -> bool | None:
    """Whether the engine met the driver that the host has: another one may come with its environment."""
    met, (major, _dot, minor) = groups.get("driver", ""), machine.cuda.partition(".")
    if not (met.isdigit() and major.isdigit() and minor.isdigit()):
        return None
    return int(met) // 10 == int(major) * 100 + int(minor)
