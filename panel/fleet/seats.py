"""Which agent may speak for a host: the wire that it speaks, and one process at a time.

An agent names its seat (a folder on a machine since its newest start, see agent/seat.py) with every call. The same seat
is let in at once: its folder's lock says that an earlier agent there is gone. Another seat with the same token is a
machine that was started again, moved, or copied; these look alike, so it is let in only when the one before has been
silent as long as makes a host lost, or has left. Until then it gets no work.
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_lazy as _

from panel.core.errors import PanelError
from panel.fleet import live, samples, wire
from panel.fleet.agent.version import VERSION
from panel.fleet.models import Host

MAX_INSTANCE = 80
NOTE_EVERY = timedelta(seconds=5)  # a refused agent knocks often; its host's row need not be written each time
UPDATE_COMMAND = "berth-agent --update"


class OtherWire(PanelError):
    """The agent's messages are of another version than this panel reads. Engines go on; nothing is lost."""

    code = "link.version"
    message = _("This is the agent %(agent)s; the panel is %(panel)s and does not understand it.")
    hint = _("Run on this host: %(command)s. Engines go on meanwhile.")
    status = 426


class Twin(PanelError):
    """Two agents use one host's token."""

    code = "link.twin"
    message = _("Another agent already speaks for the host %(host)s with the same key.")
    hint = _(
        "If this machine is a copy, join it as a host of its own with a new code. If it takes the place of the other "
        "one, stop that agent; this one is let in %(seconds)s s later."
    )
    status = 409


def patience() -> timedelta:
    """How long another seat waits for the silence of the one before."""
    return timedelta(seconds=settings.BERTH_HOST_LOST_S)


def seat_of(instance: str) -> str:
    return instance.partition(".")[0]


def admit(request: HttpRequest, host: Host) -> None:
    """Let this call in for the host, or raise OtherWire or Twin; the host's page then says so."""
    try:
        check_wire(request)
    except OtherWire as error:
        _note(request, host, error.code, agent=agent_version(request))
        raise
    instance = request.headers.get(wire.INSTANCE_HEADER, "")[:MAX_INSTANCE]
    if instance == host.agent_instance or _take(host, instance):
        return
    _note(request, host, Twin.code, agent=agent_version(request))
    raise Twin(params={"host": host.name, "seconds": int(settings.BERTH_HOST_LOST_S)})


def check_wire(request: HttpRequest) -> None:
    """Raises OtherWire when the caller speaks another one than this panel."""
    if request.headers.get(wire.WIRE_HEADER, str(wire.WIRE_VERSION)) != str(wire.WIRE_VERSION):
        raise OtherWire(params={"agent": agent_version(request), "panel": VERSION, "command": UPDATE_COMMAND})


def _take(host: Host, instance: str) -> bool:
    """Give the host's line to this agent, if it may have it. The guard lets one of two that come at once win."""
    now = timezone.now()
    rows = Host.objects.filter(pk=host.pk)
    changes: dict[str, Any] = {"agent_instance": instance, "last_seen_at": now}
    if not _same_seat(host.agent_instance, instance):
        changes["report_seq"] = 0  # another machine, or another start of it, counts anew
        if _still_calls(host):
            return False
        silent = now - patience()
        rows = rows.filter(Q(agent_instance="") | Q(last_seen_at=None) | Q(last_seen_at__lt=silent))
    # Contact counts from here: a second one that comes before the first report must find the seat taken.
    if not rows.filter(agent_instance=host.agent_instance).update(**changes):
        host.refresh_from_db(fields=["agent_instance"])
        return _same_seat(host.agent_instance, instance)
    for name, value in changes.items():
        setattr(host, name, value)
    return True


def _still_calls(host: Host) -> bool:
    """Whether whoever has the host's line called a moment ago."""
    held = bool(host.agent_instance) and host.last_seen_at is not None
    return held and host.pk not in samples.overdue([host], patience().total_seconds())


def _same_seat(held: str, instance: str) -> bool:
    return bool(held) and seat_of(held) == seat_of(instance)


def free(host: Host, instance: str) -> None:
    """This agent ends: whoever comes next is let in at once."""
    Host.objects.filter(pk=host.pk, agent_instance=instance[:MAX_INSTANCE]).update(agent_instance="")


def agent_version(request: HttpRequest) -> str:
    name, _slash, version = request.headers.get("User-Agent", "").partition("/")
    return version[:32] if name == "berth-agent" else ""


def _note(request: HttpRequest, host: Host, code: str, **params: Any) -> None:
    """Remember the refusal for the host's page: since when, and the newest."""
    now = timezone.now()
    before = host.link_trouble if host.link_trouble.get("code") == code else {}
    if before and now - at(before) < NOTE_EVERY:
        return
    lasting = before and now - at(before) < timedelta(seconds=2 * settings.BERTH_HOST_LOST_S)
    trouble = {
        "code": code,
        "since": before["since"] if lasting else now.isoformat(),
        "at": now.isoformat(),
        "params": {**params, "address": request.META.get("REMOTE_ADDR", "")[:64]},
    }
    Host.objects.filter(pk=host.pk).update(link_trouble=trouble)
    live.publish_on_commit(live.HOSTS)


def at(trouble: dict[str, Any], name: str = "at") -> datetime:
    """A time of a remembered refusal; long ago when it cannot be read."""
    found = parse_datetime(str(trouble.get(name, "")))
    return found if found is not None else timezone.now() - timedelta(days=3650)
