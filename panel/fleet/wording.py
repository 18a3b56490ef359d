"""Codes of the agents and names of engines, as words in the viewer's language."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from panel.core.numbers import gib
from panel.core.wording import Pair, Words, said
from panel.fleet.models import Runtime
from panel.fleet.queries import GpuRow, HostRow

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "ollama": "Ollama"}
DEVICES = {"cpu": gettext_lazy("for CPU"), "cuda": "CUDA", "rocm": "ROCm", "npu": "NPU", "tpu": "TPU", "xpu": "XPU"}
OUR_COLOURS = "wkago"  # on this page colours only separate deployments

GPU_UNREADABLE: Pair = (
    gettext_lazy("The GPU driver could not be read (%(code)s)."),
    gettext_lazy("Run nvidia-smi on the host; it says more."),
)
GPU_ERRORS: dict[str, Pair] = {
    "driver_missing": (
        gettext_lazy("There is an NVIDIA card, but no driver for it."),
        gettext_lazy("Install the NVIDIA driver on this host. Berth sees the GPUs a few seconds later."),
    ),
    "driver_not_loaded": (
        gettext_lazy("There is an NVIDIA card, but its driver is not loaded."),
        gettext_lazy("Load it (modprobe nvidia) or restart the host. Berth sees the GPUs a few seconds later."),
    ),
    "nvml_failed": (
        gettext_lazy("The GPU driver could not be read."),
        gettext_lazy("Run nvidia-smi on the host; it says more."),
    ),
    "driver_hangs": (
        gettext_lazy("The GPU driver does not answer."),
        gettext_lazy("Look at the kernel's messages on the host (dmesg, Xid); often only a restart of it helps."),
    ),
    "driver_mismatch": (
        gettext_lazy("The GPU driver was updated, but the old one still runs."),
        gettext_lazy("Restart the host, or load the new driver's kernel module."),
    ),
    "no_permission": (
        gettext_lazy("The agent may not ask the GPU driver."),
        gettext_lazy("Give the agent's user the right to open /dev/nvidiactl."),
    ),
    "gpu_lost": (
        gettext_lazy("A GPU is no longer reachable."),
        gettext_lazy("Look at the kernel's messages on the host (dmesg, Xid), then restart it."),
    ),
}

# What can be wrong with an engine that was found.
ENGINE_REFUSALS: dict[str, Pair] = {
    "engine_not_used_yet": (gettext_lazy("Berth cannot start this kind of engine yet."), ""),
    "folder_missing": (gettext_lazy("There is no such folder on the host."), ""),
    "folder_without_engine": (gettext_lazy("No engine was found in this folder."), ""),
    "executable_missing": (gettext_lazy("There is no such file on the host."), ""),
    "executable_not_an_engine": (
        gettext_lazy("It is no engine that Berth knows, or others than the agent's user could replace it."),
        "",
    ),
    "probe_not_found": (gettext_lazy("There is no such file."), ""),
    "probe_no_python": (gettext_lazy("It is no Python program, or the Python it needs is gone."), ""),
    "probe_timeout": (gettext_lazy("It did not answer in time when asked for its version."), ""),
    "probe_signal": (
        gettext_lazy("It was ended by %(detail)s when asked for its version; it may not fit this CPU."),
        "",
    ),
    "probe_failed": (gettext_lazy("It does not start: %(detail)s"), ""),
    "probe_too_much_output": (gettext_lazy("Its answer made no sense when asked for its version."), ""),
    "probe_bad_output": (gettext_lazy("Its answer made no sense when asked for its version."), ""),
    "task_failed": (gettext_lazy("The search on this host failed."), ""),
}


def gpu_error(code: str | None) -> Words | None:
    """What HostFacts.gpu_error says; None when the GPUs could be read."""
    return said(GPU_ERRORS, {"code": code}, other=GPU_UNREADABLE) if code else None


def refusal(found: Mapping[str, Any] | None) -> str:
    """Why an engine that was found does not work; "" when it does."""
    return said(ENGINE_REFUSALS, found).text if found else ""


def engine(runtime: Runtime) -> str:
    """ "vLLM 0.32.0 for CPU"."""
    parts = [ENGINES.get(runtime.engine, runtime.engine), runtime.version, str(DEVICES.get(runtime.device, ""))]
    return " ".join(part for part in parts if part)


def subtitle(view: HostRow) -> str:
    """What the machine is, in one line: cards, system, driver, agent."""
    facts, parts = view.facts, []
    names: dict[str, int] = {}
    for gpu in view.gpus:
        names[gpu.gpu.name] = names.get(gpu.gpu.name, 0) + 1
    parts += [f"{count} × {name}" for name, count in names.items()]
    if view.facts and not view.gpus and not facts.get("gpu_error"):
        parts.append(_("no GPU"))
    parts.append(str(facts.get("os", "")))
    if facts.get("gpu_driver"):
        parts.append(_("driver %(version)s") % {"version": facts["gpu_driver"]})
    if view.host.agent_version:
        parts.append(_("agent %(version)s") % {"version": view.host.agent_version})
    return " · ".join(part for part in parts if part)


def gpu_row(view: GpuRow) -> dict[str, Any]:
    """One GPU as a bar with its legend: (colour, text, address) and (colour, MiB)."""
    total = view.gpu.total_mib
    bar: list[tuple[str, int]] = []
    legend: list[tuple[str, str, str]] = []
    for index, use in enumerate(view.ours):
        colour = OUR_COLOURS[index % len(OUR_COLOURS)]
        bar.append((colour, use.mib))
        name, url = (use.label.text, use.label.url) if use.label else ("", "")
        legend.append((colour, f"{name} {gib(use.mib, '')}", url))
    for use in view.others:
        who = ", ".join(part for part in (use.user, *use.names) if part) or _("other programs")
        bar.append(("x", use.mib))
        legend.append(("x", _("not Berth: %(who)s, %(size)s") % {"who": who, "size": gib(use.mib, "")}, ""))
    if view.unknown_mib:
        bar.append(("x", view.unknown_mib))
        legend.append(("x", _("driver and others %(size)s") % {"size": gib(view.unknown_mib, "")}, ""))
    free = _("all free") if not bar else _("free %(size)s") % {"size": gib(view.free_mib, "")}
    legend.append(("f", free, ""))
    words = ", ".join(text for _colour, text, _url in legend)
    label = _("GPU %(index)s: %(uses)s, of %(total)s") % {"index": view.gpu.index, "uses": words, "total": gib(total)}
    measured = view.measured
    state = [
        f"{measured['utilisation_pct']}\u00a0%" if measured.get("utilisation_pct") is not None else "",
        f"{measured['temperature_c']}\u00a0°C" if measured.get("temperature_c") is not None else "",
        f"{measured['power_w']:.0f}\u00a0W" if measured.get("power_w") is not None else "",
    ]
    return {
        "gpu": view.gpu,
        "bar": bar,
        "legend": legend,
        "label": label,
        "used": gib(view.gpu.used_mib, ""),
        "total": gib(total),
        "reserved": gib(view.gpu.reserved_mib) if view.gpu.reserved_mib else "",
        "state": " · ".join(part for part in state if part),
    }


def ram_row(view: HostRow) -> dict[str, Any] | None:
    """The host's memory as a bar of what is measured; reservations are told beside it. None before the first report."""
    host, total = view.host, view.host.ram_total_mib
    if not total:
        return None
    used = min(view.ram_used_mib, total)
    legend = [
        ("w", _("in use %(size)s") % {"size": gib(used, "")}),
        ("f", _("free %(size)s") % {"size": gib(total - used, "")}),
    ]
    words = ", ".join(text for _colour, text in legend)
    return {
        "bar": [("w", used)],
        "legend": legend,
        "label": _("Memory of %(host)s: %(uses)s, of %(total)s")
        % {"host": host.name, "uses": words, "total": gib(total)},
        "used": gib(used, ""),
        "total": gib(total),
        "total_mib": total,
        "reserved": gib(host.ram_reserved_mib) if host.ram_reserved_mib else "",
    }
