"""What is looked at before an install is ordered, from the host's newest facts; the codes are those of the host itself.

The host checks again and has the last word; here the form says early what would be refused, and why. Sizes are MiB.
"""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from panel.fleet.models import Host

NEED_MIB = {"cpu": 5 * 1024, "cuda": 16 * 1024}  # venv, wheels while they are unpacked
CUDA_NEEDED = "12.0"  # below this no wheel of vLLM of the last years runs
MACHINES = ("x86_64", "aarch64")
VARIANTS = ("cpu", "cuda")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `ok` None: not known here, the host will see."""

    code: str
    ok: bool | None
    params: dict[str, Any] = field(default_factory=dict)

    def refusal(self) -> dict[str, Any]:
        return {"code": self.code, "params": self.params}


def preselected(host: Host, *, has_gpu: bool) -> str:
    """The variant that suits the host: CUDA where an NVIDIA GPU is present and its driver answers."""
    return "cuda" if has_gpu and host.facts.get("cuda_driver_version") else "cpu"


def checks(host: Host, variant: str) -> list[Check]:
    """Everything that is looked at, in the order that pages show it."""
    facts = host.facts
    found = [Check("install.forbidden", bool(facts.get("allow_install", True)) if facts else None)]
    found.append(_machine(facts))
    found.append(_driver(facts) if variant == "cuda" else _avx2(facts))
    found.append(_space(facts, variant))
    return found


def refusals(host: Host, variant: str) -> list[Check]:
    return [check for check in checks(host, variant) if check.ok is False]


def _machine(facts: dict[str, Any]) -> Check:
    machine = facts.get("machine", "")
    return Check("install.platform", machine in MACHINES if machine else None, {"machine": machine})


def _avx2(facts: dict[str, Any]) -> Check:
    flags = facts.get("cpu_flags")
    needed = facts.get("machine") == "x86_64"
    return Check("install.no_avx2", ("avx2" in flags or not needed) if flags is not None else None)


def _driver(facts: dict[str, Any]) -> Check:
    driver = facts.get("cuda_driver_version")
    if not driver:
        return Check("install.no_driver", False if facts else None)
    params = {"driver": driver, "needed": CUDA_NEEDED}
    return Check("install.cuda_driver_too_old", version_pair(driver) >= version_pair(CUDA_NEEDED), params)


def version_pair(text: str) -> tuple[int, int]:
    """ "12.8" → (12, 8); what cannot be read counts as (0, 0)."""
    parts = [part for part in str(text).split(".") if part.isdecimal()]
    return (int(parts[0]), int(parts[1]) if len(parts) > 1 else 0) if parts else (0, 0)


def _space(facts: dict[str, Any], variant: str) -> Check:
    disk = engine_disk(facts)
    need = NEED_MIB[variant]
    if disk is None:
        return Check("install.no_space", None, {"need_mib": need})
    params = {"need_mib": need, "free_mib": disk["free_mib"], "path": facts.get("engine_folder") or disk["path"]}
    return Check("install.no_space", disk["free_mib"] >= need, params)


def engine_disk(facts: dict[str, Any]) -> dict[str, Any] | None:
    """The disk that holds the managed folder: the one whose path is the longest beginning of the folder's."""
    folder = facts.get("engine_folder") or ""
    if not folder:
        return None
    wanted = PurePosixPath(folder)
    fitting = [d for d in facts.get("disks", []) if wanted.is_relative_to(d["path"]) or d["path"] == folder]
    return max(fitting, key=lambda d: len(d["path"]), default=None)
