"""Words of installs and removals of engines: states, steps, and every code of the host with what to do next."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext_lazy as _

from panel.core.wording import Pair, Words, said
from panel.fleet.models import InstallState
from panel.fleet.wording import ENGINE_REFUSALS

# state → (badge kind of the design system, word)
BADGES: dict[str, tuple[str, Any]] = {
    InstallState.WAITING: ("wait", _("Waiting for the host")),
    InstallState.RUNNING: ("busy", _("Installing")),
    InstallState.CANCELLING: ("busy", _("Being cancelled")),
    InstallState.DONE: ("ok", _("Installed")),
    InstallState.FAILED: ("bad", _("Failed")),
    InstallState.CANCELLED: ("off", _("Cancelled")),
}
VARIANTS: dict[str, Any] = {"cpu": _("for CPU"), "cuda": _("for NVIDIA GPUs (CUDA)")}
EXTRAS: dict[str, Any] = {"gguf": "GGUF", "flashinfer": "FlashInfer"}
USES: dict[str, Any] = {
    "running": _("runs from it"),
    "chosen": _("chosen in its settings"),
    "last": _("ran on it last"),
}
ORIGINS: dict[str, Any] = {
    "path": _("found on the PATH"),
    "named": _("named by an admin"),
    "folder": _("found in a named folder"),
    "cache": _("prepared by make engine"),
    "managed": _("installed by Berth"),
}

# phase → (what was done, what is being done)
STEPS: dict[str, tuple[Any, Any]] = {
    "checking": (_("Checked the host"), _("Checking the host")),
    "downloading": (_("Packages downloaded"), _("Downloading packages")),
    "installing": (_("Packages installed"), _("Installing packages")),
    "extras": (_("Additions installed"), _("Installing additions")),
    "verifying": (_("Engine verified"), _("Verifying the engine")),
    "trying": (_("A tiny model answered"), _("Trying a tiny model")),
}

_SETTINGS_HINT = _(
    "Look at the settings BERTH_PIP_… of the panel, or at pip's own settings on the host; then try again."
)
# What is looked at before: code of its refusal → (it is so, it is not known here)
CHECKS: dict[str, tuple[Any, Any]] = {
    "install.forbidden": (_("The host allows installs."), _("The host has not told yet whether it allows installs.")),
    "install.platform": (
        _("vLLM is built for this machine (%(machine)s)."),
        _("The host has not told yet which machine it is."),
    ),
    "install.no_avx2": (_("The CPU has AVX2."), _("The host has not told yet what its CPU can.")),
    "install.no_gpu_driver": ("", _("The host has not told yet which driver it has.")),
    "install.cuda_driver_too_old": (
        _("The driver %(driver)s runs CUDA %(driver_cuda)s; the host compares it with the packages first."),
        "",
    ),
    "install.no_space": (
        _("%(free_mib)s are free on the disk of %(path)s; %(need_mib)s are needed."),
        _("%(need_mib)s of disk are needed; the host looks before it downloads."),
    ),
}

_LOG_HINT = _("The log below says more. Try again, or choose another version.")

_PROOF_HINT = _("It was removed again; other engines are not touched. The log says more; another version may work.")
_SIGNAL_HINT = _("It may not fit the CPU of this host. It was removed again; another version may work.")

FAILURES: dict[str, Pair] = {
    "install.order_invalid": (
        _("The host does not accept the field %(field)s of this order."),
        _("Look at the version and at the settings BERTH_PIP_… of the panel, then try again."),
    ),
    # what is looked at before
    "install.forbidden": (
        _("The owner of this host does not allow Berth to install engines."),
        _("Set allow_install to true in the agent's settings (agent.json) on the host, and start the agent again."),
    ),
    "install.source_not_allowed": (
        _("The owner of this host does not allow installs from %(source)s."),
        _("Add it to install_sources in the agent's settings (agent.json) on the host, and start the agent again."),
    ),
    "install.platform": (
        _("vLLM is built for Linux on x86_64 and aarch64; this host is %(machine)s."),
        _("Choose another host."),
    ),
    "install.no_avx2": (
        _("The CPU of this host lacks AVX2, which vLLM for CPU needs."),
        _("Choose another host; for a virtual machine, let it see the flags of the CPU."),
    ),
    "install.no_gpu_driver": (
        _("This host has no working NVIDIA driver."),
        _("Install the driver first, or install vLLM for the CPU."),
    ),
    "install.cuda_driver_too_old": (
        _("The driver %(driver)s of this host runs CUDA %(driver_cuda)s; this vLLM is built for CUDA %(wheel_cuda)s."),
        _("Update the driver, or install a version of vLLM that is built for the older CUDA."),
    ),
    "install.no_space": (
        _("The disk of %(path)s has %(free_mib:gib)s free; %(need_mib:gib)s are needed."),
        _("Free some space on the host: engines that nobody uses can be removed here."),
    ),
    "install.no_space:left": (_("The disk of the host ran full."), _("Free some space on the host, then try again.")),
    "install.no_python": (
        _("The host has no Python that the engine can use (%(wanted)s)."),
        _("Install one of them on the host so that it is on the PATH, then try again."),
    ),
    "install.no_venv": (
        _("Python %(python)s on the host cannot make virtual environments."),
        _("On Debian or Ubuntu: apt-get install %(package)s. Then try again."),
    ),
    "install.pip_too_old": (
        _("The pip of Python %(python)s on the host is too old (%(version)s)."),
        _("Update pip of this Python, or install a newer Python on the host."),
    ),
    "install.wheel_folder_missing": (
        _("The folder of packages %(path)s cannot be read on this host."),
        _("Fill it as the install form shows, or correct the setting BERTH_WHEEL_FOLDER."),
    ),
    "install.folder_not_writable": (
        _("The folder %(path)s cannot be written on the host: %(error)s."),
        _("Let the user of the agent write there, or give the agent another folder for engines."),
    ),
    "install.folder_not_ours": (
        _("The folder %(path)s exists and was not made by Berth."),
        _("Move it away on the host, then try again."),
    ),
    "install.folder_taken": (
        _("The folder %(name)s holds another engine."),
        _("Remove what is there, or move it away, then try again."),
    ),
    "install.in_use": (
        _("Process %(pid)s still runs from %(path)s, which has to be made anew."),
        _("Stop the engine that uses it, then try again."),
    ),
    "install.busy": (
        _("Another command on the host is preparing %(name)s."),
        _("Wait until it has ended, then try again."),
    ),
    # what the package sources say
    "install.index_unreachable": (
        _("The package source cannot be reached from this host: %(line)s"),
        _("Check the network and the proxy of the host, and the settings BERTH_PIP_… of the panel; then try again."),
    ),
    "install.index_refused": (
        _("The package source refuses these credentials: %(line)s"),
        _("Check the name and the password in the settings BERTH_PIP_… of the panel, then try again."),
    ),
    "install.index_certificate": (
        _("The package source has a certificate that this host does not trust."),
        _("Set PIP_CERT on the host to the certificate authority of the package source, or correct its address."),
    ),
    "install.no_such_version": (
        _("None of the package sources has %(package)s for this host."),
        _("The newest that they have: %(versions)s. Check the version, and the settings BERTH_PIP_… of the panel."),
    ),
    "install.hash_mismatch": (
        _("A downloaded package is not the one that was wanted: its hash differs."),
        _("Somebody may have changed it on the way. Check the package sources, then try again."),
    ),
    "install.python_unfit": (
        _("This version needs another version of Python than the host has."),
        _("Install a Python that it is made for on the host, or choose another version of the engine."),
    ),
    "install.conflict": (
        _("The packages that it asks for contradict each other: %(line)s"),
        _("Choose another version, or leave out the additions."),
    ),
    "install.no_nightly": (
        _("None of the package sources has a nightly build that is newer than %(version)s."),
        _("Name the index of the nightly builds in the setting BERTH_NIGHTLY_INDEX_URL."),
    ),
    "install.no_cpu_torch": (
        _("None of the package sources has the CPU build of torch %(torch)s."),
        _("Name an index for CPU builds of torch in the setting BERTH_PIP_EXTRA_INDEX_URL. One for CUDA is not taken."),
    ),
    "install.too_slow": (
        _("A step did not end within %(seconds)s s: %(step)s."),
        _("Try again: what was downloaded is used again."),
    ),
    "install.system": (
        _("The host could not go on at %(path)s: %(error)s."),
        _("Settle this on the host, then try again."),
    ),
    # the proof
    "install.verify_failed": (_("The installed engine does not work: %(line)s"), _PROOF_HINT),
    "install.verify_failed:signal": (
        _("The installed engine was ended by %(signal)s when it was tried."),
        _SIGNAL_HINT,
    ),
    "install.verify_failed:import": (_("The installed engine cannot be loaded: %(line)s"), _PROOF_HINT),
    "install.verify_failed:version": (_("Another version came out than was asked for: %(line)s"), _PROOF_HINT),
    "install.verify_failed:device": (_("The installed engine is not for this device: %(line)s"), _PROOF_HINT),
    "install.verify_failed:torch": (_("The installed torch is not for the CPU: %(line)s"), _PROOF_HINT),
    "install.verify_failed:start": (_("The installed engine did not start a tiny model: %(line)s"), _PROOF_HINT),
    "install.verify_failed:answer": (_("The installed engine started and did not answer: %(line)s"), _PROOF_HINT),
    "install.package_broken": (
        _("With %(package)s the engine does not work: %(line)s"),
        _("The package was taken out again; the engine is as it was. Another version of the engine may work with it."),
    ),
    "package.not_managed": (
        _("The host adds packages only to engines that Berth installed."),
        _("Whoever installed %(path)s can add it there."),
    ),
    "install.pip_failed": (_("Packages could not be installed: %(line)s"), _LOG_HINT),
    # the loop
    "install.deadline": (
        _("The install did not end within %(minutes)s min and was ended."),
        _("Try again: what was downloaded is used again. The setting BERTH_INSTALL_LIMIT_S allows more time."),
    ),
    "install.host_away": (
        _("The host was away for longer than an install may take."),
        _("When it is back, try again: what was downloaded is used again."),
    ),
    "stopped": (_("It was stopped on the host."), _("Try again.")),
    "stop_all": (_("Everything on the host was stopped."), _("Try again.")),
    "not_wanted": (_("It was stopped on the host."), _("Try again.")),
    "tombstone": (_("It was stopped on the host before."), _("Try again.")),
    "task_failed": (_("The install ended without a word."), _LOG_HINT),
    "too_many_jobs": (_("The host has as many jobs as it may have (%(limit)s)."), _("Try again when some have ended.")),
    "spawn_failed": (_("The host could not start the install."), _("Look at its disk and memory, then try again.")),
    "order_unreadable": (
        _("The agent of this host does not know this order."),
        _("It may be older than the panel: update the agent, then try again."),
    ),
    "not_supported_here": (
        _("The agent of this host cannot install engines."),
        _("It may be older than the panel: update the agent, then try again."),
    ),
    # removal
    "remove.not_managed": (_("%(path)s was not installed by Berth."), _("Whoever installed it can remove it there.")),
    "remove.missing": (_("%(path)s is not there any more."), _("Look for engines again on this host.")),
    "remove.in_use": (_("Something on the host still runs from it."), _("Stop what uses it, then remove it again.")),
    "remove.failed": (
        _("The host could not delete it at %(path)s: %(error)s."),
        _("Settle this on the host, then remove it again."),
    ),
    "remove.busy": (
        _("Another command on the host works on %(name)s."),
        _("Wait until it has ended, then remove it again."),
    ),
    "remove.deadline": (
        _("The host did not say whether it was removed."),
        _("Look at whether the host is connected, then remove it again."),
    ),
}
UNKNOWN: Pair = (_("It failed for a reason that has no words yet: %(code)s."), _LOG_HINT)
ALL = {**ENGINE_REFUSALS, **FAILURES}


def failure(refusal: Mapping[str, Any] | None) -> Words:
    """Why an install or a removal failed, and what to do next. Some codes have words for what exactly it was."""
    found = dict(refusal or {"code": "task_failed"})
    code, params = str(found.get("code", "")), found.get("params") or {}
    exact = f"{code}:{_exact(code, params)}"
    words = said(ALL, {"code": exact if exact in ALL else code, "params": params}, other=UNKNOWN)
    return replace(words, code=code)


def _exact(code: str, params: Mapping[str, Any]) -> str:
    if code == "install.no_space":
        return "" if "need_mib" in params else "left"
    return "signal" if params.get("signal") else str(params.get("what", ""))
