"""Words of descriptions and conversions of GGUF files: states, steps, and every code of hosts, with what to do next."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext_lazy as _

from models_catalog.conversions.models import State
from panel.core.wording import Pair, Words, said

# state → (badge kind of the design system, word)
BADGES: dict[str, tuple[str, Any]] = {
    State.WAITING: ("wait", _("Waiting for the host")),
    State.RUNNING: ("busy", _("Converting")),
    State.CANCELLING: ("busy", _("Being cancelled")),
    State.CANCELLED: ("off", _("Cancelled")),
    State.DONE: ("ok", _("Converted")),
    State.FAILED: ("bad", _("Failed")),
}

# phase → (what was done, what is being done)
STEPS: dict[str, tuple[Any, Any]] = {
    "checking": (_("Disk and memory looked at"), _("Looking at disk and memory")),
    "describing": (_("Configuration and tokenizer written"), _("Writing configuration and tokenizer")),
    "reading": (_("Weights read and unpacked"), _("Reading and unpacking weights")),
    "writing": (_("Weights written"), _("Writing weights")),
    "placing": (_("Put where models lie"), _("Putting the folder where models lie")),
}

DTYPES: dict[str, Any] = {
    "float16": _("2 bytes for each parameter"),
    "bfloat16": _("2 bytes for each parameter, for models that were made in it"),
    "float32": _("4 bytes for each parameter, twice the room"),
}

_OTHER = _("Serve this file with llama.cpp, or get the model as a Hugging Face folder.")
_AGAIN = _("Try again.")
_LOG = _("The log says more.")

FAILURES: dict[str, Pair] = {
    # the file and the engine that should read it
    "sidecar.unknown_architecture": (
        _("The engine's Python libraries do not read GGUF files of the kind %(architecture)s."), _OTHER,
    ),
    "sidecar.no_reader": (
        _("The engine's Python lacks the package %(package)s, or it does not work there: %(detail)s."),
        _("Use another engine on this host, or install one anew."),
    ),
    "sidecar.no_python": (
        _("The engine at %(executable)s is no Python program, so nothing could be made with it."),
        _("Use another engine on this host."),
    ),
    "sidecar.header": (_("The file cannot be read: %(detail)s."), _("Look for models again; its page says more.")),
    "sidecar.config": (_("No configuration can be made from this file: %(detail)s."), _OTHER),
    "sidecar.tokenizer": (_("No tokenizer can be made from this file: %(detail)s."), _OTHER),
    "sidecar.convert": (_("The weights of this file cannot be unpacked: %(detail)s."), _OTHER),
    "sidecar.failed": (_("The engine's Python gave up on this file: %(detail)s."), _OTHER),
    "sidecar.not_gguf": (_("%(path)s is no GGUF file."), _("Look for models again.")),
    "sidecar.missing_parts": (
        _("Parts of this model are missing: %(files)s."), _("Copy them beside the others, then look for models again."),
    ),
    "sidecar.no_memory": (
        _("The host's memory was not enough for it."), _("Stop something there, or use a host with more memory."),
    ),
    "sidecar.too_slow": (_("It was not done in %(seconds)s s."), _("The machine may be busy. Try again later.")),
    "sidecar.disk_full": (_("The disk of the host ran full."), _("Free some space there, then try again.")),
    "sidecar.system": (_("The host could not write at %(path)s: %(error)s."), _AGAIN),
    "sidecar.busy": (_("The host was busy with another file for too long."), _AGAIN),
    "sidecar.task_failed": (_("The preparation on the host ended without a word."), _AGAIN),
    "sidecar.order_unreadable": (
        _("The agent of this host does not know how to describe GGUF files."),
        _("It is older than the panel: update the agent, then try again."),
    ),
    "sidecar.kind_unknown": (
        _("The agent of this host does not know how to describe GGUF files."),
        _("It is older than the panel: update the agent, then try again."),
    ),
    # conversions
    "convert.forbidden": (
        _("The owner of this host does not allow Berth to write models."),
        _("Set allow_download to true in the agent's settings (agent.json) on the host, and start the agent again."),
    ),
    "convert.no_space": (
        _("The disk of %(path)s has %(free_mib:gib)s free; %(need_mib:gib)s are needed."),
        _("Delete what nobody uses, or choose another folder."),
    ),
    "convert.no_memory": (
        _("The host has %(free_mib:gib)s of memory free; converting needs ≈ %(need_mib:gib)s."),
        _("Stop something there, or convert on a host with more memory."),
    ),
    "convert.folder_taken": (
        _("%(path)s is there already."), _("Choose another name: Berth overwrites no model."),
    ),
    "convert.path_not_allowed": (
        _("The agent of this host does not allow models at %(path)s."),
        _("Choose another folder, or add it to the agent's settings (agent.json) on the host."),
    ),
    "convert.disk_full": (_("The disk of %(path)s ran full."), _("Free some space on the host, then try again.")),
    "convert.system": (_("The host could not write at %(path)s: %(error)s."), _AGAIN),
    "convert.busy": (_("Another conversion of this name goes on on the host."), _("Wait until it has ended.")),
    "convert.too_slow": (_("It did not end within %(seconds)s s."), _("The machine may be busy. Try again later.")),
    "convert.folder_not_writable": (
        _("The folder %(path)s cannot be written: %(error)s."),
        _("Choose another folder, or change who owns this one."),
    ),
    # any job
    "runtime_unknown": (_("The host does not know the engine %(executable)s any more."), _("Look for engines again.")),
    "path_missing": (_("The host found nothing at %(path)s."), _("Look for models again.")),
    "path_not_allowed": (
        _("The agent of this host does not allow %(path)s."),
        _("Add its folder to the agent's settings (agent.json) on the host."),
    ),
    "timed_out": (_("It took longer than the host allows."), _AGAIN),
    "stopped": (_("It was stopped on the host."), _AGAIN),
    "stop_all": (_("Everything on the host was stopped."), _AGAIN),
    "not_wanted": (_("It was stopped on the host."), _AGAIN),
    "tombstone": (_("It was stopped on the host before."), _AGAIN),
    "host_restarted": (_("The machine was started again."), _AGAIN),
    "host_forgotten": (_("This host does not belong to the panel any more."), ""),
    "task_failed": (_("The conversion ended without a word."), _LOG),
    "too_many_jobs": (_("The host has as many jobs as it may have (%(limit)s)."), _("Try again when some have ended.")),
    "spawn_failed": (_("The host could not start it."), _("Look at its disk and memory, then try again.")),
    "order_unreadable": (
        _("The agent of this host does not know conversions."), _("It is older than the panel: update the agent."),
    ),
    "kind_unknown": (
        _("The agent of this host does not know conversions."), _("It is older than the panel: update the agent."),
    ),
    "not_supported_here": (
        _("The agent of this host cannot do this."), _("It may be older than the panel: update the agent."),
    ),
}  # fmt: skip
UNKNOWN: Pair = (_("It failed for a reason that has no words yet: %(code)s."), _LOG)


def failure(refusal: Mapping[str, Any] | None) -> Words:
    """Why it failed, and what to do next."""
    found = dict(refusal or {"code": "task_failed"})
    params = dict(found.get("params") or {})
    if isinstance(files := params.get("files"), list):
        params["files"] = ", ".join(map(str, files))
    words = said(FAILURES, {"code": found.get("code", ""), "params": params}, other=UNKNOWN)
    return replace(words, code=str(found.get("code", "")))
