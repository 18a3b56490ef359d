"""What the doctor looks at of the hosts: the agent of this machine, versions, clocks, who has not called."""

from collections.abc import Callable

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _

from panel.core.checks import NotReady
from panel.core.numbers import duration
from panel.doctor import Check, Idle
from panel.doctor.parts import needs_tables, running
from panel.fleet import host_wording, samples, seats
from panel.fleet.agent.version import VERSION
from panel.fleet.models import Host


def agent() -> str:
    if not settings.BERTH_LOCAL_AGENT:
        raise Idle(_("not used: BERTH_LOCAL_AGENT=0"))
    needs_tables()
    if running() is None:
        raise Idle(_("not running; `make up` starts it"))
    host = Host.objects.filter(is_local=True).first()
    if host is None or host.last_seen_at is None:
        raise NotReady("agent_unseen", _("The agent of this machine has never reported."), _agent_hint())
    age = (timezone.now() - samples.called([host])[host.pk]).total_seconds()
    if age > settings.BERTH_HOST_LOST_S:
        text = _("The agent of this machine was last seen %(age)s s ago.")
        raise NotReady("agent_silent", text, _agent_hint(), params={"age": round(age)})
    return _("reported %(age)s s ago as %(name)s") % {"age": round(age), "name": host.name}


def _agent_hint() -> str:
    return _("`make up` starts it; its log is %(log)s.") % {"log": settings.BERTH_DATA / "log" / "agent.log"}


def versions() -> str:
    """Agents of another version go on as long as they understand the panel; the page says so too."""
    hosts = _hosts()
    refused = [host for host in hosts if host_wording.trouble(host) and _code(host) == seats.OtherWire.code]
    if refused:
        raise NotReady(
            "agent_wire",
            _("The agents of these hosts are of a version that this panel does not understand: %(names)s"),
            _("Run on each of them: %(command)s. Engines go on meanwhile."),
            params={"names": _named(refused, _agent_of), "command": seats.UPDATE_COMMAND},
        )
    other = [host for host in hosts if host.agent_version and host.agent_version != VERSION]
    if other:
        raise NotReady(
            "agent_version",
            _("The panel is %(panel)s; these hosts have another agent: %(names)s"),
            _("Run on each of them: %(command)s. On the panel's own machine, start the panel again."),
            params={
                "panel": VERSION,
                "names": _named(other, lambda host: host.agent_version),
                "command": seats.UPDATE_COMMAND,
            },
        )
    return _("all of the panel's version, %(version)s") % {"version": VERSION}


def clocks() -> str:
    off = [host for host in _hosts() if host.lost_at is None and abs(host.clock_skew_s) >= host_wording.SKEW_S]
    if off:
        raise NotReady(
            "host_clock",
            _("The clocks of these hosts are off: %(names)s"),
            _("Set them right, for example with an NTP service: timedatectl set-ntp true. Berth counts the difference "
              "in; certificates and logs of others do not."),
            params={"names": _named(off, _skew)},
        )  # fmt: skip
    return _("right on all hosts that call")


def silent() -> str:
    lost = [host for host in _hosts() if host.lost_at is not None and not host.is_local]
    if lost:
        raise NotReady(
            "hosts_silent",
            _("No word from: %(names)s"),
            _("Look there whether the machine and its agent run: systemctl status berth-agent. Engines may go on."),
            params={"names": _named(lost, _since)},
        )
    return _("every host calls")


def _hosts() -> list[Host]:
    needs_tables()
    hosts = list(Host.objects.all())
    if not hosts:
        raise Idle(_("there is no host yet"))
    if running() is None and not any(host.lost_at is None and host.last_seen_at for host in hosts):
        raise Idle(_("not running; `make up` starts it"))
    return hosts


def _code(host: Host) -> str:
    return str(host.link_trouble.get("code", ""))


def _agent_of(host: Host) -> str:
    return str((host.link_trouble.get("params") or {}).get("agent") or host.agent_version)


def _skew(host: Host) -> str:
    return f"{'+' if host.clock_skew_s > 0 else '−'}{duration(abs(host.clock_skew_s))}"


def _since(host: Host) -> str:
    at = host.last_seen_at
    return duration((timezone.now() - at).total_seconds()) if at else "?"


def _named(hosts: list[Host], what: Callable[[Host], str]) -> str:
    names = [f"{host.name} ({what(host)})" for host in hosts]
    return ", ".join(names[:6]) + (" …" if len(names) > 6 else "")


CHECKS: list[tuple[str, Check]] = [
    ("agent", agent),
    ("agent versions", versions),
    ("hosts' clocks", clocks),
    ("hosts", silent),
]
