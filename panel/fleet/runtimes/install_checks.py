"""What is looked at before an install is ordered, from the host's newest facts; the codes are those of the host itself.

The host checks again, by the same functions, and has the last word; here the form says early what would be refused, and
why. Sizes are MiB.
"""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from panel.fleet.agent import install_plan
from panel.fleet.agent.provision import SetupProblem
from panel.fleet.models import Host

MIB = 1 << 20
MACHINES = ("x86_64", "aarch64")
VARIANTS = ("cpu", "cuda")
GOOD_VERSION = install_plan.LOCKED_VERSION  # the version that Berth was tested with


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


def checks(host: Host, variant: str, version: str = "") -> list[Check]:
    """Everything that is looked at, in the order that pages show it."""
    facts = host.facts
    return [
        Check("install.forbidden", bool(facts.get("allow_install", True)) if facts else None),
        _machine(facts),
        _driver(facts, version) if variant == "cuda" else _avx2(facts),
        _space(facts, variant),
    ]


def refusals(host: Host, variant: str, version: str = "") -> list[Check]:
    return [check for check in checks(host, variant, version) if check.ok is False]


def _machine(facts: dict[str, Any]) -> Check:
    machine = facts.get("machine", "")
    return Check("install.platform", machine in MACHINES if machine else None, {"machine": machine})


def _avx2(facts: dict[str, Any]) -> Check:
    flags = facts.get("cpu_flags")
    needed = facts.get("machine") == "x86_64"
    return Check("install.no_avx2", ("avx2" in flags or not needed) if flags is not None else None)


def _driver(facts: dict[str, Any], version: str) -> Check:
    """Against the CUDA that the version names (0.32.0+cu129); of other versions the host learns it from the wheels."""
    if not facts:
        return Check("install.no_gpu_driver", None)
    cuda, driver = facts.get("cuda_driver_version"), facts.get("gpu_driver")
    wheel = install_plan.wheel_cuda("", [], version)
    try:
        install_plan.check_cuda(wheel, cuda, driver)
    except SetupProblem as problem:
        return Check(f"install.{problem.code}", False, dict(problem.params))
    return Check("install.cuda_driver_too_old", True, {"driver": driver, "driver_cuda": cuda, "wheel_cuda": wheel})


def _space(facts: dict[str, Any], variant: str) -> Check:
    disk = engine_disk(facts)
    need = install_plan.NEED[variant] // MIB
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
    fitting = [disk for disk in facts.get("disks", []) if wanted.is_relative_to(disk["path"])]
    return max(fitting, key=lambda disk: len(disk["path"]), default=None)
