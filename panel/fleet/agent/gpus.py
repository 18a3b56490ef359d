"""GPUs by NVML. A host without NVIDIA hardware is a normal answer; a card whose driver does not work is told by a code.

NVML may hang when a driver is broken, so it is read in a thread of its own and others take the newest reading.
"""

from __future__ import annotations

import ctypes
import logging
import pwd
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from panel.fleet.wire import GpuFacts, GpuProcess

log = logging.getLogger(__name__)

T = TypeVar("T")
MIB = 1 << 20
STALE_S = 45.0
PCI = Path("/sys/bus/pci/devices")
NO_DRIVER = (9, 12)  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
CODES = {4: "no_permission", 9: "driver_not_loaded", 12: "driver_missing", 15: "gpu_lost", 18: "driver_mismatch"}


@dataclass(frozen=True)
class Reading:
    """What NVML said at `at` (monotonic seconds). `error` is a code, see HostFacts.gpu_error."""

    gpus: list[GpuFacts] = field(default_factory=list)
    driver: str | None = None
    cuda: str | None = None
    error: str | None = None
    at: float = 0.0


def nvidia_card_present(pci: Path = PCI) -> bool:
    """Whether the PCI bus shows an NVIDIA display or compute card, driver or not."""
    try:
        for device in pci.iterdir():
            if (device / "vendor").read_text().strip() == "0x10de" and (device / "class").read_text().startswith(
                "0x03"
            ):
                return True
    except OSError:
        return False
    return False


def library_there() -> bool:
    """Asked before nvidia-ml-py is imported, which costs 2 MiB on hosts that have no use for it."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


class Nvml:
    """NVML, kept open between readings (opening wakes every card) and opened anew after an error."""

    def __init__(self) -> None:
        self._open = False
        self._links: dict[tuple[str, ...], list[list[str] | None]] = {}  # by all their uuids

    def read(self, job_of: Callable[[int], str | None]) -> Reading:
        """Ask once. `job_of` names the job that a process belongs to."""
        now = time.monotonic()
        if not self._open and not library_there():
            return Reading(error="driver_missing" if nvidia_card_present() else None, at=now)
        import pynvml

        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            return self._all(pynvml, job_of, now)
        except pynvml.NVMLError as exc:
            self._close(pynvml)
            number = int(exc.value)
            quiet = number in NO_DRIVER and not nvidia_card_present()
            return Reading(error=None if quiet else CODES.get(number, f"nvml_{number}"), at=now)

    def _all(self, nvml: Any, job_of: Callable[[int], str | None], now: float) -> Reading:
        gpus = self._linked(nvml, [_gpu(nvml, index, job_of) for index in range(nvml.nvmlDeviceGetCount())])
        cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion)
        return Reading(
            gpus=gpus,
            driver=_ask(nvml, nvml.nvmlSystemGetDriverVersion),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            at=now,
        )

    def _linked(self, nvml: Any, gpus: list[GpuFacts]) -> list[GpuFacts]:
        """With the GPUs that each is joined to; asked once, since every pair is a call."""
        uuids = tuple(gpu.uuid for gpu in gpus)
        if len(gpus) > 1 and uuids not in self._links:
            handles = [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus]
            self._links = {uuids: [_links(nvml, handle, handles, uuids) for handle in handles]}
        links = self._links.get(uuids, [None] * len(gpus))
        return [gpu.model_copy(update={"nvlink": known}) for gpu, known in zip(gpus, links, strict=True)]

    def _close(self, nvml: Any) -> None:
        if not self._open:
            return
        self._open = False
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError as exc:
            log.info("NVML did not close: %s", exc)


def _ask(nvml: Any, function: Callable[..., T], *args: Any) -> T | None:
    """One value, None when this card or driver does not tell it."""
    try:
        return function(*args)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_NoPermission,
        nvml.NVMLError_InvalidArgument,
        nvml.NVMLError_Unknown,
    ):
        return None


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """(total, used) bytes. Version 2 keeps the driver's own reserve out of `used`. Shared memory: the host's."""
    info = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    info = info or _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if info is not None and info.total:
        return int(info.total), int(info.used)
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.total - memory.available


def _gpu(nvml: Any, index: int, job_of: Callable[[int], str | None]) -> GpuFacts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    total, used = _memory(nvml, handle)
    rates = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    power = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return GpuFacts(
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(nvml.nvmlDeviceGetName(handle)),
        total_mib=total // MIB,
        used_mib=used // MIB,
        utilisation_pct=rates.gpu if rates is not None else None,
        temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power_w=power / 1000 if power is not None else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        processes=_processes(nvml, handle, job_of),
    )


def _links(nvml: Any, handle: Any, handles: list[Any], uuids: tuple[str, ...]) -> list[str] | None:
    """The GPUs that NVLink joins to this one; None where the driver does not tell."""
    found = []
    for other, uuid in zip(handles, uuids, strict=True):
        if other is handle:
            continue
        status = _ask(nvml, nvml.nvmlDeviceGetP2PStatus, handle, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status is None:
            return None
        if status == nvml.NVML_P2P_STATUS_OK:
            found.append(uuid)
    return found


def _processes(nvml: Any, handle: Any, job_of: Callable[[int], str | None]) -> list[GpuProcess]:
    found: dict[int, int | None] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in _ask(nvml, ask, handle) or []:
            used = process.usedGpuMemory
            found[process.pid] = max(found.get(process.pid) or 0, used) if used is not None else found.get(process.pid)
    return [
        GpuProcess(
            pid=pid,
            used_mib=used // MIB if used is not None else None,
            user=_owner(pid),
            name=_name(pid),
            job_id=job_of(pid),
        )
        for pid, used in sorted(found.items())
    ]


def _owner(pid: int) -> str:
    """The user's name, their number when it has none here, "" for a process that cannot be seen (other namespace)."""
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name.encode("utf-8", "replace").decode()
    except KeyError:
        return str(uid)


def _name(pid: int) -> str:
    try:
        # The kernel cuts names at 15 bytes, also within a character; and processes call themselves what they like.
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class Reader:
    """Keeps the newest reading. `get` waits briefly for a new one, and never for a hanging driver."""

    def __init__(self, job_of: Callable[[int], str | None]) -> None:
        self._job_of = job_of
        self._nvml = Nvml()
        self._wanted, self._done = threading.Event(), threading.Event()
        self._asked_at: float | None = None  # of a question that is still open
        self.latest = Reading()
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            try:
                self.latest = self._nvml.read(self._job_of)
            except Exception:  # a driver's oddity must not end the readings for good
                log.exception("NVML could not be read")
                self.latest = Reading(error="nvml_failed", at=time.monotonic())
            self._asked_at = None
            self._done.set()

    def get(self, wait_s: float = 1.0) -> Reading:
        if self._asked_at is None:
            self._done.clear()
            self._asked_at = time.monotonic()
            self._wanted.set()
        self._done.wait(wait_s)
        asked, reading = self._asked_at, self.latest
        if asked is not None and time.monotonic() - asked > STALE_S:
            return Reading(gpus=reading.gpus, driver=reading.driver, cuda=reading.cuda, error="driver_hangs")
        return reading
