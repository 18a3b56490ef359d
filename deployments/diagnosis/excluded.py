"""What a failure was not, by what the panel knows of the host and the start. Pure.

Each is a code with parameters, put into words where it is shown. Only what was measured is said, and nothing that the
cause itself may have to do with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from deployments.diagnosis.phases import RANK
from deployments.diagnosis.rules import BY_CODE
from deployments.diagnosis.weighed import ROOMY_GIB, SHM_GIB

# Causes (or their beginnings) that have to do with a thing: then it is not ruled out.
_ABOUT = {
    "strangers": ("mem.gpu_busy", "mem.profile_changed", "mem.wake_up_oom", "mem.oom_", "gpu."),
    "ram": (
        "mem.host_oom_killed",
        "mem.cpu_kv_space",
        "ollama.mem_required",
        "run.killed",
        "run.worker_died",
        "dist.peer_gone",
    ),
    "files": ("load.", "config.json", "config.remote", "tok.", "gguf.", "hub.", "llamacpp.", "ollama."),
    "driver": ("gpu.", "nccl.", "env.", "sglang."),
    "settings": ("args.", "config.", "llamacpp.bad_arg"),
    "port": ("http.", "dist.port", "sglang.port", "llamacpp.port", "ollama.port"),
    "disk": ("env.disk_full", "env.ipc_dir", "load.", "hub."),
    "shm": ("env.shm", "sglang.shm", "run.shm", "nccl."),
    "cpu": ("env.sigill", "run.segfault", "env.ext"),
}
Said = tuple[str, dict[str, Any]]


def excluded(known: Mapping[str, Any], cause: str, phase: str, *, engine: str, version: str) -> list[Said]:
    """Of what was kept with a run (`evidence.kept`): (code, params), at most one a thing."""
    found: list[Said] = []
    for thing, look in _LOOKS.items():
        if not _has_to_do(cause, thing):
            found += look(known, RANK.get(phase, 0), f"{engine} {version}".strip())
    return found


def _has_to_do(cause: str, thing: str) -> bool:
    rule = BY_CODE.get(cause)
    mended = thing == "files" and rule is not None and any(remedy.kind == "repair" for remedy in rule.remedies)
    return mended or cause.startswith(_ABOUT[thing])


def _past(rank: int, phase: str) -> bool:
    return rank > RANK[phase]


def _strangers(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    gpus = ((known.get("memory") or {}).get("before") or {}).get("gpus") or []
    if gpus and not any(gpu.get("others") for gpu in gpus):
        least = min(gpus, key=lambda gpu: gpu.get("free_mib") or 0)
        yield "excluded.strangers", {"free_mib": least.get("free_mib"), "total_mib": least.get("total_mib")}


def _ram(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    if known.get("oom_kills") == 0:
        yield "excluded.ram", {}


def _files(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    files = known.get("files") or {}
    if _past(rank, "tokenizer"):
        yield "excluded.files_read", {}
    elif files.get("n"):
        yield f"excluded.files_{'sums' if files.get('summed') else 'seen'}", {"n": files["n"], "at": files.get("at")}


def _driver(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    driver = (known.get("host") or {}).get("driver")
    if driver and _past(rank, "device"):
        yield "excluded.driver", {"driver": driver, "engine": engine}


def _settings(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    if known.get("settings") and _past(rank, "config"):
        yield "excluded.settings", {"n": known["settings"]}


def _port(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    # vLLM takes its port before it reads the model; the others at the end.
    taken = _past(rank, "args") if engine.startswith("vLLM") else _past(rank, "http")
    if known.get("port") and not known.get("port_holder") and taken:
        yield "excluded.port", {"port": known["port"]}


def _disk(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    disks = (known.get("host") or {}).get("disks") or []
    if disks and (least := min(disks, key=lambda disk: disk[1]))[1] >= ROOMY_GIB:
        yield "excluded.disk", {"gib": least[1], "path": least[0]}


def _shm(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    shm = (known.get("host") or {}).get("shm_gib")
    gpus = ((known.get("memory") or {}).get("before") or {}).get("gpus") or []
    if shm is not None and shm >= SHM_GIB and len(gpus) > 1:
        yield "excluded.shm", {"gib": shm}


def _cpu(known: Mapping[str, Any], rank: int, engine: str) -> Iterator[Said]:
    host = known.get("host") or {}
    if host.get("has") and known.get("on_cpu"):
        yield "excluded.cpu", {"has": ", ".join(host["has"])}


_LOOKS: dict[str, Callable[[Mapping[str, Any], int, str], Iterator[Said]]] = {
    "strangers": _strangers, "files": _files, "driver": _driver, "settings": _settings, "port": _port, "disk": _disk,
    "ram": _ram, "shm": _shm, "cpu": _cpu,
}  # fmt: skip
