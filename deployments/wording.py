"""Words of the deployments' pages in the viewer's language: states, steps, and codes with a next step (codes.py)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from deployments.codes import CODES
from deployments.diagnosis.told import sentence
from deployments.expert_words import SAID
from deployments.states import State
from models_catalog import wording as catalog
from models_catalog.conversions import wording as conversions
from models_catalog.estimate.plan import Reason as Because
from models_catalog.estimate.words import say as estimated
from panel.audit.names import NAMES
from panel.core.numbers import duration, gib, ngroup
from panel.core.wording import Words, fill, said

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
    "memory": _("Memory measured"),
    "graphs": _("CUDA graphs"),
    "server": _("Server up"),
    "answered": _("Answered a test question"),
}

PROGRAMS_TOLD = 3  # of one GPU
COUNTS = ("context", "longest", "people")  # tokens and requests, said in groups of three digits

# The same steps while they go on, or where a start ended.
STEPS_NOW: dict[str, Any] = {
    "placed": _("Choosing a place"),
    "process": _("Starting the process"),
    "config": _("Checking the configuration"),
    "weights": _("Loading weights"),
    "memory": _("Measuring memory"),
    "graphs": _("Recording CUDA graphs"),
    "server": _("Opening the server"),
    "answered": _("Answering a test question"),
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
        # xgettext:no-python-format
        _("GPU at 0 % here is normal"),
        _("The model is being read from disk into memory; nothing is computed yet. You may leave this page."),
    ),
    "memory": (
        # xgettext:no-python-format
        _("GPU at 100 % here is normal"),
        _("The engine runs the largest batch once, to see how much memory is left for conversations. Nothing to do."),
    ),
    "graphs": (
        # xgettext:no-python-format
        _("GPU at 100 % here is normal"),
        _("The engine rehearses every batch size it may meet later, so that answers come faster. Nothing to do."),
    ),
    "server": (_("The server opens its door"), _("Next comes a test question; only then it counts as ready.")),
    "answered": (_("A test question is on its way"), _("The first answer is often slower than later ones.")),
}


# Where a proposed fix of this kind is made.
FIXED_WHERE: dict[str, Any] = {
    "set": _("In the settings of this deployment."),
    "drop": _("In the settings of this deployment."),
    "env": _("In the settings of this deployment."),
    "runtime": _("On the page “Engines”, then in the settings of this deployment."),
    "package": _("In the engine's folder on the host."),
    "repair": _("Where the model's files lie, on the host."),
    "model": _("On the page “Models”."),
    "host": _("On the host."),
    "permission": _("An admin can allow it."),
}

# On a CPU nothing is said of GPUs.
STEP_NOTES_CPU = {
    **STEP_NOTES,
    "weights": (_("The model is being loaded"), STEP_NOTES["weights"][1]),
    "memory": (_("The engine measures memory"), STEP_NOTES["memory"][1]),
}


def person(name: str) -> str:
    """Who did something, as pages say it; "system" is Berth itself."""
    return "Berth" if name == "system" else name


def label_of(option: str) -> str:
    """An option as people call it; one without a word of its own as the engine does."""
    bare = option.removeprefix("env.")
    words_of = SAID.get(bare)
    return str(NAMES.get(bare) or (words_of.label if words_of is not None else bare))


def fixes(reason: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """(kind, sentence, command) of what the diagnosis proposes, the likeliest first."""
    offered = ((reason or {}).get("params") or {}).get("fixes") or []
    return [(fix["kind"], fill(gettext(fix["text"]), fix["params"]), fix["command"]) for fix in offered if fix["text"]]


def _named(reason: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    """With sizes as bare GiB beside; strangers on a GPU are called by their programs' names, where they have one."""
    numbers = {
        f"{name[:-4]}_gib": gib(value, "").removesuffix(".0")
        for name, value in params.items()
        if name.endswith("_mib") and isinstance(value, int | float)
    }
    numbers |= {name: ngroup(params[name]) for name in COUNTS if isinstance(params.get(name), int)}
    if params.get("step") in STEPS_NOW:
        numbers["step"] = str(STEPS_NOW[params["step"]])
    if reason["code"] == "start.hung" and params.get("usual_s") is not None:
        usual = {"usual": duration(params["usual_s"])}
        return {"code": "start.hung_usual", "params": {**params, **numbers, **usual}}
    if reason["code"] == "gpu.used_by_others":
        return _strangers({**params, **numbers})
    return {"code": reason["code"], "params": {**params, **numbers}}


def _strangers(params: dict[str, Any]) -> Mapping[str, Any]:
    """Whose programs hold a GPU's memory, the largest first, as far as they have names."""
    users = [user for user in params.get("users") or [] if user.get("name")]
    if not users:
        return {"code": "gpu.used_by_others", "params": params}
    if len(params["users"]) == 1:
        code = "gpu.used_by_user" if users[0].get("user") else "gpu.used_by_one"
        return {"code": code, "params": {**params, "process": users[0]["name"], "user": users[0].get("user")}}
    told = [_program(user) for user in users[:PROGRAMS_TOLD]]
    if (more := params.get("programs", len(params["users"])) - len(told)) > 0:
        told.append(_("%(n)s more") % {"n": more})
    return {"code": "gpu.used_by_several", "params": {**params, "named": told}}


def _program(user: Mapping[str, Any]) -> str:
    """ "python3 (ada) 9.8 GiB"; what is not told is left out."""
    size = gib(user["used_mib"]) if user.get("used_mib") is not None else ""
    whose = f"({user['user']})" if user.get("user") else ""
    return " ".join(part for part in (str(user["name"]), whose, size) if part)


def words(reason: Mapping[str, Any] | None) -> Words | None:
    """The sentence and hint of a {code, params}; None when there is no reason. An unknown code is shown as it is."""
    if not reason or not reason.get("code"):
        return None
    if reason["code"] in catalog.FILES:
        return catalog.of_file(reason)
    if str(reason["code"]).startswith("sidecar."):
        return conversions.failure(reason)
    params = reason.get("params") or {}
    if reason["code"] == "lost.no_contact" and params.get("since"):
        return replace(said(CODES, {**reason, "code": "lost.since"}), code=reason["code"])
    found = said(CODES, _named(reason, params))
    if params.get("title"):  # the diagnosis knows why; how it ended is said after that
        why = sentence(params.get("why") or "", params.get("told"), gettext)
        why = f"{why} {found.text}" if why else found.text
        return replace(found, text=gettext(params["title"]), hint=why)
    if reason["code"] == "flag.unknown" and not params.get("near"):
        if params.get("maybe"):
            asked = gettext("Was %(maybe)s meant? Look at how it is written, or leave it out.")
            return replace(found, hint=asked % params)
        return replace(found, hint=str(_("Look at how it is written, or leave it out.")))
    if because := params.get("because"):
        told = estimated(Because(str(because.get("code") or ""), dict(because.get("params") or {})), gettext)
        return replace(found, text=f"{found.text} {told}")
    if share := params.get("fits_utilisation"):
        smaller = _("With a share of %(share)s it would fit now.") % {"share": share}
        return replace(found, hint=f"{found.hint} {smaller}")
    return found


def changes(reason: dict[str, Any] | None) -> list[Words]:
    """What would make it fit, the nearest first."""
    said = (words(change) for change in (reason or {}).get("params", {}).get("changes", []))
    return [change for change in said if change is not None]


def candidates(reason: dict[str, Any]) -> list[dict[str, str]]:
    """Why each place was not taken."""
    found = []
    for item in (reason or {}).get("params", {}).get("candidates", []):
        said = words((item.get("params") or {}).get("problem") or item)
        found.append(
            {"name": item.get("name", ""), "text": said.text if said else "", "hint": said.hint if said else ""}
        )
    return found
