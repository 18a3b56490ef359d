"""Codes of the loop, the planner, the engines and the agents, as sentences with a next step, in the viewer's language.

Every code that a page may show stands here; a test walks the pure modules and fails on one that is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from deployments.states import State


@dataclass(frozen=True)
class Words:
    """What happened and what to do next; `code` is for API and support."""

    code: str
    text: str
    hint: str = ""


# state → (badge kind of the design system, word)
BADGES: dict[str, tuple[str, Any]] = {
    State.QUEUED: ("wait", _("Waiting")),
    State.PLACING: ("busy", _("Choosing a place")),
    State.PREPARING: ("busy", _("Preparing")),
    State.STARTING: ("busy", _("Starting")),
    State.READY: ("ok", _("Ready")),
    State.STOPPING: ("busy", _("Stopping")),
    State.STOPPED: ("off", _("Stopped")),
    State.FAILED: ("bad", _("Failed")),
    State.LOST: ("lost", _("No contact")),
}

STEP_NAMES: dict[str, Any] = {
    "placed": _("Placed"),
    "process": _("Process started"),
    "config": _("Configuration checked"),
    "weights": _("Weights loaded"),
    "memory": _("Memory profiled"),
    "graphs": _("CUDA graphs"),
    "server": _("Server up"),
    "answered": _("Answered a test question"),
}

# What a person should know while a step runs, and that nothing is wrong.
STEP_NOTES: dict[str, tuple[Any, Any]] = {
    "placed": (_("Finding a place"), _("Berth looks for a host with the model, an engine and enough memory.")),
    "process": (
        _("The engine is waking up"),
        _("The program and its libraries are being loaded. On a fresh machine this can take a minute."),
    ),
    "config": (_("The engine reads the settings"), _("It checks the model's files and every setting.")),
    "weights": (
        _("GPU at 0 % here is normal"),
        _("The model is being read from disk into memory; nothing is computed yet. You may leave this page."),
    ),
    "memory": (
        _("The engine measures memory"),
        _("It runs the largest batch once to see what is left for conversations."),
    ),
    "graphs": (
        _("GPU at 100 % here is normal"),
        _("The engine rehearses every batch size it may meet later. Nothing to do."),
    ),
    "server": (_("The server opens its door"), _("Next comes a test question; only then it counts as ready.")),
    "answered": (_("A test question is on its way"), _("The first answer is often slower than later ones.")),
}

CODES: dict[str, tuple[Any, Any]] = {
    # the loop
    "queued.waiting": (_("Waiting for its turn."), ""),
    "reserve.no_room": (
        _("%(device)s has no room for %(mib)s MiB more."),
        _("It starts by itself when memory is free. Stop something else, or choose another place in the settings."),
    ),
    "placing.deadline": (_("No place was found in time."), _("Press Start to try again.")),
    "preparing.deadline": (_("The preparation took too long."), _("Press Start to try again.")),
    "start.no_job": (_("The order for this start was lost."), _("Press Start to try again.")),
    "start.deadline": (
        _("It was not ready within the time allowed for a start."),
        _("The log shows how far it came. Press Start to try again, or allow more time in the settings."),
    ),
    "answer.failed": (
        _("The engine came up but did not answer the test question."),
        _("The log shows what it did with the question. Other settings or another engine version may help."),
    ),
    "start.stalled": (
        _("Nothing has moved for %(minutes)s min: no log line, no byte read, no memory change."),
        _("Berth does not end it for that. If the last log line tells you nothing, stop it and start again."),
    ),
    "stop.leftover": (
        _("These processes have not ended yet: %(pids)s."),
        _("They may wait for the disk or the driver. Berth keeps trying and says here when they are gone."),
    ),
    "stop.not_proven": (
        _("Some processes did not end after KILL: %(pids)s."),
        _("They wait for the disk or the driver. Their memory stays reserved until the host reports that they ended."),
    ),
    "lost.no_contact": (
        _("The host's agent has been silent. The engine may well be running."),
        _("Check that the machine is on and that its agent runs; contact comes back by itself."),
    ),
    # how a process ended
    "exit.zero": (_("The engine ended by itself without an error."), _("The end of the log tells why.")),
    "exit.code": (_("The engine ended with exit code %(exit_code)s."), _("The first error in the log is shown below.")),
    "exit.signal": (_("The engine was ended by %(signal)s."), _("The end of the log may tell more.")),
    "exit.unknown": (
        _("The engine ended while nobody watched; its exit code is not known."),
        _("The machine may have restarted, or the watcher was killed."),
    ),
}


def words(reason: Mapping[str, Any] | None) -> Words | None:
    """The sentence and hint of a {code, params}; None when there is no reason. An unknown code is shown as it is."""
    if not reason or not reason.get("code"):
        return None
    code, params = str(reason["code"]), dict(reason.get("params") or {})
    text, hint = CODES.get(code, (_("It did not work, for a reason that has no words yet: %(code)s."), ""))
    params = {**params, "code": code}
    for key, value in params.items():
        if isinstance(value, list):
            params[key] = ", ".join(map(str, value))
    return Words(code, _fill(str(text), params), _fill(str(hint), params))


class _Gaps(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def _fill(text: str, params: dict[str, Any]) -> str:
    return text % _Gaps(params) if "%(" in text else text
