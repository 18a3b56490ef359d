"""What a host's page says of its line to the panel, its door, and why it is set aside, in the viewer's language."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from panel.core.numbers import duration
from panel.core.wording import Pair, Words, said
from panel.fleet import doors, seats
from panel.fleet.agent.version import VERSION
from panel.fleet.models import Gpu, Host

SKEW_S = 30.0  # a clock that is further off is worth a word
RESTARTED = timedelta(minutes=10)  # how long a machine's restart is news

TROUBLES: dict[str, Pair] = {
    "link.version": (
        gettext_lazy("The agent there is %(agent)s and this panel is %(panel)s; they do not understand each other."),
        gettext_lazy("Run on that machine: %(command)s. Its engines go on meanwhile."),
    ),
    "link.twin": (
        gettext_lazy("A second agent calls with the key of this host, from %(address)s. It gets no work."),
        gettext_lazy(
            "If that machine is a copy of this one, join it as a host of its own. If it replaces this one, stop the "
            "agent here; the other is let in soon after."
        ),
    ),
    "link.left": (
        gettext_lazy("This host was taken away on its own machine, and its key has ended."),
        gettext_lazy("Forget it here, or add it again with a new code for this host."),
    ),
}
TROUBLE: Pair = (gettext_lazy("An agent with the key of this host was refused (%(code)s)."), "")

DOORS: dict[str, Pair] = {
    "": (
        gettext_lazy("Not open yet."),
        gettext_lazy("It opens a few seconds after the agent has called. Without it nothing can be asked there."),
    ),
    "starting": (gettext_lazy("It is being opened."), gettext_lazy("This takes a few seconds.")),
    "port_taken": (
        gettext_lazy("No port is free for it from %(port)s on."),
        gettext_lazy("Choose another one on that host: door_bind in agent.json. Then restart its agent."),
    ),
    "died": (
        gettext_lazy("Its process ended; the agent starts it again."),
        gettext_lazy("If it stays so, read door/door.log in the folder of the agent."),
    ),
    "no_address": (
        gettext_lazy("The host does not know under which address it can be reached."),
        gettext_lazy("Name one on that host: door_address in agent.json. Then restart its agent."),
    ),
    "address_not_allowed": (
        gettext_lazy("The address that the host gives for it is one that the panel does not call."),
        gettext_lazy(
            "Name the network with BERTH_PRIVATE_RANGES at the panel, or another address on that host: door_address in "
            "agent.json."
        ),
    ),
    "key_pending": (
        gettext_lazy("It is open, and does not have the new key of the panel yet."),
        gettext_lazy("The host gets it with its next call."),
    ),
}
DOOR: Pair = (gettext_lazy("It is not open (%(code)s)."), "")


def trouble(host: Host) -> Words | None:
    """An agent that was refused lately; None when all is well."""
    found = host.link_trouble
    if not found.get("code"):
        return None
    fresh = timezone.now() - seats.at(found) < timedelta(seconds=2 * settings.BERTH_HOST_LOST_S)
    if not fresh and not (found["code"] == "link.left" and host.lost_at is not None):
        return None
    if found["code"] == seats.Twin.code and seats.at(found) - seats.at(found, "since") < seats.patience():
        return None  # a machine that was started again waits for its own former silence: no news
    params = {"panel": VERSION, "command": seats.UPDATE_COMMAND, **(found.get("params") or {})}
    return said(TROUBLES, {"code": found["code"], "params": params}, other=TROUBLE)


def clock(host: Host) -> str:
    """A clock that is far off; "" when it is right."""
    off = host.clock_skew_s
    if abs(off) < SKEW_S:
        return ""
    values = {"time": duration(abs(off))}
    if off > 0:
        return _("The clock of this machine is %(time)s ahead of the panel's.") % values
    return _("The clock of this machine is %(time)s behind the panel's.") % values


def restarted(host: Host) -> datetime | None:
    """When the machine started again, while that is news."""
    at = host.restarted_at
    return at if at is not None and timezone.now() - at < RESTARTED else None


def older_agent(host: Host) -> dict[str, str] | None:
    """An agent of another version that still works; None when it is the panel's own."""
    if host.is_local or not host.agent_version or host.agent_version == VERSION:
        return None
    return {"agent": host.agent_version, "panel": VERSION, "command": seats.UPDATE_COMMAND}


def hold(row: Host | Gpu) -> dict[str, Any] | None:
    """Who set it aside, when and why; None when it is in use."""
    if row.schedulable:
        return None
    found = row.hold or {}
    return {
        "by": str(found.get("by", "")),
        "at": parse_datetime(str(found.get("at", ""))),
        "note": str(found.get("note", "")),
    }


def door(host: Host) -> dict[str, Any] | None:
    """The host's door: where it is, or why it is not open. None on the panel's own machine."""
    if host.is_local:
        return None
    found = host.door
    problem = str(found.get("problem", ""))
    address = ""
    if found.get("certificate") and not problem:
        where = found["address"]
        address = f"https://[{where}]:{found['port']}" if ":" in where else f"https://{where}:{found['port']}"
        if not doors.key_for(host):
            problem = "key_pending"
    words = None if address and not problem else said(DOORS, {"code": problem, "params": found}, other=DOOR)
    return {"address": address, "words": words, "certificate": found.get("certificate", "")}
