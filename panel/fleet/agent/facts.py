"""What the host is: system, CPU, memory (honouring the limits of a container or a service), disks, GPUs."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

from panel.fleet.agent.forbidden import words
from panel.fleet.agent.gpus import Reading
from panel.fleet.agent.procs import boot_id, in_container
from panel.fleet.wire import Disk, HostFacts
from panel.fleet.wire_serving import ASKED_PATHS

MIB = 1 << 20
NO_LIMIT = 1 << 60  # cgroup v1 says "no limit" by a huge number
CGROUPS = Path("/sys/fs/cgroup")
# The ones on which an engine or a kernel of it depends.
CPU_FLAGS = words(
    """
    sse4_2 avx avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16
    avx_vnni amx_tile amx_int8 amx_bf16 asimd asimdhp asimddp bf16 i8mm sve sve2
    """
)


@lru_cache(maxsize=1)
def cpu() -> tuple[str, list[str]]:
    """(model name, the flags that matter), from /proc/cpuinfo; it cannot change while the host runs."""
    name, flags = "", set()
    try:
        with Path("/proc/cpuinfo").open(errors="replace") as lines:
            for line in lines:
                key, _, value = (part.strip() for part in line.partition(":"))
                if key == "model name" and not name:
                    name = value
                elif key in ("flags", "Features"):
                    flags = set(value.split())
                    break
    except OSError:
        return "", []
    return name[:200], sorted(flags.intersection(CPU_FLAGS))


@lru_cache(maxsize=1)
def os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _own_groups(root: Path) -> list[tuple[Path, bool]]:
    """(folder, is version 2) of this process's control group and all its parents."""
    found: list[tuple[Path, bool]] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        v2 = controllers == ""
        if not v2 and "memory" not in controllers.split(","):
            continue
        base = root if v2 else root / "memory"
        current = base / path.lstrip("/")
        while current.is_relative_to(base):
            found.append((current, v2))
            if current == base:
                break
            current = current.parent
    return found


def memory(root: Path = CGROUPS) -> tuple[int, int]:
    """(total, available) bytes that this host's engines may use: the machine's, or less by a control group."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for group, v2 in _own_groups(root):
        limit = _number(group / ("memory.max" if v2 else "memory.limit_in_bytes"))
        if limit is None or limit >= min(machine.total, NO_LIMIT):
            continue
        used = _number(group / ("memory.current" if v2 else "memory.usage_in_bytes")) or 0
        # Cached file pages are given back under pressure, so they count as available.
        used -= _stat_value(group / "memory.stat", "inactive_file" if v2 else "total_inactive_file")
        total = min(total, limit)
        available = min(available, max(0, limit - max(0, used)))
    return total, min(available, total)


def _stat_value(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def cpu_count(root: Path = CGROUPS) -> int:
    """CPUs this process may use, by affinity and quota."""
    count = len(os.sched_getaffinity(0))
    for group, v2 in _own_groups(root):
        try:
            quota, period = (group / "cpu.max").read_text().split() if v2 else ("max", "1")
        except (OSError, ValueError):
            continue
        if quota != "max":
            count = min(count, max(1, math.ceil(int(quota) / int(period))))
    return count


def disks(paths: Iterable[Path]) -> list[Disk]:
    """Room below each path (or its nearest existing parent), each file system once."""
    found: dict[int, Disk] = {}
    for path in paths:
        place = path
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            device, room = place.stat().st_dev, os.statvfs(place)
        except OSError:
            continue
        disk = Disk(
            path=str(path),
            total_mib=room.f_blocks * room.f_frsize // MIB,
            free_mib=room.f_bavail * room.f_frsize // MIB,
        )
        found.setdefault(device, disk)
    return list(found.values())


def start_room(folder: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """What a start needs beside memory: shared memory, open files, room for its log and for compiled kernels."""
    cache = env.get("VLLM_CACHE_ROOT") or env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or "/") / ".cache")
    return {
        "shm_mib": free_mib(Path("/dev/shm")),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],  # an engine raises its own limit up to this
        "log_mib": free_mib(folder),
        "cache_mib": free_mib(Path(cache)),
    }


def free_mib(path: Path) -> int | None:
    """MiB free where this path is or would be; None where that cannot be told."""
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free // MIB
        except OSError:
            continue
    return None


STARTED = time.time()


def collect(
    roots: list[Path], folder: Path, gpus: Reading, *, engines: Path | None = None, allow_install: bool = True
) -> HostFacts:
    """All facts now. Costs a few milliseconds. `engines` is the managed folder."""
    name, flags = cpu()
    total, available = memory()
    return HostFacts(
        hostname=socket.gethostname(),
        os=os_name(),
        kernel=platform.release(),
        machine=platform.machine(),
        cpu_model=name,
        cpu_count=cpu_count(),
        cpu_flags=flags,
        ram_total_mib=total // MIB,
        ram_available_mib=available // MIB,
        disks=disks([*([engines] if engines else []), *roots, folder]),
        gpus=gpus.gpus,
        gpu_driver=gpus.driver,
        cuda_driver_version=gpus.cuda,
        gpu_error=gpus.error,
        python=".".join(map(str, sys.version_info[:3])),
        boot_time=psutil.Process(1).create_time() if in_container() else psutil.boot_time(),
        boot_id=boot_id(),
        container=in_container(),
        agent_started=STARTED,
        model_roots=[str(root) for root in roots],
        asks_engines=list(ASKED_PATHS),
        engine_folder=str(engines or ""),
        allow_install=allow_install,
        **start_room(folder, os.environ),
    )
