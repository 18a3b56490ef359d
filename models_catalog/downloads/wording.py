"""Words of downloads: states, stages, and every code of hosts and hubs, with what to do next."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext_lazy as _

from models_catalog.downloads.models import State
from panel.core.wording import Pair, Words, said

# state → (badge kind of the design system, word)
BADGES: dict[str, tuple[str, Any]] = {
    State.WAITING: ("wait", _("Waiting for its turn")),
    "ordered": ("wait", _("Waiting for the host")),
    State.RUNNING: ("busy", _("Downloading")),
    "verifying": ("busy", _("Verifying")),
    State.PAUSING: ("busy", _("Being paused")),
    State.PAUSED: ("off", _("Paused")),
    State.CANCELLING: ("busy", _("Being cancelled")),
    State.CANCELLED: ("off", _("Cancelled")),
    State.DONE: ("ok", _("Downloaded")),
    State.FAILED: ("bad", _("Failed")),
}
SHOW: dict[str, Any] = {"": _("All"), "done": _("Downloaded"), "failed": _("Failed"), "cancelled": _("Cancelled")}

# phase → (what was done, what is being done)
STEPS: dict[str, tuple[Any, Any]] = {
    "waiting": (_("Waited for another download"), _("Waiting for another download into this folder")),
    "checking": (_("Looked at what is there"), _("Looking at what is there and at the disk")),
    "downloading": (_("Files downloaded"), _("Downloading files")),
    "verifying": (_("Compared with the hub's sums"), _("Comparing with the hub's sums")),
    "placing": (_("Put where models lie"), _("Putting the files where models lie")),
}

FITS: dict[str, tuple[str, Any]] = {
    "fits": ("ok", _("fits")),
    "tight": ("warn", _("just fits")),
    "does_not_fit": ("bad", _("does not fit")),
    "unknown": ("off", _("not known")),
}

_TRY = _("What came is kept. Resume it when that is settled.")
_AGAIN = _("What came is kept. Resume it.")
_NETWORK = _(
    "Look at the host's network, and at this hub's address (HF_ENDPOINT or BERTH_MODELSCOPE_ENDPOINT) and the proxy "
    "(BERTH_HUB_PROXY) in the environment that Berth was started with; then resume it."
)
_ADDRESS = _("Look at the setting of this hub's address (HF_ENDPOINT, BERTH_MODELSCOPE_ENDPOINT).")
_TOKEN = _(
    "Accept the model's terms on the hub's page, then give Berth a token of that account under “Access to hubs”."
)

FAILURES: dict[str, Pair] = {
    # the hub's door
    "download.gated": (
        _("The makers of this model let nobody have it without asking: its licence has to be accepted first."), _TOKEN,
    ),
    "download.gated:token": (
        _("The account of the token may not have this model yet."),
        _("Accept the model's terms on the hub's page with that account; some makers take a while to answer."),
    ),
    "download.unauthorized": (
        _("The hub wants to know who asks."), _("Give Berth a token under “Access to hubs”, then try again."),
    ),
    "download.unauthorized:token": (
        _("The hub does not accept the token."),
        _("It may have been revoked, or lack the right to read. Make a new one on the hub and give it to Berth."),
    ),
    "download.not_found": (
        _("The hub has no such model, or shows it to its owners only."),
        _("Look at the name. For a private model give Berth a token under “Access to hubs”."),
    ),
    "download.not_found:revision": (
        _("The hub does not have this branch or commit any more."), _("Start the download anew from the newest one."),
    ),
    "download.not_found:file": (
        _("The hub does not have the file %(file)s any more."), _("Start the download anew: the makers changed it."),
    ),
    "download.changed": (
        _("The file on the hub is not the one that was chosen: the makers changed it."), _("Start the download anew."),
    ),
    "download.no_commit": (_("The hub does not say which commit %(revision)s is."), _("Start the download anew.")),
    "download.rate_limited": (
        _("The hub asks to wait: too many requests came from your network."),
        _("Resume it in a few minutes. With a token the hub allows more."),
    ),
    "download.server_error": (
        _("The hub answers with an error (%(what)s)."), _("It may be over soon. Resume it in a few minutes."),
    ),
    "download.server_error:json": (_("The hub's answer cannot be read: it may not be a model hub."), _ADDRESS),
    "download.server_error:commit": (_("The hub does not say which state of the model it shows."), _ADDRESS),
    "download.server_error:redirect": (_("The hub leads to an address that Berth does not follow."), _ADDRESS),
    "download.server_error:redirects": (_("The hub leads from one address to the next without an end."), _ADDRESS),
    "download.server_error:size": (
        _("The hub's answer is longer than Berth takes."), _("Use more words in the search, or another repository."),
    ),
    "download.server_error:files": (
        _("The repository has more files than Berth takes."),
        _("Copy the folder to the host by hand, then look for models."),
    ),
    "download.server_error:range": (_("The hub sends another part of the file than was asked for."), _AGAIN),
    "download.server_error:encoding": (
        _("The hub sends the file packed in a way that was not asked for."),
        _("A proxy on the way may do that: look at the setting BERTH_HUB_PROXY, then resume it."),
    ),
    # the way there
    "download.offline": (_("%(host)s cannot be reached."), _NETWORK),
    "download.dns": (_("The name %(host)s cannot be looked up."), _NETWORK),
    "download.tls": (
        _("The connection is not trusted: %(error)s."),
        _("A proxy that opens connections needs its certificate on the machine; a wrong clock does it, too."),
    ),
    "download.proxy": (
        _("The proxy does not let it through."), _("Look at the setting BERTH_HUB_PROXY; then resume it."),
    ),
    "download.silent": (_("The hub does not answer."), _NETWORK),
    "download.stalled": (_("No byte came for %(silent_s)s s."), _NETWORK),
    "download.connection_lost": (_("The connection was lost again and again."), _NETWORK),
    "download.short_body": (_("The hub ended in the middle of a file again and again."), _TRY),
    "download.address_not_allowed": (
        _("%(host)s is an address that Berth does not call: it belongs to a network of its own."),
        _(
            "If it is a mirror of yours, an admin names its address (HF_ENDPOINT, BERTH_MODELSCOPE_ENDPOINT). If your "
            "network answers for the hub's own address, they name that network in BERTH_HUB_PRIVATE_RANGES. One that "
            "BERTH_PRIVATE_RANGES leaves out is not called."
        ),
    ),
    "download.address_not_allowed:elsewhere": (
        _("The hub leads to %(host)s, which is in a private network; a public hub's files do not lie there."),
        _(
            "If it is yours, the owner of this host names both addresses, the hub's and this one, in "
            "download_endpoints in agent.json there."
        ),
    ),
    "download.address_not_allowed:link_local": (
        _("%(host)s is an address that Berth never calls: clouds keep their credentials there."), _ADDRESS,
    ),
    "download.address_not_allowed:loopback": (
        _("%(host)s leads back to the machine that asks, which the address of a hub may not."), _ADDRESS,
    ),
    "download.plain_http": (
        _("A token is not sent to %(endpoint)s without encryption."),
        _("Use an address with https in the setting of this hub, or remove the token."),
    ),
    # the host
    "download.forbidden": (
        _("The owner of this host does not allow Berth to download models."),
        _("Set allow_download to true in the agent's settings (agent.json) on the host, and start the agent again."),
    ),
    "download.endpoint_not_allowed": (
        _("The owner of this host does not allow downloads from %(endpoint)s."),
        _("Add it to download_endpoints in the agent's settings (agent.json) on the host, and start the agent again."),
    ),
    "download.path_not_allowed": (
        _("The agent of this host does not allow files at %(path)s."),
        _("Choose another folder, or add it to the agent's settings (agent.json) on the host."),
    ),
    "download.no_space": (
        _("The disk of %(path)s has %(free_mib:gib)s free; %(need_mib:gib)s are needed."),
        _("Delete what nobody uses, or choose another folder or host. Then resume it."),
    ),
    "download.disk_full": (_("The disk of %(path)s ran full."), _("Free some space on the host, then resume it.")),
    "download.system": (_("The host could not write at %(path)s: %(error)s."), _TRY),
    "download.folder_taken": (
        _("%(path)s is there already and is another file."),
        _("Rename it or choose another folder: Berth overwrites no file that it does not know."),
    ),
    "download.wrong_hash": (
        _("%(file)s is not what the hub promised. It was deleted; the other files are kept."),
        _("Resume it: only what was wrong is fetched again. If it happens again, choose another mirror."),
    ),
    "download.order_invalid": (
        _("The host does not accept the field %(field)s of this order."),
        _("Its agent may be older than the panel: update it, then try again."),
    ),
    # any job
    "stopped": (_("It was stopped on the host."), _TRY),
    "stop_all": (_("Everything on the host was stopped."), _TRY),
    "not_wanted": (_("It was stopped on the host."), _TRY),
    "tombstone": (_("It was stopped on the host before."), _TRY),
    "host_restarted": (_("The machine was started again."), _TRY),
    "task_failed": (_("The download ended without a word."), _("Its log says more. What came is kept: resume it.")),
    "task_failed:signal": (
        _("Something on the host ended the download (signal %(signal)s)."),
        _("Often that is a memory that ran out. What came is kept: resume it."),
    ),
    "exit_unknown": (_("The download ended, and nobody saw how."), _AGAIN),
    "cannot_execute": (
        _("The host could not start the download: its agent's program is not there any more."),
        _("Install the agent again on the host, then resume it."),
    ),
    "host_forgotten": (
        _("This host does not belong to the panel any more."), _("Connect it again, or choose another host."),
    ),
    "too_many_jobs": (_("The host has as many jobs as it may have (%(limit)s)."), _("Resume it when some have ended.")),
    "spawn_failed": (_("The host could not start the download."), _("Look at its disk and memory, then resume it.")),
    "environment_not_allowed": (_("The host does not accept the variable %(name)s."), _("Update its agent.")),
    "order_unreadable": (
        _("The agent of this host does not know downloads."), _("It is older than the panel: update the agent."),
    ),
    "not_supported_here": (
        _("The agent of this host cannot download models."), _("It may be older than the panel: update the agent."),
    ),
}  # fmt: skip
# Where the way by hand helps: the hub was not reached, from the host or from the panel.
NETWORK = frozenset(
    f"download.{code}"
    for code in ("offline", "dns", "tls", "proxy", "silent", "stalled", "connection_lost", "address_not_allowed")
)
UNKNOWN: Pair = (_("It failed for a reason that has no words yet: %(code)s."), _("Its log says more."))

_PANEL = _(
    "Look at the network of the machine that the panel runs on, and at this hub's address (HF_ENDPOINT or "
    "BERTH_MODELSCOPE_ENDPOINT) and the proxy (BERTH_HUB_PROXY) in the environment that Berth was started with; then "
    "try again."
)
# The next step where the panel itself asked: nothing was begun that could be resumed.
ASKED: dict[str, Any] = {
    **dict.fromkeys(("download.offline", "download.dns", "download.silent"), _PANEL),
    "download.proxy": _("Look at the setting BERTH_HUB_PROXY; then try again."),
    "download.rate_limited": _("Try again in a few minutes. With a token the hub allows more."),
    "download.server_error": _("It may be over soon. Try again in a few minutes."),
    "download.not_found:revision": _("Choose another branch or tag, or the newest state."),
}


def failure(refusal: Mapping[str, Any] | None) -> Words:
    """Why it failed, and what to do next. Some codes have words for what exactly it was."""
    code, exact, params = _exactly(dict(refusal or {"code": "task_failed"}))
    return replace(said(FAILURES, {"code": exact, "params": params}, other=UNKNOWN), code=code)


def asked(trouble: Mapping[str, Any]) -> Words:
    """Why a hub gave the panel no answer, and what to do next."""
    _code, exact, _params = _exactly(trouble)
    words = failure(trouble)
    return replace(words, hint=str(ASKED[exact])) if exact in ASKED else words


def _exactly(found: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """(code, key of the words, parameters)."""
    code, params = str(found.get("code", "")), dict(found.get("params") or {})
    detail = params.get("why") or params.get("what") or ("signal" if params.get("signal") else "")
    exact = f"{code}:{'token' if params.get('token') and code != 'download.not_found' else detail}"
    if code == "download.server_error":
        params["what"] = params.get("status") or params.get("what")
    return code, exact if exact in FAILURES else code, params
