"""Words of installs and removals of engines: states, steps, and every code of the host with what to do next."""

from collections.abc import Mapping
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
_LOG_HINT = _("The log below says more. Try again, or choose another version.")

FAILURES: dict[str, Pair] = {
    # what is looked at before
    "install.forbidden": (
        _("The owner of this host does not allow Berth to install engines."),
        _("Set allow_install to true in the agent's settings (agent.json) on the host, and start the agent again."),
    ),
    "install.platform": (
        _("vLLM is built for Linux on x86_64 and aarch64; this host is %(machine)s."),
        _("Choose another host."),
    ),
    "install.no_avx2": (
        _("The CPU of this host lacks AVX2, which vLLM for CPU needs."),
        _("Choose another host; for a virtual machine, let it see the flags of the CPU."),
    ),
    "install.no_driver": (
        _("This host has no NVIDIA driver that answers."),
        _("Install the driver first, or choose the variant for CPU."),
    ),
    "install.cuda_driver_too_old": (
        _("The driver of this host knows CUDA %(driver)s; these packages need %(needed)s."),
        _("Update the NVIDIA driver on the host, or choose an older version of the engine."),
    ),
    "install.no_space": (
        _("The disk of %(path)s has %(free_mib:gib)s free; %(need_mib:gib)s are needed."),
        _("Free some space on the host: engines that nobody uses can be removed here."),
    ),
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
    "remove.deadline": (
        _("The host did not say whether it was removed."),
        _("Look at whether the host is connected, then remove it again."),
    ),
}
UNKNOWN: Pair = (_("It failed for a reason that has no words yet: %(code)s."), _LOG_HINT)
ALL = {**ENGINE_REFUSALS, **FAILURES}


def failure(refusal: Mapping[str, Any] | None) -> Words:
    """Why an install or a removal failed, and what to do next."""
    return said(ALL, refusal or {"code": "task_failed"}, other=UNKNOWN)
